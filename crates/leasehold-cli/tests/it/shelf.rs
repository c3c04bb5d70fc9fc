//! Queue in a folder, and the command line on it.

use std::path::Path;
use std::process::Command;

use crate::common::{leasehold, said, settings, shown};

/// Filters for output that differs from run to run. Placeholders in columns are as wide as the text they replace; a time of
/// another day is wider than one of today, so the spaces after the latter are replaced too.
const FILTERS: [(&str, &str); 11] = [
    (r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "[id]--------------------------------"),
    (r"\d\d:\d\d:\d\d\.\d{3}(?: {7})?|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "[moment]           "),
    (r#""(write_id|lease_id|instance)":"[0-9a-f]+""#, r#""$1":"[name]""#),
    (r#""shard":"[0-9a-f]""#, r#""shard":"[shard]""#),
    (r"quarantine/[0-9a-f]{32}/", "quarantine/[name]/"),
    (r"\bw-[0-9a-f]{8}\b", "w-[name]"),
    (r"tasks/[0-9a-f]/", "tasks/[shard]/"),
    (r"(ready|leases)/[0-9a-f]/\d{8}-\d{4}/", "$1/[shard]/[minute]/"),
    (r"(?m)^[0-9a-f]( +\d)", "x$1"),
    (r"\d+ requests", "[number] requests"),
    (r"US\$ \d+\.\d+", "US$$ [price]"),
];

pub(crate) struct Shelf {
    root: tempfile::TempDir,
}

impl Shelf {
    pub(crate) fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    /// Shelf with a queue: commands that only read create none.
    pub(crate) fn with_queue() -> Self {
        let shelf = Self::new();
        shelf.run(&["init"]);
        shelf
    }

    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = leasehold(args);
        command.arg("--store").arg(self.path());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn shown(&self, name: &str, args: &[&str]) {
        shown(name, &mut self.command(args), Some(&self.path().canonicalize().unwrap()));
    }

    /// Compares the output of a command, with random ids and varying counts filtered.
    pub(crate) fn seen(&self, name: &str, args: &[&str]) {
        self.compare(name, &said(&mut self.command(args)));
    }

    /// Compares output with the snapshot of that name.
    pub(crate) fn compare(&self, name: &str, said: &str) {
        let folder = self.path().canonicalize().unwrap();
        let mut settings = settings(Some(&folder));
        for (pattern, placeholder) in FILTERS {
            settings.add_filter(pattern, placeholder);
        }
        settings.bind(|| insta::assert_snapshot!(name, said));
    }

    /// Objects of the queue.
    pub(crate) fn objects(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut open = vec![self.path().to_owned()];
        while let Some(directory) = open.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { open.push(path) } else { found.push(path.display().to_string()) }
            }
        }
        found.retain(|path| !path.contains("/.leasehold/"));
        found.sort();
        found
    }
}
