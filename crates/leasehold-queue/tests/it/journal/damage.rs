//! Journals of which a part is missing, corrupt, or of a newer format: every command names the part and the way out, `check`
//! reports what is lost, and nothing is overwritten.

use bytes::Bytes;
use leasehold_core::journal::{CommitHeader, commit};
use leasehold_core::{Kind, keys};
use leasehold_queue::check::{Checked, Remedy};
use leasehold_queue::{LayoutName, Queue, QueueConfig, SnapshotLimits};
use leasehold_store::Store;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Journal, snapshots::lease, submit};
use crate::support::{audit, mins};

/// Changes the content of a file.
type Damage = fn(&[u8]) -> Vec<u8>;

/// Journal with a snapshot of one task, and three commits with one task each after it.
async fn example() -> Journal {
    let journal = Journal::new();
    let queue = journal.process().await;
    submit(&queue).await;
    tokio::time::sleep(mins(6)).await;
    for _ in 0..3 {
        submit(&queue).await;
    }
    queue.close().await.unwrap();
    journal
}

impl Journal {
    /// Objects of the journal, without the lease, which every attempt to become the broker takes.
    async fn parts(&self) -> BTreeMap<String, Bytes> {
        let mut parts = BTreeMap::new();
        for key in audit::keys(&self.store, keys::JOURNAL).await {
            if key != keys::JOURNAL_LEASE {
                parts.insert(key.clone(), self.body(&key).await);
            }
        }
        parts
    }

    async fn body(&self, key: &str) -> Bytes {
        self.store.get(key, None).await.unwrap().found().unwrap().body
    }

    async fn last_keys(&self, prefix: &str, count: usize) -> Vec<String> {
        let mut found = audit::keys(&self.store, prefix).await;
        found.split_off(found.len() - count)
    }

    /// Replaces an object, or deletes it.
    async fn damage(&self, key: &str, body: Option<Vec<u8>>) {
        match body {
            Some(body) => self.overwrite(key, body).await,
            None => self.store.delete(key).await.unwrap(),
        }
    }

    /// Checks that every command refuses the journal with an error that has this text, and that nothing is written. Returns
    /// the result of `check`.
    async fn assert_refused(&self, text: &str, case: &str) -> Checked {
        let before = self.parts().await;
        let process = self.process().await;
        assert_refused(&process, text, case).await;
        let checked = process.check(true).await.unwrap();
        assert_eq!(self.parts().await, before, "{case}: nothing is written");
        checked
    }
}

async fn assert_refused(process: &Queue, text: &str, case: &str) {
    for error in [process.submit("work", 1).await.unwrap_err(), process.stats().await.unwrap_err()] {
        let message = error.to_string();
        assert!(error.kind() == Kind::Corrupt && message.contains(text), "{case}: {message}");
        let has_way_out = message.ends_with("upgrade leasehold")
            || message.ends_with("restore it from a backup of the store");
        assert!(has_way_out, "{case}: {message}");
    }
}

fn flipped(body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body[20] ^= 1;
    body
}

#[tokio::test(start_paused = true)]
async fn a_missing_or_corrupt_part_of_a_bucket_is_named_and_nothing_is_overwritten() {
    let journal = example().await;
    let commits = journal.last_keys(keys::JOURNAL_LOG, 3).await;
    let [chunk, snapshot] = [keys::JOURNAL_CHUNKS, keys::JOURNAL_SNAPSHOTS];
    let parts = [
        commits[0].clone(),
        commits[1].clone(),
        journal.last_keys(chunk, 1).await.remove(0),
        journal.last_keys(snapshot, 1).await.remove(0),
    ];
    for key in parts {
        let body = journal.body(&key).await;
        for (what, damaged, remedy) in [
            ("missing", None, Remedy::Restore),
            ("empty", Some(Vec::new()), Remedy::Restore),
            ("truncated", Some(body[..body.len() - 3].to_vec()), Remedy::Restore),
            ("changed", Some(flipped(&body)), Remedy::Restore),
            ("of a newer format", Some(b"{\"format\":2,\"new\":1}\n".to_vec()), Remedy::Update),
        ] {
            let case = format!("{key} is {what}");
            journal.damage(&key, damaged).await;
            let checked = journal.assert_refused(&key, &case).await;
            let found = &checked.corrupt[0];
            assert_eq!(
                (&found.key, found.remedy, checked.corrupt.len()),
                (&key, remedy, 1),
                "{case}: {checked:?}"
            );
        }
        journal.overwrite(&key, body.to_vec()).await;
    }
    let queue = journal.process().await;
    assert_eq!(queue.check(false).await.unwrap().tasks, 4);
    submit(&queue).await;
    assert_eq!(queue.stats().await.unwrap().due, 5);
}

#[tokio::test(start_paused = true)]
async fn a_check_reports_every_fault_and_what_depends_on_it() {
    let journal = example().await;
    let commits = journal.last_keys(keys::JOURNAL_LOG, 3).await;
    journal.damage(&commits[1], None).await;
    let checked = journal.assert_refused(&commits[1], "missing").await;
    let reason = format!("`{}` is missing; commits 4 to 5 cannot be replayed", commits[1]);
    assert_eq!((checked.tasks, checked.corrupt[0].reason.as_str()), (2, reason.as_str()), "up to the gap");
    journal.overwrite(&commits[2], b"x".to_vec()).await;
    let chunk = journal.last_keys(keys::JOURNAL_CHUNKS, 1).await.remove(0);
    journal.damage(&chunk, None).await;
    let checked = journal.assert_refused(&chunk, "three faults").await;
    let found: Vec<_> = checked.corrupt.iter().map(|corrupt| corrupt.key.as_str()).collect();
    assert_eq!(found, [chunk.as_str(), commits[1].as_str(), commits[2].as_str()]);
    assert_eq!(checked.tasks, 0, "no record can be applied without the snapshot");
    let lost = checked.corrupt[0].reason.as_str();
    assert!(lost.contains("is missing; it has the 1 tasks from id "), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn a_gap_far_before_the_end_is_no_end() {
    let journal = Journal::new();
    let queue = journal.process().await;
    for _ in 0..100 {
        submit(&queue).await;
    }
    queue.close().await.unwrap();
    // The first slots of a replay are read one by one, later ones up to 16 at once.
    for number in [2, 3, 40, 99] {
        let key = keys::journal_commit(leasehold_core::journal::Seq::new(number));
        let body = journal.body(&key).await;
        journal.damage(&key, None).await;
        let process = journal.process().await;
        let error = process.submit("work", 1).await.unwrap_err();
        assert!(error.to_string().starts_with(&format!("`{key}` is missing")), "{error}");
        assert_eq!(process.check(false).await.unwrap().corrupt[0].key, key);
        journal.overwrite(&key, body.to_vec()).await;
    }
    assert_eq!(journal.process().await.stats().await.unwrap().due, 100);
}

#[tokio::test(start_paused = true)]
async fn a_missing_or_corrupt_lease_is_not_replaced() {
    let journal = example().await;
    let body = journal.body(keys::JOURNAL_LEASE).await;
    let mut newer = lease(&journal).await;
    newer["requires"] = json!(["teleport"]);
    let mut other = lease(&journal).await;
    other["snapshot"]["hash"] = json!("ab".repeat(32));
    for (what, damaged, text) in [
        ("missing", None, "`journal/0/lease.json` is missing, although the log has commits"),
        ("corrupt", Some(b"{".to_vec()), "journal/0/lease.json"),
        ("newer", Some(newer.to_string().into_bytes()), "`teleport` are not supported; upgrade leasehold"),
        ("of another snapshot", Some(other.to_string().into_bytes()), "is not the one that the lease names"),
    ] {
        journal.damage(keys::JOURNAL_LEASE, damaged.clone()).await;
        let checked = journal.assert_refused(text, what).await;
        assert_eq!(
            checked.corrupt.len(),
            if what == "of another snapshot" { 2 } else { 1 },
            "{what}: {checked:?}"
        );
        if what != "of another snapshot" {
            assert_eq!(checked.corrupt[0].key, keys::JOURNAL_LEASE);
            let found = journal.store.get(keys::JOURNAL_LEASE, None).await.unwrap().found();
            assert_eq!(found.map(|found| found.body.to_vec()), damaged, "{what}");
        }
    }
    journal.overwrite(keys::JOURNAL_LEASE, body.to_vec()).await;
    assert_eq!(journal.process().await.stats().await.unwrap().due, 4);
}

#[tokio::test(start_paused = true)]
async fn a_record_of_an_unknown_kind_asks_for_an_upgrade() {
    let journal = example().await;
    let last = journal.last_keys(keys::JOURNAL_LOG, 1).await.remove(0);
    let end = commit::decode("last", &journal.body(&last).await).unwrap();
    let header =
        CommitHeader { seq: end.header.seq.next(), previous: end.position().hash, records: 1, ..end.header };
    let key = keys::journal_commit(header.seq);
    let body = commit::encode(&header, b"{\"kind\":\"teleport\"}\n").unwrap().body;
    journal.overwrite(&key, body.to_vec()).await;
    let checked =
        journal.assert_refused("does not know the kind `teleport`; upgrade leasehold", "unknown").await;
    assert_eq!(
        (&checked.corrupt[0].key, checked.corrupt[0].remedy, checked.tasks),
        (&key, Remedy::Update, 4)
    );
}

/// Folder of a journal, as a process leaves it that had three brokers: two snapshots, and commits after them.
struct JournalFolder {
    folder: tempfile::TempDir,
}

impl JournalFolder {
    async fn new() -> Self {
        let journal = Self { folder: tempfile::tempdir().unwrap() };
        for _ in 0..3 {
            let queue = journal.process().await;
            for _ in 0..2 {
                submit(&queue).await;
            }
            queue.close().await.unwrap();
        }
        journal
    }

    async fn process(&self) -> Queue {
        let limits = SnapshotLimits { commits: 5, interval: Duration::MAX, ..SnapshotLimits::default() };
        let layout = Some(LayoutName::Journal);
        let config = QueueConfig { layout, snapshots: limits, ..QueueConfig::default() };
        Queue::with_config(self.folder.path(), config).await.unwrap()
    }

    /// Files below a directory of the journal that match, in the order of their names.
    fn files(&self, directory: &str, part: &str) -> Vec<PathBuf> {
        let directory = self.folder.path().join("journal/0").join(directory);
        let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.to_str().unwrap().contains(part));
        files.sort();
        files
    }

    /// Everything that is not changed by an attempt to become the broker.
    fn parts(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let files = [("log", ".log"), ("snapshot", ""), ("state", "")];
        let files = files.iter().flat_map(|(directory, part)| self.files(directory, part));
        files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    async fn assert_refused(&self, path: &Path, case: &str) {
        let (before, process) = (self.parts(), self.process().await);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_refused(&process, name, case).await;
        let checked = process.check(true).await.unwrap();
        assert!(checked.corrupt[0].reason.contains(name), "{case}: {checked:?}");
        assert_eq!(self.parts(), before, "{case}: nothing is written");
    }
}

#[tokio::test]
async fn a_missing_or_corrupt_part_of_a_folder_is_named_and_nothing_is_overwritten() {
    let journal = JournalFolder::new().await;
    let newest = journal.files("log", ".log").pop().unwrap();
    let snapshot = journal.files("snapshot", "").pop().unwrap();
    let chunk = journal.files("state", "").pop().unwrap();
    let epoch = journal.files("log", "epoch").into_iter().find(|path| path.ends_with("epoch")).unwrap();
    let damages: [(&str, Damage); 3] = [
        ("changed", flipped),
        ("truncated", |body| body[..30].to_vec()),
        ("of a newer format", |_| b"{\"format\":2}\n".to_vec()),
    ];
    for path in [&newest, &snapshot, &chunk] {
        let body = fs::read(path).unwrap();
        for (what, damage) in damages {
            fs::write(path, damage(&body)).unwrap();
            journal.assert_refused(path, &format!("{} is {what}", path.display())).await;
        }
        fs::write(path, &body).unwrap();
    }
    for path in [&snapshot, &chunk] {
        let body = fs::read(path).unwrap();
        fs::remove_file(path).unwrap();
        journal.assert_refused(path, &format!("{} is missing", path.display())).await;
        fs::write(path, &body).unwrap();
    }
    // Without its epoch a log can be read, but not taken over.
    let (body, parts) = (fs::read(&epoch).unwrap(), journal.parts());
    for damage in [None, Some("x")] {
        fs::remove_file(&epoch).unwrap();
        if let Some(damage) = damage {
            fs::write(&epoch, damage).unwrap();
        }
        let process = journal.process().await;
        let error = process.submit("work", 1).await.unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.to_string().contains("epoch is corrupt"), "{error}");
        assert!(!error.to_string().contains("backup"), "two remedies: {error}");
        let checked = process.check(true).await.unwrap();
        assert!(checked.corrupt[0].reason.contains("epoch is corrupt"), "{checked:?}");
        assert_eq!((checked.tasks, journal.parts()), (6, parts.clone()));
        fs::write(&epoch, &body).unwrap();
    }
    let queue = journal.process().await;
    submit(&queue).await;
    assert_eq!(queue.stats().await.unwrap().due, 7);
    assert_eq!(queue.check(false).await.unwrap().corrupt, []);
}

#[tokio::test]
async fn a_missing_lease_of_a_folder_is_not_replaced() {
    let journal = JournalFolder::new().await;
    let path = journal.folder.path().join(keys::JOURNAL_LEASE);
    let body = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    journal.assert_refused(&path, "missing").await;
    assert!(!path.exists());
    fs::write(&path, &body).unwrap();
    assert_eq!(journal.process().await.stats().await.unwrap().due, 6);
}
