//! Stores that break one rule without the code's knowledge. The checks must detect each of them.

use bytes::Bytes;
use leasehold_core::lease::RELEASED_BYTES;
use leasehold_core::{StoreTime, keys};
use leasehold_store::clock::Clock;
use leasehold_store::store::{Answer, Cause, Get, List, Object, Page, PutAnswer, Store, Version, When};
use leasehold_store::{DelegatingStore, Host};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::host::SimHost;
use crate::queue::raw::{RawEntry, task_id};

/// Rule that a store breaks; [`ALL`](super::ALL) describes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are described in the list of all mutants")]
pub enum BrokenRule {
    NoCondition,
    NoAbsence,
    KeyTakenAnyway,
    AcknowledgedEarly,
    LostIsWritten,
    RefusedIsWritten,
    LibraryRetries,
    NoEntryAtSubmit,
    NoLeaseEntry,
    NoEntryAgain,
    TaskFirst,
    RemovedEarly,
    NoGraceForNewEntries,
    NoFenceAtSweep,
    NoFenceAtSubmit,
    LeaseIgnored,
    RunningIsPending,
    LocalClock,
    EpochNotRaised,
    HistoryCut,
    LeaseReclaimed,
    LeaseDeleted,
    LeaseEpochNotRaised,
    LeaseByName,
    PurgedUnmarked,
    PurgedAtOnce,
    NoRing,
}

impl BrokenRule {
    pub(super) fn wrap(self, store: Arc<dyn Store>, host: &Arc<SimHost>) -> Arc<dyn Store> {
        let host = host.clone();
        let local = move || StoreTime::from_millis(host.instant().wall_ns.div_euclid(1_000_000));
        let clock = (self == Self::LocalClock).then(|| Clock::exact(local));
        Arc::new(BrokenStore { broken: self, store, clock, process_history: Mutex::default() })
    }

    /// Returns whether the entry or bell at `key` is never written.
    fn drops_write(self, key: &str) -> bool {
        let Some(entry) = RawEntry::read(key) else { return self == Self::NoRing && key == keys::BELL };
        let is_ready = entry.index == "ready";
        match self {
            Self::NoLeaseEntry => !is_ready,
            Self::NoEntryAgain => is_ready && entry.rev > 1,
            Self::NoEntryAtSubmit => is_ready && entry.rev == 1,
            _ => false,
        }
    }
}

/// Requests and answers of one process that later violations depend on.
#[derive(Debug, Default)]
struct ProcessHistory {
    /// Listed entries.
    listed: BTreeSet<String>,
    /// Tasks whose first entry this process has written: it submits them.
    submitting: BTreeSet<String>,
    /// Entries that are held back until their task is written, by its id.
    held_back: BTreeMap<String, String>,
    /// Versions of leases that this process has written.
    leases: BTreeSet<String>,
    /// Its own instance under each name.
    instances: BTreeMap<String, Value>,
}

#[derive(Debug)]
struct BrokenStore {
    broken: BrokenRule,
    store: Arc<dyn Store>,
    clock: Option<Clock>,
    process_history: Mutex<ProcessHistory>,
}

fn fake_answer() -> PutAnswer {
    PutAnswer::Written(Version::new("pretended"))
}

fn is_lease(key: &str) -> bool {
    key.starts_with("shard-leases/") || key.starts_with("workers/")
}

impl BrokenStore {
    /// Returns the record as a broken reader reads it, or as a broken writer writes it.
    fn altered_record(&self, body: &Bytes, reading: bool) -> Bytes {
        let Ok(mut task) = serde_json::from_slice::<Value>(body) else { return body.clone() };
        let (is_running, long_ago) = (task["status"] == "running", json!("2020-01-01T00:00:00.000Z"));
        match (self.broken, reading) {
            (BrokenRule::LeaseIgnored, true) if is_running => task["lease_expires_at"] = long_ago,
            (BrokenRule::RunningIsPending, true) if is_running => {
                (task["status"], task["available_at"]) = (json!("pending"), task["created_at"].clone());
            }
            (BrokenRule::PurgedAtOnce, true) if task["status"] == "purged" => task["finished_at"] = long_ago,
            (BrokenRule::EpochNotRaised, false) => task["epoch"] = json!(0),
            (BrokenRule::HistoryCut, false) => {
                if let Some(history) = task["history"].as_array_mut() {
                    history.drain(..history.len().saturating_sub(1));
                }
            }
            _ => return body.clone(),
        }
        task.to_string().into()
    }

    /// Returns a lease held by another process of the same name as if it were this process's own.
    fn altered_lease(&self, body: &Bytes) -> Bytes {
        let Ok(mut lease) = serde_json::from_slice::<Value>(body) else { return body.clone() };
        let name = lease["worker_id"].as_str().unwrap_or_default().to_owned();
        match self.process_history().instances.get(&name) {
            Some(own) if lease["instance"] != *own => lease["instance"] = own.clone(),
            _ => return body.clone(),
        }
        lease.to_string().into()
    }

    async fn put_lease(
        &self,
        key: &str,
        body: Bytes,
        when: &When,
    ) -> Result<PutAnswer, leasehold_store::Failure> {
        let Ok(mut lease) = serde_json::from_slice::<Value>(&body) else {
            return self.store.put(key, body, when).await;
        };
        let name = lease["worker_id"].as_str().unwrap_or_default().to_owned();
        self.process_history().instances.insert(name, lease["instance"].clone());
        let is_taken_over = matches!(when, When::Unchanged(version) if !self.process_history().leases.contains(version.as_str()));
        let is_released = body.len() as u64 >= RELEASED_BYTES;
        let put = match self.broken {
            BrokenRule::LeaseDeleted if is_released => self.store.delete(key).await.map(|()| fake_answer()),
            BrokenRule::LeaseReclaimed if is_taken_over => {
                self.store.delete(key).await?;
                self.store.put(key, body, &When::Absent).await
            }
            BrokenRule::LeaseEpochNotRaised => {
                lease["epoch"] = json!(1);
                self.store.put(key, lease.to_string().into(), when).await
            }
            _ => self.store.put(key, body, when).await,
        };
        if let Ok(PutAnswer::Written(version)) = &put {
            self.process_history().leases.insert(version.as_str().to_owned());
        }
        put
    }

    async fn put_task(
        &self,
        id: &str,
        key: &str,
        body: Bytes,
        when: &When,
    ) -> Result<PutAnswer, leasehold_store::Failure> {
        let task = serde_json::from_slice::<Value>(&body).unwrap_or_default();
        let is_own = self.process_history().submitting.contains(id);
        let is_tombstone = task["history"][0]["event"] == "abandon" && *when == When::Absent;
        match self.broken {
            BrokenRule::AcknowledgedEarly if *when == When::Absent => return Ok(fake_answer()),
            BrokenRule::NoFenceAtSubmit if is_tombstone && is_own => return Ok(fake_answer()),
            BrokenRule::NoFenceAtSweep if is_tombstone && !is_own => return Ok(fake_answer()),
            BrokenRule::PurgedUnmarked if task["status"] == "purged" => {
                return self.store.delete(key).await.map(|()| fake_answer());
            }
            BrokenRule::RemovedEarly if *when != When::Absent => self.remove_listed(id).await,
            _ => {}
        }
        let when = match (self.broken, when) {
            (BrokenRule::NoCondition, When::Unchanged(_)) | (BrokenRule::NoAbsence, When::Absent) => {
                &When::Always
            }
            _ => when,
        };
        let put = self.store.put(key, self.altered_record(&body, false), when).await;
        let held_back = self.process_history().held_back.remove(id);
        if let Some(entry) = held_back {
            // The entry is late in any case, so its outcome does not matter.
            drop(self.store.put(&entry, Bytes::new(), &When::Always).await);
        }
        match put {
            Ok(PutAnswer::Refused) if self.broken == BrokenRule::RefusedIsWritten => Ok(fake_answer()),
            Err(lost) if self.broken == BrokenRule::LostIsWritten && lost.cause == Cause::Unanswered => {
                Ok(fake_answer())
            }
            other => other,
        }
    }

    async fn remove_listed(&self, id: &str) {
        let of_task = |key: &&String| RawEntry::read(key).is_some_and(|entry| entry.id == id);
        let listed: Vec<_> = self.process_history().listed.iter().filter(of_task).cloned().collect();
        for key in listed {
            drop(self.store.delete(&key).await);
        }
    }

    fn process_history(&self) -> MutexGuard<'_, ProcessHistory> {
        self.process_history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DelegatingStore for BrokenStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        Box::pin(async move {
            let get = self.store.get(key, unless).await?;
            Ok(match (get, task_id(key)) {
                (Get::Found(Object { body, version }), Some(_)) => {
                    Get::Found(Object { body: self.altered_record(&body, true), version })
                }
                (Get::Found(Object { body, version }), None)
                    if self.broken == BrokenRule::LeaseByName && is_lease(key) =>
                {
                    Get::Found(Object { body: self.altered_lease(&body), version })
                }
                (Get::Missing, Some(id)) if self.broken == BrokenRule::NoGraceForNewEntries => {
                    self.remove_listed(id).await;
                    Get::Missing
                }
                (get, _) => get,
            })
        })
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(async move {
            if is_lease(key) {
                return self.put_lease(key, body, when).await;
            }
            if let Some(id) = task_id(key) {
                return self.put_task(id, key, body, when).await;
            }
            if self.broken.drops_write(key) {
                return Ok(fake_answer());
            }
            if let Some(RawEntry { id, rev, .. }) = RawEntry::read(key).filter(|entry| entry.index == "ready")
            {
                if rev == 1 {
                    self.process_history().submitting.insert(id);
                } else if self.broken == BrokenRule::TaskFirst {
                    self.process_history().held_back.insert(id, key.to_owned());
                    return Ok(fake_answer());
                }
            }
            let is_key = self.broken == BrokenRule::KeyTakenAnyway && key.starts_with(keys::UNIQUE);
            let put = self.store.put(key, body.clone(), if is_key { &When::Always } else { when }).await;
            if put.is_err() && self.broken == BrokenRule::LibraryRetries {
                return self.store.put(key, body, when).await;
            }
            put
        })
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        Box::pin(async move {
            let page = self.store.list(list).await?;
            self.process_history().listed.extend(page.entries.iter().map(|entry| entry.key.clone()));
            Ok(page)
        })
    }

    fn clock(&self) -> &Clock {
        self.clock.as_ref().unwrap_or_else(|| self.store.clock())
    }
}
