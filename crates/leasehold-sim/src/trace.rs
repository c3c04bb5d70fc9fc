//! The log of a run, one line per event: `12.345678 w1 put counters/a if unchanged v12 → written v13`.
//!
//! Only the newest lines are kept, or all of them on demand. A running hash covers every line, so that two
//! runs can be compared without keeping either.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::random::{HASH_START, hash};

/// Number of newest lines that are kept: enough to see what led to a failure.
const LINES_KEPT: usize = 300;

/// The lines of one run. Clones write to the same trace.
#[derive(Debug, Clone)]
pub struct Trace {
    kept: Arc<Mutex<Kept>>,
    is_silent: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Kept {
    lines: VecDeque<String>,
    lines_max: usize,
    count: u64,
    hash: u64,
}

impl Trace {
    /// Creates a trace that keeps its newest lines.
    #[must_use]
    pub fn new() -> Self {
        let kept = Kept { lines: VecDeque::new(), lines_max: LINES_KEPT, count: 0, hash: HASH_START };
        Self { kept: Arc::new(Mutex::new(kept)), is_silent: Arc::default() }
    }

    /// Drops all further lines, for runs that only count.
    pub fn silence(&self) {
        self.is_silent.store(true, Relaxed);
    }

    /// Keeps every line from now on.
    pub fn keep_all(&self) {
        self.kept().lines_max = usize::MAX;
    }

    /// Adds a line: time, subject, event.
    pub fn line(&self, at: Duration, who: &str, what: impl fmt::Display) {
        if self.is_silent.load(Relaxed) {
            return;
        }
        let line = format!("{}.{:06} {who} {what}", at.as_secs(), at.subsec_micros());
        let mut kept = self.kept();
        kept.hash = hash(hash(kept.hash, line.as_bytes()), b"\n");
        kept.count += 1;
        if kept.lines.len() >= kept.lines_max {
            kept.lines.pop_front();
        }
        kept.lines.push_back(line);
    }

    /// Returns the lines that were kept, oldest first.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.kept().lines.iter().cloned().collect()
    }

    /// Returns the number of lines, kept or not.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.kept().count
    }

    /// Returns a hash over all lines.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.kept().hash
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lines_are_kept_and_all_are_hashed() {
        let (short, full) = (Trace::new(), Trace::new());
        full.keep_all();
        for second in 0..1_000 {
            short.line(Duration::from_secs(second), "w1", format_args!("does {second}"));
            full.line(Duration::from_secs(second), "w1", format_args!("does {second}"));
        }
        assert_eq!((short.lines().len(), full.lines().len()), (LINES_KEPT, 1_000));
        assert_eq!(short.lines().last().map(String::as_str), Some("999.000000 w1 does 999"));
        assert_eq!((short.hash(), short.count()), (full.hash(), 1_000));
        full.line(Duration::ZERO, "w1", "once more");
        assert_ne!(short.hash(), full.hash());
    }
}
