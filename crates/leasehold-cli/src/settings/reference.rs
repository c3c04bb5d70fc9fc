//! Generates `docs/reference/settings.md` from the table.

use std::fmt::Write;

use super::table::{Setting, TABLE};

const PREFACE: &str = "# Settings

Generated from the table in `crates/leasehold-cli/src/settings/table.rs` by its tests; run them with `UPDATE_DOCS=1`
after a change.

A later source overrides an earlier one: defaults < user file < project file < profile < environment < flags.

- The **user file** is `~/.config/leasehold/config.toml`, or `leasehold/config.toml` in `XDG_CONFIG_HOME`.
- The **project file** is `leasehold.toml` in the working directory, or in the nearest parent that has one.
- A **profile** is a part `[profiles.<name>]` of either file with the same tables as the top level, such as
  `[profiles.production.queue]`. Select one with `--profile` or `LEASEHOLD_PROFILE`. If both files
  set a key in it, the project file wins.
- In the **environment** an empty variable counts as unset, lists are separated by commas, and `1` and `0` are accepted
  for `true` and `false`.

A relative path in a file is relative to the folder of the file, elsewhere to the working directory.

Unknown keys are errors. An unknown variable `LEASEHOLD_…` is an error if it resembles a setting, otherwise it is ignored
with a warning. Variables that Kubernetes sets for a service named `leasehold` (`LEASEHOLD_SERVICE_HOST`,
`LEASEHOLD_PORT=tcp://…`) are ignored.

`leasehold config show` prints every setting and its source, `leasehold config paths` the paths of settings files. For
buckets, the standard variables and files (`AWS_ACCESS_KEY_ID`, `AWS_REGION`, …) apply where a setting here is unset.
";

fn reference() -> String {
    let mut text = PREFACE.to_owned();
    let mut table = "";
    for setting in TABLE {
        let (above, key) = setting.name.rsplit_once('.').unwrap();
        if above != table {
            table = above;
            write!(text, "\n## [{table}]\n\n| key | values | default | variable | description |\n").unwrap();
            text.push_str("| --- | --- | --- | --- | --- |\n");
        }
        let Setting { kind, variable, help, .. } = setting;
        let default = setting.default.map_or("unset".to_owned(), |default| format!("`{default}`"));
        writeln!(text, "| `{key}` | {kind} | {default} | `{variable}` | {help} |").unwrap();
    }
    text
}

#[test]
fn the_reference_says_what_the_table_says() {
    crate::reference::assert_documented("settings.md", &reference());
}
