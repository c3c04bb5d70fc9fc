//! A store that fails a single put on request: its answer is lost, or it is applied later.

use bytes::Bytes;
use leasehold_store::store::Answer;
use leasehold_store::{Cause, DelegatingStore, Failure, PutAnswer, Store, When};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Fault of the next put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Luck {
    /// Applied, but its answer is lost.
    AnswerLost,
    /// Without an answer; applied by [`Mishap::land`].
    Late,
}

/// The store of one process, which fails a put on request.
#[derive(Debug)]
pub struct Mishap {
    inner: Arc<dyn Store>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: Option<Luck>,
    late: Vec<(String, Bytes, When)>,
}

impl Mishap {
    /// Wraps a store; no fault is set.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Sets the fault of the next put.
    pub fn next(&self, luck: Luck) {
        self.state().next = Some(luck);
    }

    /// Applies the late puts, each on its own condition, and drops the answers.
    pub async fn land(&self) -> Result<(), Failure> {
        let late = std::mem::take(&mut self.state().late);
        for (key, body, when) in late {
            self.inner.put(&key, body, &when).await?;
        }
        Ok(())
    }

    async fn perform(&self, key: &str, body: Bytes, when: &When) -> Result<PutAnswer, Failure> {
        let luck = self.state().next.take();
        match luck {
            None => return self.inner.put(key, body, when).await,
            Some(Luck::AnswerLost) => drop(self.inner.put(key, body, when).await?),
            Some(Luck::Late) => self.state().late.push((key.to_owned(), body, when.clone())),
        }
        Err(Failure::passing(Cause::Unanswered, "the answer was lost"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DelegatingStore for Mishap {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(self.perform(key, body, when))
    }
}
