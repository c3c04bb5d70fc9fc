//! Fetches in separate processes, which can be killed.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A `piece-exerciser`, killed when dropped.
pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) fn start(store: &Path, cache: &Path, artifact: &str, words: &[&str]) -> Self {
        // The shell makes a write beyond the file size limit an error instead of a fatal signal.
        let mut child = Command::new("/bin/sh")
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_piece-exerciser")])
            .args([store, cache])
            .arg(artifact)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads lines up to the next one with this beginning. Blocks.
    pub(crate) fn line(&mut self, beginning: &str) -> String {
        let found = self.lines.by_ref().map(Result::unwrap).find(|line| line.starts_with(beginning));
        found.unwrap_or_else(|| panic!("it ended without `{beginning}`"))
    }

    /// Waits until this many bytes are verified. Blocks.
    pub(crate) fn progress(&mut self, bytes: u64) {
        while self.line("progress ")["progress ".len()..].parse::<u64>().unwrap() < bytes {}
    }

    /// Waits for the line with the outcome. Blocks.
    pub(crate) fn outcome(&mut self) -> String {
        let is_end = |line: &String| line.starts_with("fetched ") || line.starts_with("failed ");
        self.lines.by_ref().map(Result::unwrap).find(is_end).expect("it ended without an outcome")
    }

    /// Closes its input: it starts, or ends.
    pub(crate) fn release(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a number from an outcome.
pub(crate) fn number_in(outcome: &str, name: &str) -> u64 {
    let word = outcome.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    word.unwrap_or_else(|| panic!("no {name} in `{outcome}`")).parse().unwrap()
}
