//! Generates `docs/reference/cli.md` from the arguments.

use clap::builder::PossibleValue;
use clap::{Arg, Command, CommandFactory, Id};
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

Ctrl-C stops a command at once, without harm to the queue. `worker`, `up` and `outpost work` first let running tasks
finish, for up to `--drain-secs`; a second Ctrl-C releases them. `broker` commits what it has decided and releases its lease.
`serve-pieces` finishes the responses that it has started.
";

const JSON_NAMES: &str = "
## Names in JSON

Some JSON fields and values are named differently from the text output. Scripts depend on them, so they stay.

| command with `--json` | in JSON | in the text output |
| --- | --- | --- |
| `artifact get` | `origin_bytes` | bytes from the store |
| `artifact ls --long` | states `kept`, `leaving`, `closing` | published, expired, deleting |
| `artifact prune` | `seen`, `leaving`, `removed` | scanned, marked for deletion, deleted |
| `artifact put` | `was_there` | (none) true if the data was already in the store |
| `check` | `healing` | objects of the class transient |
| `config paths` | `found` | STATUS |
| `config show` | `origin` | SOURCE |
| `doctor` | `demand`, `met`, `otherwise`; `good` | a requirement, whether it is met, the consequence if not; whether all are met |
| `migrate-shards` | `sweep_after` | time after which the old keys are deleted |
| `migrate-shards --dry-run` | `under_way`, `there` | a migration in progress, and the objects it has already moved |
| `outpost status` | `counts`: `free`, `leased`, `tentative`, `outbox`, `duplicates` | pending, running, not confirmed, unsent, run twice |
| `outpost sync`, `outpost run` | `mirrored`, `forgotten` | fetched, taken by other workers |
| `outpost recover` | `unreadable`, `swept` | tasks corrupt, files deleted |
| `worker`, `up`, `outpost work` | `put_back` | requeued: pending again, to be retried, snoozed or released |
| `workers` | `for`, `in_inbox` | LEASE, INBOX |
| any | kind `lost` of an error | the operation came too late, see above |
";

fn reference() -> String {
    let mut root = Args::command();
    root.build();
    let of_every_command: Vec<_> =
        root.get_arguments().filter(|arg| arg.is_global_set()).map(|arg| arg.get_id().clone()).collect();
    let mut text = PREFACE.to_owned();
    exit_codes(&mut text);
    text.push_str(JSON_NAMES);
    text.push_str("\n## Options of every command\n\n");
    table(&mut text, root.get_arguments().filter(|arg| arg.is_global_set()));
    for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
        let (name, mut known) = (format!("leasehold {}", command.get_name()), of_every_command.clone());
        section(&mut text, &name, command, &known);
        // Options that a command passes on to its subcommands are listed once, with the command.
        known.extend(
            command.get_arguments().filter(|arg| arg.is_global_set()).map(|arg| arg.get_id().clone()),
        );
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            section(&mut text, &format!("{name} {}", below.get_name()), below, &known);
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
            Kind::Corrupt => "an object in the store is corrupt or inconsistent: stop and inspect it",
            Kind::Lost => {
                "the operation came too late: the task's status does not allow it (for example, `cancel` of a task \
                 that has ended), or another process has taken over the claim or lease"
            }
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

/// Section of a command, without the options in `known`.
fn section(text: &mut String, name: &str, command: &Command, known: &[Id]) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    write!(text, "\n## `{name}`\n\n{about}.").unwrap();
    for alias in command.get_visible_aliases() {
        write!(text, " Alias: `{alias}`.").unwrap();
    }
    text.push('\n');
    let own = |arg: &&Arg| !known.contains(arg.get_id()) && arg.get_id() != "help" && !arg.is_hide_set();
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
        let aliases = arg.get_visible_aliases().unwrap_or_default();
        let names =
            std::iter::once(format!("`{arg}`")).chain(aliases.iter().map(|alias| format!("`--{alias}`")));
        // A pipe ends a cell of a table, also inside of code.
        let names = names.collect::<Vec<_>>().join(", ").replace('|', "\\|");
        let short = arg.get_short().map_or(String::new(), |short| format!("`-{short}`, "));
        let default = arg.get_default_values().iter().filter(|_| arg.get_action().takes_values());
        let default = default.map(|value| format!(" [default: {}]", value.to_string_lossy()));
        let values = arg.get_possible_values();
        let values = values.iter().map(PossibleValue::get_name).collect::<Vec<_>>().join(", ");
        let takes_one_of = arg.get_action().takes_values() && !values.is_empty();
        let values = if takes_one_of { format!(" [possible values: {values}]") } else { String::new() };
        writeln!(text, "| {short}{names} | {help}{}{values} |", default.collect::<String>()).unwrap();
    }
}

#[test]
fn the_reference_matches_the_arguments() {
    crate::reference::assert_documented("cli.md", &reference());
}

/// Also options that a command passes on to its subcommands, which clap calls global as well.
#[test]
fn every_visible_option_is_in_the_reference() {
    let text = reference();
    for option in ["`--campaign <CAMPAIGN/QUEUE>`", "`--data <PATH>`"] {
        assert_eq!(text.matches(option).count(), 1, "{option}");
    }
    assert!(!text.contains("--known-secs"), "hidden");
    assert!(text.contains("[possible values: created, updated, due, id]"), "{text}");
}
