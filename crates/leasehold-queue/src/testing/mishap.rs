//! Any store, with bad luck for a single put: its answer is lost, or it lands when a test says so.

use bytes::Bytes;
use leasehold_store::seam::Answer;
use leasehold_store::{Around, Cause, Failure, PutAnswer, Store, When};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What becomes of the next put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Luck {
    /// Carried out, but its answer is lost.
    AnswerLost,
    /// Without an answer; carried out by [`Mishap::land`].
    Late,
}

/// A store that one process uses, and that fails it once when told to.
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
    /// Nothing goes wrong until it is told to.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// The next put fares so.
    pub fn next(&self, luck: Luck) {
        self.state().next = Some(luck);
    }

    /// Carries out what is late, on its own condition; the answers go nowhere.
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

impl Around for Mishap {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(self.perform(key, body, when))
    }
}
