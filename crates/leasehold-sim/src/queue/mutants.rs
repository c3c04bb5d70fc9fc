//! Stores that break one rule of the queue behind its back: the checks must notice each of them.

use bytes::Bytes;
use leasehold_store::clock::Clock;
use leasehold_store::seam::{Answer, Cause, Get, List, Object, Page, PutAnswer, Store, Version, When};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::raw::{Pointer, task_id};

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A claim writes no lease entry.
    NoLeaseEntry,
    /// What is to run again gets no ready entry.
    NoEntryAgain,
    /// A submit writes no entry.
    NoEntryAtSubmit,
    /// A task is written whatever stands there.
    NoCondition,
    /// A task is created whatever stands there.
    NoAbsence,
    /// A submit is acknowledged before its write, which never happens.
    AcknowledgedEarly,
    /// No answer is taken for a good one.
    LostIsWritten,
    /// A refusal is taken for success.
    RefusedIsWritten,
    /// Entries are removed before the task moves on.
    RemovedEarly,
    /// A claim is taken for one that has run out.
    LeaseIgnored,
    /// A running task is taken for a waiting one.
    RunningIsPending,
    /// The epoch does not grow.
    EpochStands,
    /// The history is cut.
    HistoryCut,
    /// The bell is never rung. Nothing but latency suffers (promise P9).
    NoRing,
}

impl Broken {
    /// Every one.
    pub const ALL: [Broken; 13] = [
        Self::NoLeaseEntry,
        Self::NoEntryAgain,
        Self::NoEntryAtSubmit,
        Self::NoCondition,
        Self::NoAbsence,
        Self::AcknowledgedEarly,
        Self::LostIsWritten,
        Self::RefusedIsWritten,
        Self::RemovedEarly,
        Self::LeaseIgnored,
        Self::RunningIsPending,
        Self::EpochStands,
        Self::HistoryCut,
    ];

    pub(super) fn wrap(self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(BrokenStore { broken: self, store, seen: Mutex::default() })
    }

    fn drops(self, key: &str, when: &When) -> bool {
        if key == leasehold_core::keys::BELL {
            return self == Self::NoRing;
        }
        let Some(pointer) = Pointer::read(key) else {
            return self == Self::AcknowledgedEarly && task_id(key).is_some() && *when == When::Absent;
        };
        match self {
            Self::NoLeaseEntry => pointer.index == "leases",
            Self::NoEntryAgain => pointer.index == "ready" && pointer.rev > 1,
            Self::NoEntryAtSubmit => pointer.index == "ready" && pointer.rev == 1,
            _ => false,
        }
    }
}

#[derive(Debug)]
struct BrokenStore {
    broken: Broken,
    store: Arc<dyn Store>,
    /// Entries that were listed.
    seen: Mutex<BTreeSet<String>>,
}

impl BrokenStore {
    /// The record as a mistaken reader sees it, or as a mistaken writer writes it.
    fn mistaken(&self, body: &Bytes, reading: bool) -> Bytes {
        let Ok(mut task) = serde_json::from_slice::<Value>(body) else { return body.clone() };
        let is_running = task["status"] == "running";
        match (self.broken, reading) {
            (Broken::LeaseIgnored, true) if is_running => {
                task["lease_expires_at"] = json!("2020-01-01T00:00:00.000Z");
            }
            (Broken::RunningIsPending, true) if is_running => {
                (task["status"], task["available_at"]) = (json!("pending"), task["created_at"].clone());
            }
            (Broken::EpochStands, false) => task["epoch"] = json!(0),
            (Broken::HistoryCut, false) => {
                if let Some(history) = task["history"].as_array_mut() {
                    history.drain(..history.len().saturating_sub(1));
                }
            }
            _ => return body.clone(),
        }
        task.to_string().into()
    }

    async fn remove_early(&self, id: &str) {
        let of_task = |key: &String| Pointer::read(key).is_some_and(|pointer| pointer.id == id);
        let seen: Vec<_> = self.seen().iter().filter(|key| of_task(key)).cloned().collect();
        for key in seen {
            // Whether it succeeds makes no difference to a mistake.
            drop(self.store.delete(&key).await);
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for BrokenStore {
    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        Box::pin(async move {
            let get = self.store.get(key, unless).await?;
            Ok(match get {
                Get::Found(Object { body, version }) if task_id(key).is_some() => {
                    Get::Found(Object { body: self.mistaken(&body, true), version })
                }
                other => other,
            })
        })
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(async move {
            let pretended = || PutAnswer::Written(Version::new("pretended"));
            if self.broken.drops(key, when) {
                return Ok(pretended());
            }
            let Some(id) = task_id(key) else { return self.store.put(key, body, when).await };
            if self.broken == Broken::RemovedEarly && *when != When::Absent {
                self.remove_early(id).await;
            }
            let when = match (self.broken, when) {
                (Broken::NoCondition, When::Unchanged(_)) | (Broken::NoAbsence, When::Absent) => {
                    &When::Always
                }
                _ => when,
            };
            match self.store.put(key, self.mistaken(&body, false), when).await {
                Ok(PutAnswer::Refused) if self.broken == Broken::RefusedIsWritten => Ok(pretended()),
                Err(failure)
                    if self.broken == Broken::LostIsWritten && failure.cause == Cause::Unanswered =>
                {
                    Ok(pretended())
                }
                other => other,
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        self.store.delete(key)
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        Box::pin(async move {
            let page = self.store.list(list).await?;
            self.seen().extend(page.entries.iter().map(|entry| entry.key.clone()));
            Ok(page)
        })
    }

    fn clock(&self) -> &Clock {
        self.store.clock()
    }

    fn describe(&self) -> String {
        self.store.describe()
    }
}
