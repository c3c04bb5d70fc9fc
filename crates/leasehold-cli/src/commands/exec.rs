//! Programs as handlers: `--exec 'TYPE=program args'`.

use futures::future::{pending, try_join3};
use leasehold_core::{Error, Result};
use leasehold_worker::{Context, TaskError};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// Exit code of a program that could not do its work now (`EX_TEMPFAIL`).
const RETRY_LATER: i32 = 75;

/// So much of what a program says is kept. An output may be far larger in the way that it is printed than it is written
/// down, but not without bounds.
const SAID_BYTES_MAX: u64 = 4 * 1_024 * 1_024;

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    words: Vec<String>,
}

impl Program {
    /// Reads `TYPE=program args`.
    pub(crate) fn parse(exec: &str) -> Result<(String, Self)> {
        let Some((task_type, command)) = exec.split_once('=') else {
            let message = format!("`{exec}` names no task type; write it like resize=./resize.sh --fast");
            return Err(Error::invalid(message));
        };
        let words = split(command)?;
        if words.is_empty() {
            return Err(Error::invalid(format!("`{exec}` names no program")));
        }
        Ok((task_type.to_owned(), Self { words }))
    }

    /// Runs it for one task. It is killed, with all that it has started, if the run has to stop.
    pub(crate) async fn run(self, context: Context, input: Value) -> Result<Value, TaskError> {
        let task = context.task();
        let desk = Desk::set_up(&context)?;
        let mut command = Command::new(&self.words[0]);
        command
            .args(&self.words[1..])
            .env("LEASEHOLD_TASK_ID", task.id.to_string())
            .env("LEASEHOLD_TASK_TYPE", task.task_type.as_str())
            .env("LEASEHOLD_TASK_ATTEMPT", context.attempt().to_string())
            .env("LEASEHOLD_TASK_EPOCH", context.epoch().to_string())
            .env("LEASEHOLD_ARTIFACTS", &desk.artifacts)
            .env("LEASEHOLD_RESULTS", &desk.results)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own: Ctrl-C on a terminal is meant for the worker, which lets its programs finish.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| self.not_started(&error))?;
        let group = Group::of(&child);
        let (status, stdout, stderr) = conversed(&mut child, &input.to_string()).await?;
        group.leave();
        let complaint = String::from_utf8_lossy(&stderr.bytes).trim().to_owned();
        match status.code() {
            Some(0) if stdout.is_cut => Err(TaskError::Permanent(format!(
                "it printed more than {SAID_BYTES_MAX} bytes; write what is large into a file in LEASEHOLD_RESULTS"
            ))),
            Some(0) => {
                desk.give(&context)?;
                Ok(parsed(&stdout.bytes))
            }
            Some(RETRY_LATER) => Err(TaskError::Retry(complaint_or(complaint, "retry later (exit code 75)"))),
            Some(code) => Err(TaskError::Permanent(complaint_or(complaint, &format!("exit code {code}")))),
            // Killed by a signal: nobody decided that the task cannot be done.
            None => Err(TaskError::Retry(complaint_or(complaint, "the program was killed"))),
        }
    }

    fn not_started(&self, error: &std::io::Error) -> TaskError {
        TaskError::Retry(format!("`{}` cannot be started: {error}", self.words[0]))
    }
}

/// What a program has said, as far as it is kept.
struct Said {
    bytes: Vec<u8>,
    is_cut: bool,
}

/// Tells a program its input and hears what it says, all at once: one that says much before it has read all of its input
/// would wait for us otherwise, and we for it.
async fn conversed(child: &mut Child, input: &str) -> io::Result<(ExitStatus, Said, Said)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let tell = async {
        if let Some(mut stdin) = stdin {
            // A program may end without reading its input; then the pipe breaks, and that is no failure.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        pending::<Infallible>().await
    };
    tokio::select! {
        ended = try_join3(child.wait(), heard(stdout), heard(stderr)) => ended,
        never = tell => match never {},
    }
}

/// Hears all of it, and keeps what has room.
async fn heard(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Said> {
    let mut bytes = Vec::new();
    let Some(mut pipe) = pipe else { return Ok(Said { bytes, is_cut: false }) };
    (&mut pipe).take(SAID_BYTES_MAX).read_to_end(&mut bytes).await?;
    let is_cut = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await? > 0;
    Ok(Said { bytes, is_cut })
}

/// The files of one run: those that the task was given, as links by their names, and a place for those that the program
/// makes. It is cleared away once these are published, or the run has ended otherwise.
struct Desk {
    artifacts: PathBuf,
    results: PathBuf,
}

impl Desk {
    /// Also for a task without files: whether its program makes some is known only afterwards.
    fn set_up(context: &Context) -> io::Result<Self> {
        let root = tempfile::Builder::new().prefix("leasehold-").tempdir()?;
        let desk = Self { artifacts: root.path().join("artifacts"), results: root.path().join("results") };
        context.keep(root);
        fs::create_dir(&desk.artifacts)?;
        fs::create_dir(&desk.results)?;
        for (name, path) in context.artifacts() {
            symlink(path, desk.artifacts.join(name.as_str()))?;
        }
        Ok(desk)
    }

    /// Gives every plain file among the results. One that cannot be called so will not be called otherwise next time.
    fn give(&self, context: &Context) -> Result<(), TaskError> {
        for entry in fs::read_dir(&self.results)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_file() {
                let given = context.publish(&name, entry.path());
                given.map_err(|error| TaskError::Permanent(error.to_string()))?;
            } else {
                tracing::warn!(task = %context.task().id, "result `{name}` is no plain file, and not published");
            }
        }
        Ok(())
    }
}

/// A program and whatever it has started: killed together when this is dropped.
struct Group {
    leader: Option<Pid>,
}

impl Group {
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self { leader: id.and_then(Pid::from_raw) }
    }

    /// The program has ended by itself: what it has left running is its own affair.
    fn leave(mut self) {
        self.leader = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            // There may be nobody left.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

fn complaint_or(complaint: String, otherwise: &str) -> String {
    if complaint.is_empty() { otherwise.to_owned() } else { complaint }
}

/// JSON if it is JSON, else the text as it is.
fn parsed(stdout: &[u8]) -> Value {
    let text = String::from_utf8_lossy(stdout);
    let text = text.trim();
    if text.is_empty() {
        return Value::Null;
    }
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Words as a shell would split them: quotes keep spaces, a backslash keeps the next character.
fn split(command: &str) -> Result<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = command.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(letters.next()),
            (_, Some(open)) if letter == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (' ' | '\t', None) => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err(Error::invalid(format!("`{command}` has a quote that is not closed")));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_as_a_shell_would() {
        for (command, words) in [
            ("sleep 1", vec!["sleep", "1"]),
            ("  a  'b c' \"d 'e'\" f\\ g ", vec!["a", "b c", "d 'e'", "f g"]),
            ("sh -c 'echo \"x\"'", vec!["sh", "-c", "echo \"x\""]),
            ("a '' b", vec!["a", "", "b"]),
            ("", vec![]),
        ] {
            assert_eq!(split(command).unwrap(), words);
        }
        assert!(split("a 'b").is_err());
    }

    #[test]
    fn a_program_has_a_type_and_a_name() {
        let (task_type, program) = Program::parse("a.b=c d=e").unwrap();
        assert_eq!((task_type.as_str(), program.words.len()), ("a.b", 2));
        assert!(Program::parse("nothing").is_err());
        assert!(Program::parse("a=").is_err());
    }
}
