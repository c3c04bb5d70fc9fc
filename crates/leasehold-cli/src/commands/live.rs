//! Progress of a command that runs until it is stopped: one live line on a terminal, else one line for each change.

use indicatif::ProgressBar;
use serde_json::Value;
use std::time::Duration;

use crate::printer::{Printer, line};

/// Interval at which the live line is redrawn.
const DRAW_EVERY: Duration = Duration::from_millis(250);
/// Minimum interval between two printed lines.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// Progress that is shown.
pub(super) trait ShownProgress {
    /// Part whose change is printed.
    type Figures: PartialEq;

    fn figures(&self) -> Self::Figures;
    fn text(&self) -> String;
    fn json(&self) -> Value;
}

/// Output of the progress.
pub(super) enum ProgressDisplay<F> {
    Live(ProgressBar),
    Log { json: bool, last: Option<F> },
}

impl<F: PartialEq> ProgressDisplay<F> {
    pub(super) fn new(printer: &Printer) -> Self {
        if printer.is_interactive() {
            Self::Live(printer.live_line())
        } else {
            Self::Log { json: printer.is_json(), last: None }
        }
    }

    pub(super) fn every(&self) -> Duration {
        match self {
            Self::Live(_) => DRAW_EVERY,
            Self::Log { .. } => LOG_EVERY,
        }
    }

    pub(super) fn show(&mut self, progress: &impl ShownProgress<Figures = F>) {
        match self {
            Self::Live(bar) => bar.set_message(progress.text()),
            Self::Log { json, last } => {
                let figures = progress.figures();
                if last.as_ref() == Some(&figures) {
                    return;
                }
                *last = Some(figures);
                if *json { line(progress.json()) } else { line(progress.text()) }
            }
        }
    }

    pub(super) fn clear(&self) {
        if let Self::Live(bar) = self {
            bar.finish_and_clear();
        }
    }
}
