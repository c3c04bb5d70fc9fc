//! The bucket's true state: one bucket that all processes reach, through a network that loses requests.
//!
//! Every operation happens at one instant. The bucket's time is virtual time plus an offset that can jump.
//! Each change is kept until the world has checked it.

use bytes::Bytes;
use leasehold_core::{Kind, StoreTime};
use leasehold_store::page::Pager;
use leasehold_store::parts::{Uploads, range_of};
use leasehold_store::store::{
    Cause, Failure, Get, List, ListEntry, Object, Page, PartId, PutAnswer, Ranged, UploadId, Version, When,
};
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::executor::Executor;
use crate::host::{EPOCH_NS, nanos};

/// All objects of the bucket, in byte order.
pub type BucketObjects = BTreeMap<String, StoredObject>;

/// An object, and when it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Bytes and version.
    pub object: Object,
    /// Store's time of the write.
    pub modified: StoreTime,
}

/// A change of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketChange {
    /// Key of the object.
    pub key: String,
    /// Object before the change.
    pub before: Option<StoredObject>,
    /// Object after the change.
    pub after: Option<StoredObject>,
}

/// The bucket.
#[derive(Debug)]
pub struct SimBucket {
    executor: Executor,
    state: Mutex<State>,
    /// Separate from the state, so that a function that reads all objects may also read the time.
    time: Mutex<Time>,
}

#[derive(Debug, Default)]
struct State {
    objects: BucketObjects,
    uploads: Uploads,
    writes: u64,
    changes: Vec<BucketChange>,
}

impl State {
    fn write(&mut self, key: &str, body: Bytes, modified: StoreTime) -> Version {
        self.writes += 1;
        let version = Version::new(format!("v{}", self.writes));
        let after = StoredObject { object: Object { body, version: version.clone() }, modified };
        let before = self.objects.insert(key.to_owned(), after.clone());
        self.changes.push(BucketChange { key: key.to_owned(), before, after: Some(after) });
        version
    }
}

#[derive(Debug, Default)]
struct Time {
    /// Offset of the store's time from virtual time, beside the epoch.
    offset_ns: i64,
    /// Time of the last jump of the offset.
    jumped_at: Option<Duration>,
}

impl SimBucket {
    pub(crate) fn new(executor: Executor) -> Self {
        Self { executor, state: Mutex::default(), time: Mutex::default() }
    }

    /// Returns the store's exact time, in nanoseconds since 1970.
    #[must_use]
    pub fn time_ns(&self) -> i64 {
        EPOCH_NS + nanos(self.executor.now()) + self.time().offset_ns
    }

    /// Returns the virtual time of the last jump of the store's time.
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

    /// Returns a copy of all objects.
    #[must_use]
    pub fn objects(&self) -> BucketObjects {
        self.state().objects.clone()
    }

    /// Calls a function with all objects, without a copy.
    pub fn with_objects<R>(&self, read: impl FnOnce(&BucketObjects) -> R) -> R {
        read(&self.state().objects)
    }

    /// Returns the changes since the last call.
    pub(crate) fn take_changes(&self) -> Vec<BucketChange> {
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
            state.changes.push(BucketChange { key: key.to_owned(), before: Some(before), after: None });
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
            pager.offer(key, || ListEntry { key: key.clone(), modified: stored.modified, size });
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
