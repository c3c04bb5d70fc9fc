//! Memory store, and deliberately broken stores that the suite must detect.

use bytes::Bytes;
use leasehold_store::store::Answer;
use leasehold_store::testing::conformance::{Suite, SuiteOptions};
use leasehold_store::{
    DelegatingStore, Get, Host, List, MemoryStore, Page, PartId, PutAnswer, Ranged, Store, SystemHost,
    UploadId, Version, When,
};
use std::ops::Range;
use std::sync::Arc;

fn memory() -> MemoryStore {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    MemoryStore::new(&host)
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_conforms() {
    Suite::new(Arc::new(memory()), SuiteOptions::default()).run().await.unwrap();
}

/// Store with one fault.
#[derive(Debug)]
struct Broken {
    inner: MemoryStore,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// Compares first and writes a moment later, as naive servers do.
    NotAtomic,
    IgnoresAbsent,
    IgnoresUnchanged,
    NeverSaysUnchanged,
    ListsLate,
    ListsUnordered,
    IgnoresStartAfter,
    RemovesNothing,
    /// Takes the end of a range for its last byte.
    ReadsOneMore,
    NeverSaysChanged,
    KeepsWhatWasGivenUp,
    /// Its bytes are zeros.
    SpoilsTheFirstPart,
}

impl DelegatingStore for Broken {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        let unless = unless.filter(|_| self.fault != Fault::NeverSaysUnchanged);
        self.inner.get(key, unless)
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(async move {
            let ignored = match when {
                When::Absent => self.fault == Fault::IgnoresAbsent,
                When::Unchanged(_) => self.fault == Fault::IgnoresUnchanged,
                When::Always => false,
            };
            if ignored {
                return self.inner.put(key, body, &When::Always).await;
            }
            if self.fault == Fault::NotAtomic {
                let current = self.inner.get(key, None).await?.found();
                tokio::task::yield_now().await;
                if !when.holds(current.as_ref()) {
                    return Ok(PutAnswer::Refused);
                }
                return self.inner.put(key, body, &When::Always).await;
            }
            self.inner.put(key, body, when).await
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        if self.fault == Fault::RemovesNothing { Box::pin(async { Ok(()) }) } else { self.inner.delete(key) }
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        Box::pin(async move {
            let mut list = list.clone();
            if self.fault == Fault::IgnoresStartAfter {
                list.after = None;
            }
            let mut page = self.inner.list(&list).await?;
            match self.fault {
                Fault::ListsLate => drop(page.entries.pop()),
                Fault::ListsUnordered => page.entries.reverse(),
                _ => {}
            }
            Ok(page)
        })
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        mut range: Range<u64>,
        unchanged: Option<&'a Version>,
    ) -> Answer<'a, Ranged> {
        range.end += u64::from(self.fault == Fault::ReadsOneMore);
        let unchanged = unchanged.filter(|_| self.fault != Fault::NeverSaysChanged);
        self.inner.get_range(key, range, unchanged)
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        number: usize,
        mut body: Bytes,
    ) -> Answer<'a, PartId> {
        if self.fault == Fault::SpoilsTheFirstPart && number == 0 {
            body = vec![0; body.len()].into();
        }
        self.inner.upload_part(key, upload, number, body)
    }

    fn upload_abort<'a>(&'a self, key: &'a str, upload: &'a UploadId) -> Answer<'a, ()> {
        if self.fault == Fault::KeepsWhatWasGivenUp {
            return Box::pin(async { Ok(()) });
        }
        self.inner.upload_abort(key, upload)
    }

    fn describe(&self) -> String {
        format!("{:?}", self.fault)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_broken_store_is_detected() {
    for (fault, caught_by) in [
        (Fault::NotAtomic, "no increment is lost"),
        (Fault::IgnoresAbsent, "create when absent"),
        (Fault::IgnoresUnchanged, "replace when unchanged"),
        (Fault::NeverSaysUnchanged, "read unless unchanged"),
        (Fault::ListsLate, "a page shows what was just written and removed"),
        (Fault::ListsUnordered, "a page shows what was just written and removed"),
        (Fault::IgnoresStartAfter, "many keys in byte order across pages"),
        (Fault::RemovesNothing, "replace a missing object"),
        (Fault::ReadsOneMore, "ranges at the edges"),
        (Fault::NeverSaysChanged, "a range of a changed object"),
        (Fault::SpoilsTheFirstPart, "an upload out of order"),
        (Fault::KeepsWhatWasGivenUp, "an aborted upload"),
    ] {
        let extent = SuiteOptions { increments: 50, contested: 20, ..SuiteOptions::default() };
        let suite = Suite::new(Arc::new(Broken { inner: memory(), fault }), extent);
        let violation = suite.run().await.expect_err(&format!("{fault:?} was not detected"));
        assert_eq!(violation.check, caught_by, "{violation}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_refuses_stores_that_ignore_conditions() {
    for fault in [
        Fault::NotAtomic,
        Fault::IgnoresAbsent,
        Fault::IgnoresUnchanged,
        Fault::NeverSaysUnchanged,
        Fault::ListsLate,
    ] {
        let store = Arc::new(Broken { inner: memory(), fault });
        let client = leasehold_store::Client::new(store, Arc::new(SystemHost));
        let report = leasehold_store::probe(&client).await.unwrap();
        report.verdict().expect_err(&format!("{fault:?} was accepted"));
    }
}
