//! Store in memory, for tests, the simulator and experiments. It ends with its process.

use bytes::Bytes;
use leasehold_core::{Kind, StoreTime};
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock::Clock;
use crate::host::Host;
use crate::page::Pager;
use crate::parts::{Uploads, range_of};
use crate::store::{
    Answer, Failure, Get, List, ListEntry, Object, Page, PartId, PutAnswer, Ranged, Store, UploadId, Version,
    When,
};

/// Store in memory, with an exact clock.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    read_time: TimeSource,
    objects: Mutex<Objects>,
}

#[derive(Clone)]
struct TimeSource(Arc<dyn Fn() -> StoreTime + Send + Sync>);

impl std::fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TimeSource")
    }
}

#[derive(Debug, Default)]
struct Objects {
    by_key: BTreeMap<String, Stored>,
    uploads: Uploads,
    writes: u64,
}

#[derive(Debug, Clone)]
struct Stored {
    object: Object,
    modified: StoreTime,
}

impl Objects {
    fn insert(&mut self, key: &str, body: Bytes, modified: StoreTime) -> Version {
        self.writes += 1;
        let version = Version::new(format!("m{}", self.writes));
        let object = Object { body, version: version.clone() };
        self.by_key.insert(key.to_owned(), Stored { object, modified });
        version
    }
}

impl MemoryStore {
    /// Creates an empty store whose time starts at the host's wall time and advances by its boot clock.
    pub fn new(host: &Arc<dyn Host>) -> Self {
        let (start, host) = (host.instant(), host.clone());
        Self::with_time(move || {
            let passed_ns = host.instant().boot_ns - start.boot_ns;
            StoreTime::from_millis((start.wall_ns + passed_ns).div_euclid(1_000_000))
        })
    }

    /// Creates an empty store whose time is read from `time`.
    pub fn with_time(time: impl Fn() -> StoreTime + Send + Sync + 'static) -> Self {
        let time = Arc::new(time);
        let read_time = TimeSource(time.clone());
        Self { clock: Clock::exact(move || time()), read_time, objects: Mutex::default() }
    }

    fn write(&self, key: &str, body: Bytes, when: &When) -> PutAnswer {
        let mut objects = self.objects();
        if !when.holds(objects.by_key.get(key).map(|stored| &stored.object)) {
            return PutAnswer::Refused;
        }
        PutAnswer::Written(objects.insert(key, body, (self.read_time.0)()))
    }

    fn end(&self, key: &str, upload: &UploadId, parts: &[PartId]) -> Result<Version, Failure> {
        let mut objects = self.objects();
        let body = objects.uploads.end(key, upload, parts)?;
        Ok(objects.insert(key, body, (self.read_time.0)()))
    }

    fn read(&self, key: &str, unless: Option<&Version>) -> Get {
        let objects = self.objects();
        match objects.by_key.get(key) {
            None => Get::Missing,
            Some(stored) if Some(&stored.object.version) == unless => Get::Unchanged,
            Some(stored) => Get::Found(stored.object.clone()),
        }
    }

    fn page(&self, list: &List) -> Result<Page, Failure> {
        let mut pager = Pager::new(list)
            .map_err(|error| Failure { cause: crate::store::Cause::Final(Kind::Invalid), error })?;
        let objects = self.objects();
        let from = (Bound::Included(pager.start().to_owned()), Bound::Unbounded);
        for (key, stored) in objects.by_key.range::<String, _>(from) {
            let size = stored.object.body.len() as u64;
            if !key.starts_with(&list.prefix) || pager.is_full() {
                break;
            }
            pager.offer(key, || ListEntry { key: key.clone(), modified: stored.modified, size });
        }
        Ok(pager.finish())
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        Box::pin(async move { Ok(self.read(key, unless)) })
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(async move { Ok(self.write(key, body, when)) })
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.objects().by_key.remove(key);
            Ok(())
        })
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        Box::pin(async move { self.page(list) })
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        unchanged: Option<&'a Version>,
    ) -> Answer<'a, Ranged> {
        Box::pin(async move {
            let objects = self.objects();
            range_of(key, objects.by_key.get(key).map(|stored| &stored.object), &range, unchanged)
        })
    }

    fn upload_begin<'a>(&'a self, key: &'a str, part_bytes: u64) -> Answer<'a, UploadId> {
        Box::pin(async move { Ok(self.objects().uploads.begin(key, part_bytes)) })
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        number: usize,
        body: Bytes,
    ) -> Answer<'a, PartId> {
        Box::pin(async move { self.objects().uploads.part(key, upload, number, body) })
    }

    fn upload_end<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        parts: Vec<PartId>,
    ) -> Answer<'a, Version> {
        Box::pin(async move { self.end(key, upload, &parts) })
    }

    fn upload_abort<'a>(&'a self, _key: &'a str, upload: &'a UploadId) -> Answer<'a, ()> {
        Box::pin(async move {
            self.objects().uploads.abort(upload);
            Ok(())
        })
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}
