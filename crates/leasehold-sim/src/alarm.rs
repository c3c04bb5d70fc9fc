//! Whoever sees that something is wrong raises the alarm; the run ends with the first one.

use std::sync::{Arc, Mutex, PoisonError};

/// The first thing that was wrong. Clones are the same alarm.
#[derive(Debug, Clone, Default)]
pub struct Alarm(Arc<Mutex<Option<String>>>);

impl Alarm {
    /// Says what is wrong.
    pub fn raise(&self, what: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what.into());
    }

    /// Raises the alarm if a check found something.
    pub fn check(&self, checked: Result<(), String>) {
        if let Err(what) = checked {
            self.raise(what);
        }
    }

    /// What was wrong, if anything was.
    #[must_use]
    pub fn raised(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
