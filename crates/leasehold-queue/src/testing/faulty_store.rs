//! A store that fails a single put on request: its answer is lost, or it is applied later.

use bytes::Bytes;
use leasehold_store::host::lock;
use leasehold_store::store::Answer;
use leasehold_store::{Cause, DelegatingStore, Failure, PutAnswer, Store, When};
use std::sync::{Arc, Mutex};

/// Fault of the next put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutFault {
    /// Applied, but its answer is lost.
    AnswerLost,
    /// Without an answer; applied by [`FaultyStore::apply_late`].
    Late,
}

/// The store of one process, which fails a put on request.
#[derive(Debug)]
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: Option<PutFault>,
    late: Vec<(String, Bytes, When)>,
}

impl FaultyStore {
    /// Wraps a store; no fault is set.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Sets the fault of the next put.
    pub fn next(&self, fault: PutFault) {
        lock(&self.state).next = Some(fault);
    }

    /// Applies the late puts, each on its own condition, and drops the answers.
    pub async fn apply_late(&self) -> Result<(), Failure> {
        let late = std::mem::take(&mut lock(&self.state).late);
        for (key, body, when) in late {
            self.inner.put(&key, body, &when).await?;
        }
        Ok(())
    }

    async fn perform(&self, key: &str, body: Bytes, when: &When) -> Result<PutAnswer, Failure> {
        let fault = lock(&self.state).next.take();
        match fault {
            None => return self.inner.put(key, body, when).await,
            Some(PutFault::AnswerLost) => drop(self.inner.put(key, body, when).await?),
            Some(PutFault::Late) => lock(&self.state).late.push((key.to_owned(), body, when.clone())),
        }
        Err(Failure::transient(Cause::Unanswered, "the answer was lost"))
    }
}

impl DelegatingStore for FaultyStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(self.perform(key, body, when))
    }
}
