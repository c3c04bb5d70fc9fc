//! Uploads in parts when answers are lost, slow or bad, and their files in a folder.

use bytes::Bytes;
use leasehold_core::Kind;
use leasehold_core::limits::{RANGE_BYTES_MAX, UPLOAD_BYTES_MAX, UPLOAD_PART_BYTES};
use leasehold_store::Purpose::Fetch;
use leasehold_store::store::Answer;
use leasehold_store::testing::FakeHost;
use leasehold_store::{
    Cause, Client, DelegatingStore, Failure, FolderOptions, FolderStore, Host, MemoryStore, PartId, Ranged,
    Store, SystemHost, Upload, UploadId, Verb, Version,
};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Fate of one request of an upload.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Answered,
    AppliedUnanswered,
    NeverAppliedUnanswered,
    Throttled,
    ThrottledButApplied,
    Unreached,
}

const FATES: [Fate; 6] = [
    Fate::Answered,
    Fate::AppliedUnanswered,
    Fate::NeverAppliedUnanswered,
    Fate::Throttled,
    Fate::ThrottledButApplied,
    Fate::Unreached,
];

/// Store that applies a list of fates to successive parts and ends.
#[derive(Debug)]
struct ScriptedStore {
    inner: MemoryStore,
    fates: Mutex<VecDeque<Fate>>,
}

impl ScriptedStore {
    async fn apply_fate<T>(&self, carried_out: Answer<'_, T>) -> Result<T, Failure> {
        let fate = self.fates.lock().unwrap().pop_front().unwrap_or(Fate::Answered);
        let cause = match fate {
            Fate::Answered => return carried_out.await,
            Fate::AppliedUnanswered | Fate::NeverAppliedUnanswered => Cause::Unanswered,
            Fate::Throttled | Fate::ThrottledButApplied => Cause::Throttled,
            Fate::Unreached => Cause::Unreached,
        };
        if matches!(fate, Fate::AppliedUnanswered | Fate::ThrottledButApplied) {
            // A second end is refused: that answer is lost too.
            drop(carried_out.await);
        }
        Err(Failure::transient(cause, "not this time"))
    }
}

impl DelegatingStore for ScriptedStore {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        number: usize,
        body: Bytes,
    ) -> Answer<'a, PartId> {
        Box::pin(self.apply_fate(self.inner.upload_part(key, upload, number, body)))
    }

    fn upload_end<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        parts: Vec<PartId>,
    ) -> Answer<'a, Version> {
        Box::pin(self.apply_fate(self.inner.upload_end(key, upload, parts)))
    }
}

fn scripted() -> (Arc<ScriptedStore>, Client) {
    let host: Arc<dyn Host> = Arc::new(FakeHost::new());
    let store = Arc::new(ScriptedStore { inner: MemoryStore::new(&host), fates: Mutex::default() });
    (store.clone(), Client::new(store, host))
}

/// The last part is a single byte.
fn two_parts() -> [Bytes; 2] {
    [vec![1; usize::try_from(UPLOAD_PART_BYTES).unwrap()].into(), Bytes::from_static(b"2")]
}

async fn begun(client: &Client) -> Upload {
    client.upload(Fetch, "k", UPLOAD_PART_BYTES + 1).await.unwrap()
}

async fn sent(client: &Client) -> Upload {
    let upload = begun(client).await;
    for (number, part) in two_parts().into_iter().enumerate() {
        upload.part(number, part).await.unwrap();
    }
    upload
}

#[tokio::test]
async fn every_sequence_of_three_fates_of_an_end_is_reported_correctly() {
    for first in FATES {
        for second in FATES {
            for third in FATES {
                let (store, client) = scripted();
                let upload = sent(&client).await;
                store.fates.lock().unwrap().extend([first, second, third]);
                let fates = [first, second, third];
                let version = upload.finish().await.unwrap_or_else(|error| panic!("{fates:?}: {error}"));
                let found = store.inner.get("k", None).await.unwrap().found().unwrap();
                assert_eq!(found.version, version, "{fates:?}");
                assert_eq!(found.body, two_parts().concat(), "{fates:?}");
            }
        }
    }
}

#[tokio::test]
async fn parts_are_retried_until_they_succeed() {
    let (store, client) = scripted();
    let upload = begun(&client).await;
    store.fates.lock().unwrap().extend(FATES.into_iter().filter(|fate| *fate != Fate::Answered));
    let [first, last] = two_parts();
    upload.part(1, last).await.unwrap();
    upload.part(0, first).await.unwrap();
    upload.finish().await.unwrap();
    assert_eq!(client.ledger().snapshot().verb(Verb::Put), 1 + 7 + 1);
}

#[tokio::test]
async fn an_end_that_cannot_be_resolved_has_an_unknown_outcome() {
    let (store, client) = scripted();
    let upload = sent(&client).await;
    store.fates.lock().unwrap().extend([Fate::NeverAppliedUnanswered; 10_000]);
    let error = upload.finish().await.unwrap_err();
    assert!(error.outcome_is_unknown(), "{error}");
    store.fates.lock().unwrap().clear();
    let upload = sent(&client).await;
    store.fates.lock().unwrap().extend([Fate::Unreached; 10_000]);
    let error = upload.finish().await.unwrap_err();
    assert!(!error.outcome_is_unknown(), "{error}");
}

/// An object of another length was not created by this upload.
#[tokio::test]
async fn an_object_of_another_length_does_not_count() {
    for bytes in [1, UPLOAD_PART_BYTES, UPLOAD_PART_BYTES + 2] {
        let (store, client) = scripted();
        client.put_always(Fetch, "k", vec![0; usize::try_from(bytes).unwrap()].into()).await.unwrap();
        let upload = sent(&client).await;
        store.fates.lock().unwrap().push_back(Fate::NeverAppliedUnanswered);
        upload.finish().await.unwrap();
        let found = store.inner.get("k", None).await.unwrap().found().unwrap();
        assert_eq!(found.body, two_parts().concat());
    }
}

#[tokio::test]
async fn invalid_uploads_are_refused_before_a_request_is_sent() {
    let (_, client) = scripted();
    let upload = begun(&client).await;
    let parts: Vec<_> = upload.parts().collect();
    assert_eq!(parts, [(0, 0..UPLOAD_PART_BYTES), (1, UPLOAD_PART_BYTES..UPLOAD_PART_BYTES + 1)]);
    let before = client.ledger().snapshot().requests();
    let mut errors = Vec::new();
    for (number, bytes) in [(0, 1), (1, 2), (1, 0), (2, 1), (usize::MAX, 1)] {
        errors.push(upload.part(number, vec![0; bytes].into()).await.unwrap_err());
    }
    errors.push(upload.finish().await.unwrap_err());
    for bytes in [0, UPLOAD_BYTES_MAX + 1] {
        errors.push(client.upload(Fetch, "k", bytes).await.unwrap_err());
    }
    for range in [3..3, 0..RANGE_BYTES_MAX + 1] {
        errors.push(client.get_range(Fetch, "k", range, None).await.unwrap_err());
    }
    errors.push(client.get_range(Fetch, "../k", 0..1, None).await.unwrap_err());
    assert!(errors.iter().all(|error| error.kind() == Kind::Invalid), "{errors:?}");
    assert_eq!(client.ledger().snapshot().requests(), before);
}

fn temporary_files(folder: &Path) -> usize {
    let all = std::fs::read_dir(folder.join(".leasehold/tmp")).unwrap();
    let directories = all.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    directories.map(|directory| std::fs::read_dir(directory).unwrap().count()).sum()
}

#[tokio::test]
async fn a_folder_keeps_live_uploads_and_removes_abandoned_ones() {
    let folder = tempfile::tempdir().unwrap();
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let open = || Arc::new(FolderStore::open(folder.path(), FolderOptions::default(), &host).unwrap());
    let client = Client::new(open(), host.clone());
    let (given_up, upload) = (sent(&client).await, sent(&client).await);
    assert_eq!(temporary_files(folder.path()), 2);
    given_up.abort().await.unwrap();
    // Opening the folder removes abandoned uploads.
    let other = Client::new(open(), host.clone());
    assert_eq!(temporary_files(folder.path()), 1);
    let version = upload.finish().await.unwrap();
    assert_eq!(temporary_files(folder.path()), 0);
    let range = UPLOAD_PART_BYTES - 1..UPLOAD_PART_BYTES + 1;
    let read = other.get_range(Fetch, "k", range, Some(&version)).await.unwrap();
    assert!(matches!(read, Ranged::Found(object) if object.body == b"\x012"[..]));
}
