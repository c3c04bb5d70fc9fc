//! Requests as the rest of Leasehold makes them: counted, bounded in time, retried where that is safe, and
//! with every lost answer settled.
//!
//! # Lost answers
//!
//! A put on condition can go unanswered and still have happened, or happen later. It is never blindly
//! repeated. One rule settles every refusal and every lost answer: **read the object back**, and then
//!
//! ```text
//!   what stands there            it means                                   so
//!   ───────────────────────────  ─────────────────────────────────────────  ─────────────────────────
//!   our own bytes                an earlier try of ours was carried out     Written
//!   something that was built     the same, but others have gone on since    Overtaken, with what was read
//!   on ours
//!   something that still fits    nothing happened (yet)                     send the very same put again
//!   the condition
//!   anything else                someone else was faster, and our put can   Lost, with what was read
//!                                never be carried out any more
//! ```
//!
//! Repeating the very same bytes under the very same condition is safe: at most one of the tries can be
//! carried out, and whichever it is, the others are refused and the read shows our bytes. "Our own bytes" are
//! known by the fresh write id in every record, or, for a record that others have rewritten since, by our
//! event in its history: that is what [`Ours`] is for.

mod large;

pub use large::Upload;

use bytes::Bytes;
use leasehold_core::limits::{
    ANSWER_WAIT, OBJECT_BYTES_MAX, OPERATION_WAIT, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN,
};
use leasehold_core::unread::unread;
use leasehold_core::{Error, Now, Result, WriteId, keys};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::health::{Health, REPORT_AFTER, RequestClass};
use crate::host::{Host, HostExt, Instant};
use crate::ledger::{Ledger, Line, Outcome, Purpose, Verb};
use crate::mutant::{Rule, breaks};
use crate::seam::{Cause, Failure, Get, List, Object, Page, PutAnswer, Store, Version, When};

/// A store with a ledger, patience and the rule for lost answers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    store: Arc<dyn Store>,
    host: Arc<dyn Host>,
    ledger: Arc<Ledger>,
    health: Arc<Health>,
    patience: Duration,
}

/// How a put on condition ended. What cannot be settled is an [`Error`] whose outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    /// It is there; this is its version.
    Written(Version),
    /// It was written, its answer was lost, and others have built upon it since: this is what stands there now.
    /// Its version is not that of our write, and what we have written may not hold any more.
    Overtaken(Object),
    /// It is not there and never will be; this is what was found instead.
    Lost(Option<Object>),
}

/// How a writer recognises its own write in what it reads back.
pub type Ours<'a> = &'a (dyn Fn(&[u8]) -> bool + Send + Sync);

impl Client {
    /// A client of this store on this host.
    pub fn new(store: Arc<dyn Store>, host: Arc<dyn Host>) -> Self {
        Self { store, host, ledger: Arc::default(), health: Arc::default(), patience: OPERATION_WAIT }
    }

    /// The same client, but one operation with all its retries takes at most about this long.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The same client for use on another runtime: the same ledger, but nothing that a busy runtime could hold up.
    #[must_use]
    pub fn apart(&self) -> Self {
        let store = self.store.apart().unwrap_or_else(|| self.store.clone());
        Self { store, ..self.clone() }
    }

    /// The same client with a ledger of its own.
    #[must_use]
    pub fn counted_apart(&self) -> Self {
        Self { ledger: Arc::default(), ..self.clone() }
    }

    /// Every request of this client and its clones.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Outages of the store, as this client and its clones have seen them.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Logs that the store fails, if it does and nobody has said so yet.
    pub fn report_outage(&self) {
        self.health.report(|| self.store.describe());
    }

    /// The host this client runs on.
    #[must_use]
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// The store as a person would name it.
    #[must_use]
    pub fn describe(&self) -> String {
        self.store.describe()
    }

    /// The present in the store's time, from answers that came anyway; nothing before the first one.
    #[must_use]
    pub fn now(&self) -> Option<Now> {
        self.store.clock().now()
    }

    /// A fresh name for a write.
    #[must_use]
    pub fn write_id(&self) -> WriteId {
        WriteId::from_random(self.host.random_bits())
    }

    /// Reads an object.
    pub async fn get(&self, purpose: Purpose, key: &str) -> Result<Option<Object>> {
        Ok(self.get_unless(purpose, key, None).await?.found())
    }

    /// Reads an object unless it is still the version that we know.
    pub async fn get_unless(&self, purpose: Purpose, key: &str, known: Option<&Version>) -> Result<Get> {
        keys::check_key(key)?;
        self.get_within(purpose, key, known, &mut self.patience()).await
    }

    /// Lists one page.
    pub async fn list(&self, purpose: Purpose, list: &List) -> Result<Page> {
        keys::check_prefix(&list.prefix)?;
        let mut patience = self.patience();
        loop {
            match self.list_once(purpose, list).await {
                Ok(page) => return Ok(page),
                Err(failure) => patience.after(failure).await?,
            }
        }
    }

    /// Removes an object that is never written again. Sent once and never repeated: a repetition that came
    /// late could hit what others have put there since. Whoever needs it gone sees to it at the next sweep.
    pub async fn delete(&self, purpose: Purpose, key: &str) -> Result<()> {
        keys::check_key(key)?;
        let sent = self.sent(Verb::Delete, purpose, 0);
        let answer = self.in_time(self.store.delete(key)).await;
        sent.ended(outcome(&answer, |()| Outcome::Ok), 0);
        self.note(RequestClass::Write, &answer);
        answer.map_err(|failure| {
            let in_doubt = may_have_happened(&failure);
            doubtful(failure.error, in_doubt)
        })
    }

    /// Writes an object whose content follows from elsewhere: no condition, repeated until it is there.
    pub async fn put_always(&self, purpose: Purpose, key: &str, body: Bytes) -> Result<Version> {
        check_put(key, &body)?;
        let mut patience = self.patience();
        let mut in_doubt = false;
        loop {
            let failure = match self.put_once(purpose, key, &body, &When::Always).await {
                Ok(PutAnswer::Written(version)) => return Ok(version),
                Ok(PutAnswer::Refused) => refused(&*self.store, key),
                Err(failure) => failure,
            };
            // Any try may have been carried out, not only the last one.
            in_doubt |= may_have_happened(&failure);
            patience.after(failure).await.map_err(|error| doubtful(error, in_doubt))?;
        }
    }

    /// Writes an object on condition; its bytes are unlike any other's (they hold a fresh write id).
    pub async fn put(&self, purpose: Purpose, key: &str, body: Bytes, when: &When) -> Result<Put> {
        self.put_knowing(purpose, key, body, when, &|_| false).await
    }

    /// Writes a hint whatever stands there: sent once and not repeated, because a hint that is late is worth little. A store
    /// that asks to slow down has it from others: that is as good.
    pub async fn put_hint(&self, purpose: Purpose, key: &str, body: Bytes) -> Result<()> {
        check_put(key, &body)?;
        match self.put_once(purpose, key, &body, &When::Always).await {
            Err(failure) if failure.cause != Cause::Throttled => Err(failure.error),
            _ => Ok(()),
        }
    }

    /// Writes an object on condition; `ours` recognises the write in what others have built on it.
    pub async fn put_knowing(
        &self,
        purpose: Purpose,
        key: &str,
        body: Bytes,
        when: &When,
        ours: Ours<'_>,
    ) -> Result<Put> {
        check_put(key, &body)?;
        let mut patience = self.patience();
        let mut in_doubt = false;
        loop {
            let answer = self.put_once(purpose, key, &body, when).await;
            let lost = if answer.is_ok() { Rule::RefusedIsLost } else { Rule::LostAnswerIsLostRace };
            let failure = match answer {
                Ok(PutAnswer::Written(version)) => return Ok(Put::Written(version)),
                Ok(PutAnswer::Refused) => refused(&*self.store, key),
                Err(failure) => failure,
            };
            in_doubt |= may_have_happened(&failure);
            let error = match failure.cause {
                Cause::Final(_) => return Err(doubtful(failure.error, in_doubt)),
                Cause::Throttled | Cause::Unreached => failure.error,
                Cause::Unanswered => {
                    let read = self.get_within(purpose, key, None, &mut patience).await;
                    match read.map_err(|error| doubtful(error, in_doubt))?.found() {
                        found if breaks(lost) && !when.holds(found.as_ref()) => return Ok(Put::Lost(found)),
                        Some(object) if object.body == body => return Ok(Put::Written(object.version)),
                        Some(object) if ours(&object.body) && !breaks(Rule::BuiltUponIsLost) => {
                            return Ok(Put::Overtaken(object));
                        }
                        found if when.holds(found.as_ref()) => failure.error,
                        found => return Ok(Put::Lost(found)),
                    }
                }
            };
            if !patience.pause().await {
                return Err(doubtful(error, in_doubt));
            }
        }
    }

    async fn get_within(
        &self,
        purpose: Purpose,
        key: &str,
        known: Option<&Version>,
        patience: &mut Patience<'_>,
    ) -> Result<Get> {
        loop {
            match self.get_once(purpose, key, known).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => patience.after(failure).await?,
            }
        }
    }

    async fn get_once(&self, purpose: Purpose, key: &str, known: Option<&Version>) -> Answered<Get> {
        let sent = self.sent(Verb::Get, purpose, 0);
        let answer = self.in_time(self.store.get(key, known)).await.map(bounded);
        let ended = outcome(&answer, |get| match get {
            Get::Found(_) => Outcome::Ok,
            Get::Missing => Outcome::NotFound,
            Get::Unchanged => Outcome::NotModified,
        });
        let received = if let Ok(Get::Found(object)) = &answer { object.body.len() } else { 0 };
        sent.ended(ended, received);
        self.note(RequestClass::Read, &answer);
        answer
    }

    async fn list_once(&self, purpose: Purpose, list: &List) -> Answered<Page> {
        let sent = self.sent(Verb::List, purpose, 0);
        let answer = self.in_time(self.store.list(list)).await;
        sent.ended(outcome(&answer, |_| Outcome::Ok), 0);
        self.note(RequestClass::Read, &answer);
        answer
    }

    async fn put_once(&self, purpose: Purpose, key: &str, body: &Bytes, when: &When) -> Answered<PutAnswer> {
        let sent = self.sent(Verb::Put, purpose, body.len());
        let answer = self.in_time(self.store.put(key, body.clone(), when)).await;
        let ended = outcome(&answer, |put| match put {
            PutAnswer::Written(_) => Outcome::Ok,
            PutAnswer::Refused => Outcome::Lost,
        });
        sent.ended(ended, 0);
        self.note(RequestClass::Write, &answer);
        answer
    }

    fn patience(&self) -> Patience<'_> {
        self.patience_for(ANSWER_WAIT)
    }

    /// Patience for an operation with an answer that may take longer than most: as many tries as others have.
    fn patience_for(&self, wait: Duration) -> Patience<'_> {
        Patience {
            client: self,
            started: self.host.instant(),
            limit: self.patience + wait.saturating_sub(ANSWER_WAIT),
            pause: RETRY_PAUSE_MIN,
        }
    }

    /// Tells the health of the store how a request ended.
    fn note<T>(&self, class: RequestClass, answer: &Answered<T>) {
        match answer {
            Ok(_) if !self.health.is_failing() => {}
            Ok(_) => self.health.succeeded(class, || self.store.describe(), self.host.instant()),
            Err(failure) => self.health.failed(class, failure, self.host.instant()),
        }
    }

    fn sent(&self, verb: Verb, purpose: Purpose, bytes: usize) -> UnderWay<'_> {
        let line = Line { verb, purpose, outcome: Outcome::Ambiguous };
        UnderWay { ledger: &self.ledger, line, bytes_sent: bytes, bytes_received: 0 }
    }

    /// Waits for one answer, but not for ever; whoever gives up here treats the answer as lost.
    async fn in_time<T>(&self, answer: impl Future<Output = Answered<T>> + Unpin) -> Answered<T> {
        self.within(ANSWER_WAIT, answer).await
    }

    async fn within<T>(
        &self,
        wait: Duration,
        answer: impl Future<Output = Answered<T>> + Unpin,
    ) -> Answered<T> {
        let late = self.host.sleep(wait);
        match futures::future::select(answer, late).await {
            futures::future::Either::Left((answer, _)) => answer,
            futures::future::Either::Right(_) => Err(Failure::passing(
                Cause::Unanswered,
                format!("{} did not answer within {} s", self.store.describe(), wait.as_secs()),
            )),
        }
    }
}

/// A request that is under way. It is counted when this is dropped: also if nobody waits for its answer any more, because
/// it is paid for all the same.
struct UnderWay<'a> {
    ledger: &'a Ledger,
    line: Line,
    bytes_sent: usize,
    bytes_received: usize,
}

impl UnderWay<'_> {
    /// The answer has come, or will not.
    fn ended(mut self, outcome: Outcome, bytes_received: usize) {
        self.line.outcome = outcome;
        self.bytes_received = bytes_received;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.ledger.count(self.line, self.bytes_sent, self.bytes_received);
    }
}

type Answered<T> = std::result::Result<T, Failure>;

/// Refuses what could not be sent, or not be read again.
fn check_put(key: &str, body: &Bytes) -> Result<()> {
    keys::check_key(key)?;
    let bytes = body.len() as u64;
    if bytes > OBJECT_BYTES_MAX {
        return Err(Error::invalid(format!(
            "`{key}` would have {bytes} bytes, and at most {OBJECT_BYTES_MAX} are read; use an artifact"
        )));
    }
    Ok(())
}

/// Keeps the bytes of an object that is too large from everyone, whatever the store.
fn bounded(get: Get) -> Get {
    match get {
        Get::Found(object) if object.body.len() as u64 > OBJECT_BYTES_MAX => {
            Get::Found(Object { body: unread(object.body.len() as u64).into(), ..object })
        }
        other => other,
    }
}

/// A refusal is settled in the same way as a lost answer.
fn refused(store: &dyn Store, key: &str) -> Failure {
    let store = store.describe();
    Failure::passing(
        Cause::Unanswered,
        format!("{store} refuses to write `{key}` although its condition holds"),
    )
}

/// Whether a write that failed so may have been carried out, or may still be. Even "slow down" may come from
/// something that stands before the store and gave up on it.
fn may_have_happened(failure: &Failure) -> bool {
    matches!(failure.cause, Cause::Unanswered | Cause::Throttled)
}

fn doubtful(error: Error, in_doubt: bool) -> Error {
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

/// Pauses between tries: doubling, with full jitter, until the operation has taken too long.
struct Patience<'a> {
    client: &'a Client,
    started: Instant,
    limit: Duration,
    pause: Duration,
}

impl Patience<'_> {
    /// Waits before the next try of a request that may be repeated; fails when there should be none. Whether
    /// that leaves anything in doubt is for those to say who write.
    async fn after(&mut self, failure: Failure) -> Result<()> {
        let passes = !matches!(failure.cause, Cause::Final(_));
        if passes && self.pause().await { Ok(()) } else { Err(failure.error) }
    }

    /// Waits before the next try; false when there should be none.
    async fn pause(&mut self) -> bool {
        let host = &self.client.host;
        let spent = host.instant().since(self.started);
        if spent >= self.limit {
            return false;
        }
        let pause = host.random_below(self.pause);
        // Whoever gives up so soon tells the reason as an error.
        if spent + pause >= REPORT_AFTER && self.limit > REPORT_AFTER {
            self.client.report_outage();
        }
        host.sleep(pause).await;
        self.pause = (self.pause * 2).min(RETRY_PAUSE_MAX);
        true
    }
}
