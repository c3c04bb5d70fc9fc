//! Alarm of checks that run inside tasks: the run ends with the first one.

use std::sync::{Arc, Mutex, PoisonError};

/// First failure that was raised. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Alarm(Arc<Mutex<Option<String>>>);

impl Alarm {
    /// Records a failure.
    pub fn raise(&self, what: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what.into());
    }

    /// Raises the alarm if a check failed.
    pub fn check(&self, checked: Result<(), String>) {
        if let Err(what) = checked {
            self.raise(what);
        }
    }

    /// Returns the failure, if any.
    #[must_use]
    pub fn raised(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
