//! The only place that prints. Words and colour for people on a terminal, JSON for machines.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "printing is what this module is for")]

use indicatif::{ProgressBar, ProgressStyle};
use leasehold_core::{Error, Kind};
use serde_json::json;
use std::fmt;
use std::io::IsTerminal;
use std::process::ExitCode;

/// How something looks on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Strong,
    Good,
    Bad,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Style::Plain => "0",
            Style::Strong => "1",
            Style::Good => "32",
            Style::Bad => "31",
        }
    }
}

pub(crate) struct Printer {
    json: bool,
    colour: bool,
}

impl Printer {
    pub(crate) fn new(json: bool) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { json, colour: wanted && std::io::stdout().is_terminal() }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        if self.colour { format!("\x1b[{}m{text}\x1b[0m", style.code()) } else { text.to_owned() }
    }

    /// Something worth knowing that is not the answer.
    pub(crate) fn note(&self, text: &str) {
        if self.json {
            eprintln!("{}", json!({"note": text}));
        } else {
            eprintln!("{text}");
        }
    }

    /// A bar for long work: only for people on a terminal.
    pub(crate) fn bar(&self, length: u64, what: &'static str) -> ProgressBar {
        if self.json || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {per_sec} {eta}");
        let bar = ProgressBar::new(length).with_message(what);
        if let Ok(style) = style { bar.with_style(style) } else { bar }
    }

    /// Says what went wrong, and gives the exit code that goes with it.
    pub(crate) fn error(&self, error: &anyhow::Error) -> ExitCode {
        let known = error.downcast_ref::<Error>();
        let kind = known.map_or(Kind::Internal, Error::kind);
        if self.json {
            let unknown = known.is_some_and(Error::outcome_is_unknown);
            let message = error.to_string();
            eprintln!(
                "{}",
                json!({"error": {"kind": kind.name(), "message": message, "outcome_unknown": unknown}})
            );
        } else {
            eprintln!("error: {error}");
        }
        tracing::debug!("{error:?}");
        ExitCode::from(kind.exit_code())
    }
}

/// One line for people, or one JSON value for machines.
pub(crate) fn line(line: impl fmt::Display) {
    println!("{line}");
}

/// Help and version are answers; anything else is a call to be fixed.
pub(crate) fn usage(usage: &clap::Error) -> ExitCode {
    // Nobody is left to tell if the terminal is gone.
    let _ = usage.print();
    if usage.use_stderr() { ExitCode::from(Kind::Invalid.exit_code()) } else { ExitCode::SUCCESS }
}
