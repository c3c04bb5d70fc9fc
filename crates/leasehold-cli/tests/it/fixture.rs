//! Queue in a folder, and the command line on it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{assert_output, leasehold, leasehold_at, output_of, settings};

/// Id of the user and the group without rights.
pub(crate) const NOBODY: u32 = 65_534;

/// Filters for output that differs from run to run. Placeholders in columns are as wide as the text they replace; a time of
/// another day is wider than one of today, so the spaces after the latter are replaced too.
const FILTERS: [(&str, &str); 13] = [
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
    // A take that was not answered in time is repeated with a higher epoch.
    (r"\(epoch \d+", "(epoch [number]"),
    (r#""epoch":\d+,"until""#, r#""epoch":[number],"until""#),
];

/// Copies the program into a folder that every user can read, for tests that run it as another user: the project's folder
/// may be private.
pub(crate) fn public_program(folder: &Path) -> PathBuf {
    std::fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    let program = folder.join("leasehold");
    // By another process: a child that another test forks at this moment would have the file open for writing, and a file
    // that is open for writing cannot be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_leasehold")).arg(&program).status().unwrap();
    assert!(copied.success());
    program
}

/// Temporary folder with a queue, and the command line on it.
pub(crate) struct QueueFixture {
    root: tempfile::TempDir,
    layout: Option<&'static str>,
}

impl QueueFixture {
    /// Creates a folder in which a new queue has the default layout, `journal`.
    pub(crate) fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap(), layout: None }
    }

    /// Creates a folder in which a new queue has the layout `objects`.
    pub(crate) fn of_objects() -> Self {
        Self { layout: Some("objects"), ..Self::new() }
    }

    /// [`with_queue`](Self::with_queue) in the layout `objects`.
    pub(crate) fn with_queue_of_objects() -> Self {
        let fixture = Self::of_objects();
        fixture.run(&["init"]);
        fixture
    }

    /// Creates a folder with a queue: commands that only read create none.
    pub(crate) fn with_queue() -> Self {
        let fixture = Self::new();
        fixture.run(&["init"]);
        fixture
    }

    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.with_store(leasehold(args))
    }

    /// Command of a user to whom permissions apply, unlike the superuser.
    pub(crate) fn command_as_nobody(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = self.with_store(leasehold_at(program, args));
        command.uid(NOBODY).gid(NOBODY);
        command
    }

    fn with_store(&self, mut command: Command) -> Command {
        command.arg("--store").arg(self.path());
        command.envs(self.layout.map(|layout| ("LEASEHOLD_QUEUE_LAYOUT", layout)));
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn assert_output(&self, name: &str, args: &[&str]) {
        assert_output(name, &mut self.command(args), Some(&self.path().canonicalize().unwrap()));
    }

    /// Compares the output of a command, with random ids and varying counts filtered.
    pub(crate) fn assert_filtered_output(&self, name: &str, args: &[&str]) {
        self.compare(name, &output_of(&mut self.command(args)));
    }

    /// Compares output with the snapshot of that name.
    pub(crate) fn compare(&self, name: &str, printed: &str) {
        let folder = self.path().canonicalize().unwrap();
        let mut settings = settings(Some(&folder));
        for (pattern, placeholder) in FILTERS {
            settings.add_filter(pattern, placeholder);
        }
        settings.bind(|| insta::assert_snapshot!(name, printed));
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
