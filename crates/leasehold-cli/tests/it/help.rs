//! Help text of every command.

use crate::common::{assert_output, leasehold, output_of};

/// Commands that the help lists, so that a new one cannot be forgotten here.
fn commands() -> Vec<String> {
    let help = output_of(&mut leasehold(&["--help"]));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    names
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .filter(|name| name != "help")
        .collect()
}

#[test]
fn every_command_has_a_help_text_with_an_example() {
    assert_output("help", &mut leasehold(&["--help"]), None);
    let commands = commands();
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands {
        let mut asked = leasehold(&[&command, "--help"]);
        assert!(output_of(&mut asked).contains("Example:\n  "), "{command} has no example");
        assert_output(&format!("help_{command}"), &mut asked, None);
    }
}
