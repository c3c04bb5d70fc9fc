//! Output: text and colours on a terminal, JSON with `--json`. The only module that prints.

use indicatif::{ProgressBar, ProgressState, ProgressStyle, WeakProgressBar};
use leasehold_core::{Error, Kind, Task};
use serde_json::json;
use std::borrow::Cow;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::commands::get::TaskEnded;

/// Interval between two frames of a spinner.
const SPINNER_INTERVAL: Duration = Duration::from_millis(120);
/// Exit code that a shell reports for a program killed by a broken pipe.
const BROKEN_PIPE: i32 = 141;

/// Style of text on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Strong,
    Good,
    Bad,
    /// One of several colours that only distinguish.
    Tint(usize),
}

/// Bar that was drawn last, if it still exists: log lines are printed above it.
static CURRENT_BAR: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// Colours of [`Style::Tint`], without green and red, which have a meaning.
const TINTS: [&str; 8] = ["36", "33", "35", "34", "96", "93", "95", "94"];

impl Style {
    fn code(self) -> &'static str {
        match self {
            Style::Plain => "0",
            Style::Strong => "1",
            Style::Good => "32",
            Style::Bad => "31",
            Style::Tint(number) => TINTS[number % TINTS.len()],
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Printer {
    json: bool,
    colour: bool,
}

impl Printer {
    pub(crate) fn new(json: bool) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { json, colour: wanted && std::io::stdout().is_terminal() }
    }

    /// Printer that paints without a terminal.
    #[cfg(test)]
    pub(crate) fn coloured() -> Self {
        Self { json: false, colour: true }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        if self.colour && style != Style::Plain {
            format!("\x1b[{}m{text}\x1b[0m", style.code())
        } else {
            text.to_owned()
        }
    }

    /// Prints a note to standard error.
    pub(crate) fn note(&self, text: &str) {
        if self.json {
            error_line(escaped_except_colours(&json!({"note": text}).to_string()));
        } else {
            error_line(escaped_lines(text));
        }
    }

    /// Prints a line from the standard error of a task's program.
    pub(crate) fn program_line(&self, task: &Task, text: &str) {
        let id = task.id.to_string();
        let line = if self.json {
            escaped_except_colours(&json!({"task": id, "stderr": text}).to_string()).into_owned()
        } else {
            let short = id.split('-').next().unwrap_or_default();
            format!("[{} {short}] {}", task.task_type, escaped_lines(text))
        };
        above_bars(format!("{line}\n").as_bytes());
    }

    /// True if both standard output and standard error are a terminal.
    pub(crate) fn is_interactive(&self) -> bool {
        !self.json && std::io::stderr().is_terminal() && std::io::stdout().is_terminal()
    }

    /// Progress bar; hidden unless standard error is a terminal.
    pub(crate) fn bar(&self, length: u64, what: &'static str) -> ProgressBar {
        let template = "{msg} {wide_bar} {pos}/{len} {pace} {eta}";
        self.draw(template, || ProgressBar::new(length).with_message(what))
    }

    /// Progress bar for bytes, with rate and remaining time. Its length may be set later.
    pub(crate) fn bytes(&self, what: &'static str) -> ProgressBar {
        let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
        self.draw(template, || ProgressBar::new(0).with_message(what))
    }

    /// Spinner for work of unknown length, with a count and the elapsed time.
    pub(crate) fn spinner(&self, what: &'static str) -> ProgressBar {
        self.ticking_spinner("{spinner} {msg}: {pos}, {elapsed}", what)
    }

    /// Spinner for work without steps, with the elapsed time.
    pub(crate) fn clock(&self, what: &'static str) -> ProgressBar {
        self.ticking_spinner("{spinner} {msg}, {elapsed}", what)
    }

    fn ticking_spinner(&self, template: &str, what: &'static str) -> ProgressBar {
        self.draw(template, || {
            let spinner = ProgressBar::new_spinner().with_message(what);
            spinner.enable_steady_tick(SPINNER_INTERVAL);
            spinner
        })
    }

    /// Line that is redrawn in place, cut at the edge of the terminal.
    pub(crate) fn live_line(&self) -> ProgressBar {
        self.draw("{wide_msg}", ProgressBar::new_spinner)
    }

    fn draw(&self, template: &str, make: impl FnOnce() -> ProgressBar) -> ProgressBar {
        if self.json || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template(template).expect("the templates above are well formed");
        // The rate of indicatif has four decimals.
        let style = style.with_key("pace", |state: &ProgressState, text: &mut dyn fmt::Write| {
            // A failed write only omits the rate.
            let _ = write!(text, "{:.0}/s", state.per_sec());
        });
        let bar = make().with_style(style);
        *CURRENT_BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.downgrade());
        bar
    }

    /// Prints an error and returns its exit code.
    pub(crate) fn error(&self, error: &anyhow::Error) -> u8 {
        let known = error.downcast_ref::<Error>();
        let (name, code) = kind_and_code(error);
        if self.json {
            let unknown = known.is_some_and(Error::outcome_is_unknown);
            let message = error.to_string();
            let error = json!({"error": {"kind": name, "message": message, "outcome_unknown": unknown}});
            error_line(escaped_except_colours(&error.to_string()));
        } else {
            error_line(format_args!("error: {}", escaped_lines(&error.to_string())));
        }
        tracing::debug!(?error, "command failed");
        code
    }
}

/// Kind of an error in JSON, and its exit code.
fn kind_and_code(error: &anyhow::Error) -> (&'static str, u8) {
    if let Some(ended) = error.downcast_ref::<TaskEnded>() {
        return (ended.status.name(), ended.status.exit_code());
    }
    let kind = error.downcast_ref::<Error>().map_or(Kind::Internal, Error::kind);
    (kind.name(), kind.exit_code())
}

/// Prints one line, or one JSON value, to standard output.
pub(crate) fn line(line: impl fmt::Display) {
    print_bytes(escaped_except_colours(&line.to_string()).as_bytes());
}

/// Prints one line of data to standard output as it is: another program reads it.
pub(crate) fn unescaped_line(line: &[u8]) {
    print_bytes(line);
}

fn print_bytes(line: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(line).and_then(|()| stdout.write_all(b"\n"));
    if written.is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe) {
        // The reader has closed the pipe, as in `list | head`: the rest would be read from the store in vain. Clear the
        // spinner, so that the shell prompt starts on an empty line.
        if std::io::stderr().is_terminal() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        std::process::exit(BROKEN_PIPE);
    }
}

/// Prints one line to standard error. Its reader may be gone, as in `worker 2>&1 | head`: that must not end a worker.
fn error_line(line: impl fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints bytes to standard error, above the bar if one is drawn. Must not be called while that bar is suspended.
pub(crate) fn above_bars(bytes: &[u8]) {
    let print = || {
        // The terminal may be gone.
        let _ = std::io::stderr().write_all(bytes);
    };
    let drawn = CURRENT_BAR.lock().unwrap_or_else(PoisonError::into_inner);
    let bar = drawn.as_ref().and_then(WeakProgressBar::upgrade).filter(|bar| !bar.is_finished());
    drop(drawn);
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// Escapes control characters, including line feeds: a task or a file must not be able to control a terminal.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| if c.is_control() { c.escape_default().collect() } else { vec![c] };
    Cow::Owned(text.chars().flat_map(escape).collect())
}

/// Escapes control characters except line feeds; tabs become spaces.
pub(crate) fn escaped_lines(text: &str) -> String {
    let lines = text.lines().map(|line| escaped(&line.replace('\t', "    ")).into_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// Escapes control characters in all output, except line feeds, tabs and the colours of [`Printer::paint`]. Uses the
/// escapes of JSON, which does not require them for DEL and C1 characters.
fn escaped_except_colours(text: &str) -> Cow<'_, str> {
    let is_printable = |c: char| !c.is_control() || c == '\n' || c == '\t';
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        if is_printable(c) || c == '\x1b' && is_colour(&text[at..]) {
            escaped.push(c);
        } else {
            escaped.extend(format!("\\u{:04x}", u32::from(c)).chars());
        }
    }
    Cow::Owned(escaped)
}

/// True if the text begins with a colour: an escape character, `[`, at most two digits, `m`.
fn is_colour(text: &str) -> bool {
    let code = text.strip_prefix("\x1b[").and_then(|rest| rest.split_once('m'));
    code.is_some_and(|(digits, _)| digits.len() <= 2 && digits.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Prints help, version or a usage error, and returns the exit code.
pub(crate) fn usage(usage: &clap::Error) -> u8 {
    // The terminal may be gone.
    let _ = usage.print();
    if usage.use_stderr() { Kind::Invalid.exit_code() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}]52;c;aGk=\u{7}\u{9b}31m\tb\r\nc\u{7f}";

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escaped("plain"), "plain");
        assert_eq!(escaped(HOSTILE), "a\\u{1b}]52;c;aGk=\\u{7}\\u{9b}31m\\tb\\r\\nc\\u{7f}");
        assert_eq!(escaped_lines(HOSTILE), "a\\u{1b}]52;c;aGk=\\u{7}\\u{9b}31m    b\nc\\u{7f}");
    }

    #[test]
    fn only_colours_are_not_escaped() {
        let painted = Printer::coloured().paint(Style::Good, "ok");
        assert_eq!(escaped_except_colours(&painted), painted);
        for (text, safe) in [
            ("\u{1b}[2J", "\\u001b[2J"),
            ("\u{1b}[123m", "\\u001b[123m"),
            ("\u{1b}]0;x\u{7}", "\\u001b]0;x\\u0007"),
            ("a\tb\nc\rd", "a\tb\nc\\u000dd"),
        ] {
            assert_eq!(escaped_except_colours(text), safe);
        }
        let json = json!({"a": HOSTILE}).to_string();
        let read: serde_json::Value = serde_json::from_str(&escaped_except_colours(&json)).unwrap();
        assert_eq!(read["a"], HOSTILE, "machines get what was there");
    }
}
