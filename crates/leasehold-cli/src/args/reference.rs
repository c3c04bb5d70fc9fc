//! `docs/reference/cli.md`, written from the arguments.

use clap::{Arg, Command, CommandFactory};
use leasehold_core::{Kind, Status};
use std::fmt::Write;

use super::Args;

const PREFACE: &str = "# Command line

Generated from the arguments in `crates/leasehold-cli/src` by their tests; run them with `UPDATE_DOCS=1` after a change.

Words, colours and bars are for people on a terminal. What is piped is plain; times are in UTC, and those of today are
without their day. With `--json` every answer is JSON, one value per line, with whole records and whole times. Answers go
to standard output, everything else to standard error. Control characters in what tasks and stores say are escaped.

Warnings and errors are logged to standard error. `LEASEHOLD_LOG` changes that, for example `LEASEHOLD_LOG=error` or
`LEASEHOLD_LOG=leasehold_worker=debug,warn`.

Ctrl-C ends a command at once, which harms nothing. `worker`, `monitor`, `up`, `serve-pieces` and `tail` end in
order: what runs may finish; a second Ctrl-C gives it back.
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
    text.push_str("\n## Exit codes\n\n| code | kind | what it means |\n| --- | --- | --- |\n");
    text.push_str("| 0 | | done |\n");
    for kind in Kind::ALL {
        let meaning = match kind {
            Kind::Unavailable => "the store cannot be reached, or the time is up: try later",
            Kind::Denied => "not allowed: fix the permissions",
            Kind::Invalid => "the call is wrong: fix it",
            Kind::Corrupt => "something in the store is not as it should be: stop and look",
            Kind::Lost => "the task has moved on: what was asked for cannot happen to it",
            Kind::Internal => "a bug: please report it",
        };
        writeln!(text, "| {} | `{}` | {meaning} |", kind.exit_code(), kind.name()).unwrap();
    }
    text.push_str("\n`wait` and `submit --wait` tell how the task ended:\n\n");
    text.push_str("| code | status | what it means |\n| --- | --- | --- |\n");
    for status in Status::ALL.into_iter().filter(|status| status.is_final()) {
        let meaning = match status {
            Status::Completed => "its handler has finished; `--output` prints only its output",
            Status::Failed => "its last attempt has failed; the reason is on standard error",
            Status::Cancelled => "someone has cancelled it",
            Status::Expired => "no worker has started it in time",
            Status::Purged => "it is being deleted",
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
    text.push_str("| option | what it does |\n| --- | --- |\n");
    for arg in args {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let short = arg.get_short().map_or(String::new(), |short| format!("`-{short}`, "));
        let default = arg.get_default_values().iter().filter(|_| arg.get_action().takes_values());
        let default = default.map(|value| format!("; `{}` by default", value.to_string_lossy()));
        writeln!(text, "| {short}`{arg}` | {help}{} |", default.collect::<String>()).unwrap();
    }
}

#[test]
fn the_reference_says_what_the_arguments_say() {
    crate::reference::agrees("cli.md", &reference());
}
