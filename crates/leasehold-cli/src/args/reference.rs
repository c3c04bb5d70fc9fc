//! Generates `docs/reference/cli.md` from the arguments.

use clap::{Arg, Command, CommandFactory};
use leasehold_core::{Kind, Status};
use std::fmt::Write;

use super::Args;

const PREFACE: &str = "# Command line

Generated from the arguments in `crates/leasehold-cli/src` by their tests; run them with `UPDATE_DOCS=1` after a change.

On a terminal, the output has colours and progress bars; piped output is plain. Times are in UTC; those of today are
printed without the date. With `--json`, the output is JSON, one value per line, with complete records and times. Results
go to standard output, everything else to standard error. Control characters in the data of tasks and stores are escaped.

Warnings and errors are logged to standard error. `LEASEHOLD_LOG` changes that, for example `LEASEHOLD_LOG=error` or
`LEASEHOLD_LOG=leasehold_worker=debug,warn`.

Ctrl-C stops a command at once, without harm to the queue. `worker`, `monitor`, `up`, `serve-pieces` and `tail` drain
first: running tasks may finish. A second Ctrl-C releases them.
";

fn reference() -> String {
    let mut root = Args::command();
    root.build();
    let mut text = PREFACE.to_owned();
    exit_codes(&mut text);
    text.push_str("\n## Options of every command\n\n");
    table(&mut text, root.get_arguments().filter(|arg| arg.is_global_set()));
    for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
        section(&mut text, &format!("leasehold {}", command.get_name()), command);
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            section(&mut text, &format!("leasehold {} {}", command.get_name(), below.get_name()), below);
        }
    }
    text
}

fn exit_codes(text: &mut String) {
    text.push_str("\n## Exit codes\n\n| code | kind | meaning |\n| --- | --- | --- |\n");
    text.push_str("| 0 | | done |\n");
    for kind in Kind::ALL {
        let meaning = match kind {
            Kind::Unavailable => "the store is unreachable, or a time limit was reached: try later",
            Kind::Denied => "the store denies access: fix credentials or permissions",
            Kind::Invalid => "an argument or a setting is invalid: fix it",
            Kind::Corrupt => "an object in the store is corrupt: stop and inspect it",
            Kind::Lost => "another process changed the task: its status does not allow the operation",
            Kind::Internal => "a bug: please report it",
        };
        writeln!(text, "| {} | `{}` | {meaning} |", kind.exit_code(), kind.name()).unwrap();
    }
    text.push_str("\nThe exit code of `wait` and `submit --wait` shows the status of the task:\n\n");
    text.push_str("| code | status | meaning |\n| --- | --- | --- |\n");
    for status in Status::ALL.into_iter().filter(|status| status.is_final()) {
        let meaning = match status {
            Status::Completed => "the task completed; `--output` prints only its output",
            Status::Failed => "the last attempt failed; the reason is on standard error",
            Status::Cancelled => "the task was cancelled",
            Status::Expired => "no worker started the task in time",
            Status::Purged => "the task is being deleted",
            Status::Pending | Status::Running => "",
        };
        writeln!(text, "| {} | `{status}` | {meaning} |", status.exit_code()).unwrap();
    }
    text.push_str("\nA task that is not final within `--timeout` is code 75.\n");
}

fn section(text: &mut String, name: &str, command: &Command) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    write!(text, "\n## `{name}`\n\n{about}.\n").unwrap();
    let own = |arg: &&Arg| !arg.is_global_set() && arg.get_id() != "help";
    if command.get_arguments().any(|arg| own(&arg)) {
        text.push('\n');
        table(text, command.get_arguments().filter(own));
    }
    if let Some(example) = command.get_after_help().map(ToString::to_string) {
        let example = example.strip_prefix("Example:\n").expect("what follows the help is an example");
        write!(text, "\n```sh\n{}\n```\n", example.trim()).unwrap();
    }
}

fn table<'a>(text: &mut String, args: impl Iterator<Item = &'a Arg>) {
    text.push_str("| option | description |\n| --- | --- |\n");
    for arg in args {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let short = arg.get_short().map_or(String::new(), |short| format!("`-{short}`, "));
        let default = arg.get_default_values().iter().filter(|_| arg.get_action().takes_values());
        let default = default.map(|value| format!(" [default: {}]", value.to_string_lossy()));
        writeln!(text, "| {short}`{arg}` | {help}{} |", default.collect::<String>()).unwrap();
    }
}

#[test]
fn the_reference_says_what_the_arguments_say() {
    crate::reference::agrees("cli.md", &reference());
}
