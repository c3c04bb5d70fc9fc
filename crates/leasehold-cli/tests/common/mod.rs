//! Runs the command line and captures its output.

pub(crate) mod brokers;
pub(crate) mod crashes;
pub(crate) mod direct;
pub(crate) mod http;
pub(crate) mod live;
pub(crate) mod migrating;
pub(crate) mod sharing;
pub(crate) mod stalls;

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Command line without the caller's settings and credentials, in a directory without a project file. Logs only errors:
/// warnings depend on the speed of the machine.
pub(crate) fn leasehold(args: &[&str]) -> Command {
    leasehold_at(Path::new(env!("CARGO_BIN_EXE_leasehold")), args)
}

/// [`leasehold`] with another copy of the program.
pub(crate) fn leasehold_at(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir("/").env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("LEASEHOLD_LOG", "error");
    command
}

/// Compares the output and the exit code of a command with the snapshot of that name. Text that differs from run to run is
/// replaced by placeholders.
pub(crate) fn assert_output(name: &str, command: &mut Command, folder: Option<&Path>) {
    settings(folder).bind(|| insta::assert_snapshot!(name, output_of(command)));
}

/// Path of the snapshots, and filters for folders, times and ports.
pub(crate) fn settings(folder: Option<&Path>) -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.add_filter(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "[time]");
    settings.add_filter(r"127\.0\.0\.1:\d+", "127.0.0.1:[port]");
    settings.add_filter(r"up to \d\.\d s later", "up to [width] s later");
    if let Some(folder) = folder {
        settings.add_filter(folder.to_str().unwrap(), "[folder]");
    }
    settings
}

/// Output and exit code of a command.
pub(crate) fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let mut text = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    if !stderr.is_empty() {
        write!(text, "--- stderr\n{stderr}").unwrap();
    }
    write!(text, "--- exit code {}", output.status.code().unwrap()).unwrap();
    text
}
