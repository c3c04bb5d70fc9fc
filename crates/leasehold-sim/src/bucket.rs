//! The truth: one bucket that every process talks to, through a network that loses things.
//!
//! Whatever is asked of it happens at one instant. Its time is virtual time plus an offset that can jump; each
//! change is kept until the world has looked at it.

use bytes::Bytes;
use leasehold_core::{Kind, StoreTime};
use leasehold_store::page::Pager;
use leasehold_store::parts::{Uploads, range_of};
use leasehold_store::seam::{
    Cause, Entry, Failure, Get, List, Object, Page, PartId, PutAnswer, Ranged, UploadId, Version, When,
};
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::executor::Executor;
use crate::host::{EPOCH_NS, nanos};

/// Everything in the bucket, in byte order.
pub type Objects = BTreeMap<String, Stored>;

/// An object, and when it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its bytes and its version.
    pub object: Object,
    /// The store's time when it was written.
    pub modified: StoreTime,
}

/// Something that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What changed.
    pub key: String,
    /// What stood there before.
    pub before: Option<Stored>,
    /// What stands there since.
    pub after: Option<Stored>,
}

/// The bucket.
#[derive(Debug)]
pub struct SimBucket {
    executor: Executor,
    state: Mutex<State>,
    /// Apart from the state, so that a look at everything may ask for the time.
    time: Mutex<Time>,
}

#[derive(Debug, Default)]
struct State {
    objects: Objects,
    uploads: Uploads,
    writes: u64,
    changes: Vec<Change>,
}

impl State {
    fn write(&mut self, key: &str, body: Bytes, modified: StoreTime) -> Version {
        self.writes += 1;
        let version = Version::new(format!("v{}", self.writes));
        let after = Stored { object: Object { body, version: version.clone() }, modified };
        let before = self.objects.insert(key.to_owned(), after.clone());
        self.changes.push(Change { key: key.to_owned(), before, after: Some(after) });
        version
    }
}

#[derive(Debug, Default)]
struct Time {
    /// How far the store's time is ahead of virtual time, beside the epoch.
    offset_ns: i64,
    /// When the offset last jumped.
    jumped_at: Option<Duration>,
}

impl SimBucket {
    pub(crate) fn new(executor: Executor) -> Self {
        Self { executor, state: Mutex::default(), time: Mutex::default() }
    }

    /// The store's time, exactly, in nanoseconds since 1970.
    #[must_use]
    pub fn time_ns(&self) -> i64 {
        EPOCH_NS + nanos(self.executor.now()) + self.time().offset_ns
    }

    /// When, in virtual time, the store's time last jumped.
    #[must_use]
    pub fn jumped_at(&self) -> Option<Duration> {
        self.time().jumped_at
    }

    pub(crate) fn jump_time(&self, by_ns: i64) {
        let now = self.executor.now();
        let mut time = self.time();
        time.offset_ns += by_ns;
        time.jumped_at = Some(now);
    }

    /// Everything as it stands.
    #[must_use]
    pub fn objects(&self) -> Objects {
        self.state().objects.clone()
    }

    /// Looks at everything as it stands, without a copy.
    pub fn look<R>(&self, look: impl FnOnce(&Objects) -> R) -> R {
        look(&self.state().objects)
    }

    /// What changed since this was last asked.
    pub(crate) fn take_changes(&self) -> Vec<Change> {
        std::mem::take(&mut self.state().changes)
    }

    pub(crate) fn get(&self, key: &str, unless: Option<&Version>) -> Get {
        match self.state().objects.get(key) {
            None => Get::Missing,
            Some(stored) if Some(&stored.object.version) == unless => Get::Unchanged,
            Some(stored) => Get::Found(stored.object.clone()),
        }
    }

    pub(crate) fn put(&self, key: &str, body: Bytes, when: &When) -> PutAnswer {
        let modified = self.stamp();
        let mut state = self.state();
        if !when.holds(state.objects.get(key).map(|stored| &stored.object)) {
            return PutAnswer::Refused;
        }
        PutAnswer::Written(state.write(key, body, modified))
    }

    pub(crate) fn get_range(
        &self,
        key: &str,
        range: &Range<u64>,
        unchanged: Option<&Version>,
    ) -> Result<Ranged, Failure> {
        range_of(key, self.state().objects.get(key).map(|stored| &stored.object), range, unchanged)
    }

    pub(crate) fn upload_begin(&self, key: &str, part_bytes: u64) -> UploadId {
        self.state().uploads.begin(key, part_bytes)
    }

    pub(crate) fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: usize,
        body: Bytes,
    ) -> Result<PartId, Failure> {
        self.state().uploads.part(key, upload, number, body)
    }

    pub(crate) fn upload_end(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[PartId],
    ) -> Result<Version, Failure> {
        let modified = self.stamp();
        let mut state = self.state();
        let body = state.uploads.end(key, upload, parts)?;
        Ok(state.write(key, body, modified))
    }

    pub(crate) fn upload_abort(&self, upload: &UploadId) {
        self.state().uploads.abort(upload);
    }

    pub(crate) fn delete(&self, key: &str) {
        let mut state = self.state();
        if let Some(before) = state.objects.remove(key) {
            state.changes.push(Change { key: key.to_owned(), before: Some(before), after: None });
        }
    }

    pub(crate) fn list(&self, list: &List) -> Result<Page, Failure> {
        let mut pager =
            Pager::new(list).map_err(|error| Failure { cause: Cause::Final(Kind::Invalid), error })?;
        let from = (Bound::Included(pager.start().to_owned()), Bound::Unbounded);
        for (key, stored) in self.state().objects.range::<String, _>(from) {
            if !key.starts_with(&list.prefix) || pager.is_full() {
                break;
            }
            let size = stored.object.body.len() as u64;
            pager.offer(key, || Entry { key: key.clone(), modified: stored.modified, size });
        }
        Ok(pager.finish())
    }

    fn stamp(&self) -> StoreTime {
        StoreTime::from_millis(self.time_ns().div_euclid(1_000_000))
    }

    fn time(&self) -> MutexGuard<'_, Time> {
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
