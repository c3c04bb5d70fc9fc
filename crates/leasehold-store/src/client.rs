//! Client of a store: counts requests, bounds them in time, retries where that is safe, and resolves every lost
//! answer.
//!
//! # Lost answers
//!
//! A conditional put can go unanswered and still have been carried out, or be carried out later. It is never blindly
//! repeated. One rule resolves every refusal and every lost answer: **read the object back**, and then
//!
//! ```text
//!   object read back             meaning                                    result
//!   ───────────────────────────  ─────────────────────────────────────────  ─────────────────────────
//!   our own bytes                an earlier attempt was carried out         Written
//!   a successor of our bytes     likewise, and other writers have changed   Superseded, with the object
//!                                the object since
//!   an object that still fits    not carried out (yet)                      send the identical put again
//!   the condition
//!   anything else                another writer was faster, and our put     Lost, with the object
//!                                can no longer be carried out
//! ```
//!
//! Repeating identical bytes under an identical condition is safe: at most one of the attempts can be carried out; the
//! others are then refused, and the read returns our bytes. A writer recognises its own bytes by the new write id in
//! every record or, for a record that other writers have changed since, by its event in the history: see
//! [`IsOurWrite`].

mod large;

pub use large::Upload;

use bytes::Bytes;
use futures::{Stream, stream};
use leasehold_core::limits::{
    OBJECT_BYTES_MAX, OPERATION_TIMEOUT, RESPONSE_TIMEOUT, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN,
};
use leasehold_core::oversize;
use leasehold_core::{Error, Kind, Now, Result, WriteId, keys};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::health::{Health, REPORT_AFTER, RequestClass};
use crate::host::{Host, HostExt, Instant};
use crate::ledger::{Ledger, LedgerLine, Outcome, Purpose, Verb};
use crate::mutant::breaks;
use crate::store::{Cause, Failure, Get, List, LocalFolder, Object, Page, PutAnswer, Store, Version, When};

/// Store with request counts, a retry budget and the rule for lost answers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    store: Arc<dyn Store>,
    host: Arc<dyn Host>,
    ledger: Arc<Ledger>,
    health: Arc<Health>,
    timeout: Duration,
}

/// Result of a conditional put. An unresolved put is an [`Error`] with an unknown outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutOutcome {
    /// Written, with its version.
    Written(Version),
    /// Written, but the answer was lost, and other writers have changed the object since: this is the current object.
    /// Its version is not that of our write, and our content may no longer be current.
    Superseded(Object),
    /// Not written, and never will be; this is the current object.
    Lost(Option<Object>),
}

/// Recognises the caller's own write in the bytes that were read back.
pub type IsOurWrite<'a> = &'a (dyn Fn(&[u8]) -> bool + Send + Sync);

impl Client {
    /// Creates a client of a store.
    pub fn new(store: Arc<dyn Store>, host: Arc<dyn Host>) -> Self {
        Self { store, host, ledger: Arc::default(), health: Arc::default(), timeout: OPERATION_TIMEOUT }
    }

    /// Limits the time of one operation with all its retries to about this long.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns a client for use on another runtime, with the same request counts but without connections that a busy
    /// runtime could block.
    #[must_use]
    pub fn detached(&self) -> Self {
        let store = self.store.detached().unwrap_or_else(|| self.store.clone());
        Self { store, ..self.clone() }
    }

    /// Returns a client with request counts of its own.
    #[must_use]
    pub fn with_own_ledger(&self) -> Self {
        Self { ledger: Arc::default(), ..self.clone() }
    }

    /// Request counts of this client and its clones.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Outages of the store, as observed by this client and its clones.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Logs an outage of the store, unless it is logged already.
    fn report_outage(&self) {
        self.health.report(|| self.store.describe());
    }

    /// Host of this client.
    #[must_use]
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// Name of the store for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        self.store.describe()
    }

    /// Folder on a disk of this host that has the objects; none for every other store.
    #[must_use]
    pub fn local_folder(&self) -> Option<LocalFolder> {
        self.store.local_folder()
    }

    /// Current store time, from the dates of ordinary answers; none before the first answer.
    #[must_use]
    pub fn now(&self) -> Option<Now> {
        self.store.clock().now()
    }

    /// Current store time; an error before the first answer.
    pub fn known_now(&self) -> Result<Now> {
        self.now().ok_or_else(|| {
            let message = format!("the time of {} is not known yet; retry", self.describe());
            Error::new(Kind::Unavailable, message)
        })
    }

    /// Creates a new write id.
    #[must_use]
    pub fn write_id(&self) -> WriteId {
        self.host.random_name()
    }

    /// Reads an object.
    pub async fn get(&self, purpose: Purpose, key: &str) -> Result<Option<Object>> {
        keys::check_key(key)?;
        Ok(self.get_within(purpose, key, None, &mut self.retry_budget()).await?.found())
    }

    /// Reads an object, unless it still has the known version.
    pub async fn get_unless(&self, purpose: Purpose, key: &str, known: Option<&Version>) -> Result<Get> {
        keys::check_key(key)?;
        self.get_within(purpose, key, known, &mut self.retry_budget()).await
    }

    /// Lists one page.
    pub async fn list(&self, purpose: Purpose, list: &List) -> Result<Page> {
        keys::check_prefix(&list.prefix)?;
        let mut budget = self.retry_budget();
        loop {
            match self.list_once(purpose, list).await {
                Ok(page) => return Ok(page),
                Err(failure) => budget.after(failure).await?,
            }
        }
    }

    /// Lists all pages, one after another.
    pub fn pages(&self, purpose: Purpose, list: List) -> impl Stream<Item = Result<Page>> + Send + '_ {
        stream::try_unfold(Some(list), move |list| async move {
            let Some(list) = list else { return Ok(None) };
            let mut page = self.list(purpose, &list).await?;
            let next = page.next.take().map(|cursor| list.at(cursor));
            Ok(Some((page, next)))
        })
    }

    /// Removes an object that is never written again. Sent once and never retried: a late retry could remove an object
    /// that another writer has put there since. What remains is removed at the next sweep.
    pub async fn delete(&self, purpose: Purpose, key: &str) -> Result<()> {
        keys::check_key(key)?;
        let request = self.start_request(Verb::Delete, purpose, 0);
        let answer = self.in_time(self.store.delete(key)).await;
        request.finish(outcome(&answer, |()| Outcome::Ok), 0);
        self.record_health(RequestClass::Write, &answer);
        answer.map_err(|failure| {
            let in_doubt = may_have_happened(&failure);
            mark_if_unknown(failure.error, in_doubt)
        })
    }

    /// Writes an object whose content is derived from others, without a condition. Retried until it succeeds.
    pub async fn put_always(&self, purpose: Purpose, key: &str, body: Bytes) -> Result<Version> {
        check_put(key, &body)?;
        let mut budget = self.retry_budget();
        let mut in_doubt = false;
        loop {
            let failure = match self.put_once(purpose, key, &body, &When::Always).await {
                Ok(PutAnswer::Written(version)) => return Ok(version),
                Ok(PutAnswer::Refused) => refused(&*self.store, key),
                Err(failure) => failure,
            };
            // Any attempt may have been carried out, not only the last one.
            in_doubt |= may_have_happened(&failure);
            budget.after(failure).await.map_err(|error| mark_if_unknown(error, in_doubt))?;
        }
    }

    /// Writes an object with a conditional put. Its bytes must be unique (they contain a new write id).
    pub async fn put(&self, purpose: Purpose, key: &str, body: Bytes, when: &When) -> Result<PutOutcome> {
        self.put_if(purpose, key, body, when, &|_| false).await
    }

    /// Writes a hint without a condition. Sent once and not retried, because a late hint is worth little. Throttling is
    /// treated as success: it means that other writers are writing the same hint.
    pub async fn put_hint(&self, purpose: Purpose, key: &str, body: Bytes) -> Result<()> {
        check_put(key, &body)?;
        match self.put_once(purpose, key, &body, &When::Always).await {
            Err(failure) if failure.cause != Cause::Throttled => Err(failure.error),
            _ => Ok(()),
        }
    }

    /// Writes an object with a conditional put; `ours` recognises the write in later states of the object.
    pub async fn put_if(
        &self,
        purpose: Purpose,
        key: &str,
        body: Bytes,
        when: &When,
        ours: IsOurWrite<'_>,
    ) -> Result<PutOutcome> {
        check_put(key, &body)?;
        let mut budget = self.retry_budget();
        let mut in_doubt = false;
        loop {
            let answer = self.put_once(purpose, key, &body, when).await;
            let is_lost_unread =
                if answer.is_ok() { breaks("refused-is-lost") } else { breaks("lost-answer-is-lost-race") };
            let failure = match answer {
                Ok(PutAnswer::Written(version)) => return Ok(PutOutcome::Written(version)),
                Ok(PutAnswer::Refused) => refused(&*self.store, key),
                Err(failure) => failure,
            };
            in_doubt |= may_have_happened(&failure);
            let error = match failure.cause {
                Cause::Final(_) => return Err(mark_if_unknown(failure.error, in_doubt)),
                Cause::Throttled | Cause::Unreached => failure.error,
                Cause::Unanswered => {
                    let read = self.get_within(purpose, key, None, &mut budget).await;
                    match read.map_err(|error| mark_if_unknown(error, in_doubt))?.found() {
                        found if is_lost_unread && !when.holds(found.as_ref()) => {
                            return Ok(PutOutcome::Lost(found));
                        }
                        Some(object) if object.body == body => {
                            return Ok(PutOutcome::Written(object.version));
                        }
                        Some(object) if ours(&object.body) && !breaks("built-upon-is-lost") => {
                            return Ok(PutOutcome::Superseded(object));
                        }
                        found if when.holds(found.as_ref()) => failure.error,
                        found => return Ok(PutOutcome::Lost(found)),
                    }
                }
            };
            if !budget.pause().await {
                return Err(mark_if_unknown(error, in_doubt));
            }
        }
    }

    async fn get_within(
        &self,
        purpose: Purpose,
        key: &str,
        known: Option<&Version>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Get> {
        loop {
            let request = self.start_request(Verb::Get, purpose, 0);
            let answer = self.in_time(self.store.get(key, known)).await.map(bounded);
            let ended = outcome(&answer, |get| match get {
                Get::Found(_) => Outcome::Ok,
                Get::Missing => Outcome::NotFound,
                Get::Unchanged => Outcome::NotModified,
            });
            let received = if let Ok(Get::Found(object)) = &answer { object.body.len() } else { 0 };
            request.finish(ended, received);
            self.record_health(RequestClass::Read, &answer);
            match answer {
                Ok(answer) => return Ok(answer),
                Err(failure) => budget.after(failure).await?,
            }
        }
    }

    async fn list_once(&self, purpose: Purpose, list: &List) -> Answered<Page> {
        let request = self.start_request(Verb::List, purpose, 0);
        let answer = self.in_time(self.store.list(list)).await;
        request.finish(outcome(&answer, |_| Outcome::Ok), 0);
        self.record_health(RequestClass::Read, &answer);
        answer
    }

    async fn put_once(&self, purpose: Purpose, key: &str, body: &Bytes, when: &When) -> Answered<PutAnswer> {
        let request = self.start_request(Verb::Put, purpose, body.len());
        let answer = self.in_time(self.store.put(key, body.clone(), when)).await;
        let ended = outcome(&answer, |put| match put {
            PutAnswer::Written(_) => Outcome::Ok,
            PutAnswer::Refused => Outcome::Lost,
        });
        request.finish(ended, 0);
        self.record_health(RequestClass::Write, &answer);
        answer
    }

    fn retry_budget(&self) -> RetryBudget<'_> {
        self.retry_budget_for(RESPONSE_TIMEOUT)
    }

    /// Retry budget for an operation with slow answers: as many attempts as for others.
    fn retry_budget_for(&self, wait: Duration) -> RetryBudget<'_> {
        RetryBudget {
            client: self,
            started: self.host.instant(),
            limit: self.timeout + wait.saturating_sub(RESPONSE_TIMEOUT),
            pause: RETRY_PAUSE_MIN,
        }
    }

    /// Reports the outcome of a request to the store's health.
    fn record_health<T>(&self, class: RequestClass, answer: &Answered<T>) {
        match answer {
            Ok(_) if !self.health.is_failing() => {}
            Ok(_) => self.health.succeeded(class, || self.store.describe(), self.host.instant()),
            Err(failure) => {
                let now = self.host.instant();
                self.health.failed(class, failure, now);
                // Others are reported by the retry budget, which knows if it tries them again.
                let is_refused = matches!(failure.cause, Cause::Final(_));
                if is_refused && self.health.outage().is_some_and(|it| now.since(it.since) >= REPORT_AFTER) {
                    self.report_outage();
                }
            }
        }
    }

    fn start_request(&self, verb: Verb, purpose: Purpose, bytes: usize) -> InFlightRequest<'_> {
        let line = LedgerLine { verb, purpose, outcome: Outcome::Ambiguous };
        InFlightRequest { ledger: &self.ledger, line, bytes_sent: bytes, bytes_received: 0 }
    }

    /// Waits for one answer, with a timeout after which the answer counts as lost.
    async fn in_time<T>(&self, answer: impl Future<Output = Answered<T>> + Unpin) -> Answered<T> {
        self.within(RESPONSE_TIMEOUT, answer).await
    }

    async fn within<T>(
        &self,
        wait: Duration,
        answer: impl Future<Output = Answered<T>> + Unpin,
    ) -> Answered<T> {
        let late = self.host.sleep(wait);
        match futures::future::select(answer, late).await {
            futures::future::Either::Left((answer, _)) => answer,
            futures::future::Either::Right(_) => Err(Failure::transient(
                Cause::Unanswered,
                format!("{} did not answer within {} s", self.store.describe(), wait.as_secs()),
            )),
        }
    }
}

/// Request in flight. It is counted when this is dropped, even if its answer is no longer awaited, because it is
/// billed anyway.
struct InFlightRequest<'a> {
    ledger: &'a Ledger,
    line: LedgerLine,
    bytes_sent: usize,
    bytes_received: usize,
}

impl InFlightRequest<'_> {
    /// Records the outcome.
    fn finish(mut self, outcome: Outcome, bytes_received: usize) {
        self.line.outcome = outcome;
        self.bytes_received = bytes_received;
    }
}

impl Drop for InFlightRequest<'_> {
    fn drop(&mut self) {
        self.ledger.count(self.line, self.bytes_sent, self.bytes_received);
    }
}

type Answered<T> = std::result::Result<T, Failure>;

/// Rejects an invalid key, and a body that is too large to be read.
fn check_put(key: &str, body: &Bytes) -> Result<()> {
    keys::check_key(key)?;
    let bytes = body.len() as u64;
    if bytes > OBJECT_BYTES_MAX {
        return Err(Error::invalid(format!(
            "object `{key}` must be at most {OBJECT_BYTES_MAX} bytes, got {bytes}; store larger data as an artifact"
        )));
    }
    Ok(())
}

/// Replaces the bytes of an object that is too large by a placeholder.
fn bounded(get: Get) -> Get {
    match get {
        Get::Found(object) if object.body.len() as u64 > OBJECT_BYTES_MAX => {
            Get::Found(Object { body: oversize::placeholder(object.body.len() as u64).into(), ..object })
        }
        other => other,
    }
}

/// Failure of a refused put, which is resolved like a lost answer.
fn refused(store: &dyn Store, key: &str) -> Failure {
    let store = store.describe();
    Failure::transient(
        Cause::Unanswered,
        format!("{store} refuses to write `{key}` although the write's condition holds"),
    )
}

/// True if a failed write may have been carried out, or may still be. Even throttling counts, because it may come from
/// a proxy that gave up on the store.
fn may_have_happened(failure: &Failure) -> bool {
    matches!(failure.cause, Cause::Unanswered | Cause::Throttled)
}

fn mark_if_unknown(error: Error, in_doubt: bool) -> Error {
    if in_doubt { error.with_unknown_outcome() } else { error }
}

fn outcome<T>(answer: &Answered<T>, good: impl FnOnce(&T) -> Outcome) -> Outcome {
    match answer {
        Ok(answer) => good(answer),
        Err(failure) => match failure.cause {
            Cause::Throttled => Outcome::Throttled,
            Cause::Unanswered => Outcome::Ambiguous,
            Cause::Unreached | Cause::Final(_) => Outcome::Failed,
        },
    }
}

/// Pauses between attempts: doubling, with full jitter, until the operation has taken too long.
struct RetryBudget<'a> {
    client: &'a Client,
    started: Instant,
    limit: Duration,
    pause: Duration,
}

impl RetryBudget<'_> {
    /// Waits before the next attempt of a request that may be retried; fails if there should be none. Writers decide
    /// for themselves if the outcome is unknown.
    async fn after(&mut self, failure: Failure) -> Result<()> {
        let passes = !matches!(failure.cause, Cause::Final(_));
        if passes && self.pause().await { Ok(()) } else { Err(failure.error) }
    }

    /// Waits before the next attempt; false if there should be none.
    async fn pause(&mut self) -> bool {
        let host = &self.client.host;
        let spent = host.instant().since(self.started);
        if spent >= self.limit {
            return false;
        }
        let pause = host.random_below(self.pause);
        // An operation with a shorter limit returns the reason as an error.
        if spent + pause >= REPORT_AFTER && self.limit > REPORT_AFTER {
            self.client.report_outage();
        }
        host.sleep(pause).await;
        self.pause = (self.pause * 2).min(RETRY_PAUSE_MAX);
        true
    }
}
