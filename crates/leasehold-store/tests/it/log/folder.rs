//! Log in a folder: its files, locks and permissions, processes that lost the log, deletion.

use leasehold_core::Kind;
use leasehold_core::journal::{LogPosition, Seq};
use leasehold_store::testing::log_conformance::{ServingLog, commit, log_holder, serve, some_fence, texts};
use leasehold_store::testing::{DiskHook, DiskStep, FakeDisk, StepFate};
use leasehold_store::{
    Client, CommitOutcome, FolderAccess, FolderOptions, FolderStore, Followed, Host, Log, OpenMode,
    SystemHost, TakeOver,
};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{on_disk, replayed, run, take_over, write};

fn in_folder(root: &Path, options: FolderOptions) -> Log {
    Log::in_folder(root, options, Arc::new(SystemHost))
}

fn names(disk: &FakeDisk) -> Vec<String> {
    disk.files().into_keys().collect()
}

fn delete_below(serving: &ServingLog, floor: u64) -> u64 {
    run(serving.writer.trimmer().delete_below(Seq::new(floor), Seq::NONE, &BTreeSet::new())).unwrap()
}

#[tokio::test]
async fn a_holder_is_alive_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let log = in_folder(folder.path(), FolderOptions::default());
    assert_eq!(log.holder_is_alive().await.unwrap(), Some(false), "no process has taken it over");
    let first = serve(&log, 1, LogPosition::START).await.unwrap();
    assert_eq!(log.holder_is_alive().await.unwrap(), Some(true));
    let second = serve(&log, 2, LogPosition::START).await.unwrap();
    drop(first);
    assert_eq!(log.holder_is_alive().await.unwrap(), Some(true));
    drop(second);
    assert_eq!(log.holder_is_alive().await.unwrap(), Some(false));
}

#[tokio::test]
async fn files_are_for_the_user_or_the_group() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    for (name, access, file, directory) in
        [("own", FolderAccess::Private, 0o600, 0o700), ("shared", FolderAccess::Group, 0o660, 0o2770)]
    {
        let root = folder.path().join(name);
        std::fs::create_dir(&root).unwrap();
        let log = in_folder(&root, FolderOptions { access, ..FolderOptions::default() });
        let mut serving = serve(&log, 1, LogPosition::START).await.unwrap();
        commit(&mut serving.writer, "{}\n").await.unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let path = root.join("journal/0/log");
        for directory_path in [&path, &root.join("journal/0"), &root.join("journal")] {
            assert_eq!(mode(directory_path), directory, "{}", directory_path.display());
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(mode(&entry.path()), file, "{:?}", entry.file_name());
            found.push(entry.file_name().into_string().unwrap());
        }
        found.sort_unstable();
        assert_eq!(found, ["00000000000000000001-1.log", "epoch", "epoch-1.lock"]);
        assert_eq!(std::fs::read_to_string(path.join("epoch")).unwrap(), "1\n");
    }
}

#[tokio::test]
async fn a_reader_needs_no_permission_to_write_and_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let options = FolderOptions { mode: OpenMode::Read, ..FolderOptions::default() };
    let log = in_folder(folder.path(), options);
    let read = log.reader(LogPosition::START).read(|_| Ok(())).await.unwrap();
    assert!(matches!(read, Followed::Current), "{read:?}");
    assert_eq!(log.holder_is_alive().await.unwrap(), Some(false));
    let taken = log.take_over(&log_holder(1), LogPosition::START, || Ok(some_fence()), |_| Ok(())).await;
    assert_eq!(taken.unwrap_err().kind(), Kind::Denied);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_log_of_objects_is_not_continued_as_segments() {
    let folder = tempfile::tempdir().unwrap();
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let store = FolderStore::open(folder.path(), FolderOptions::default(), &host).unwrap();
    drop(serve(&Log::in_bucket(Client::new(Arc::new(store), host)), 1, LogPosition::START).await.unwrap());
    let log = in_folder(folder.path(), FolderOptions::default());
    let taken = log.take_over(&log_holder(2), LogPosition::START, || Ok(some_fence()), |_| Ok(())).await;
    let error = taken.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(
        error.to_string().contains("00000000000000000001 is a commit that was written as an object"),
        "{error}"
    );
}

#[tokio::test]
async fn a_dropped_commit_poisons_the_writer_and_may_be_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = in_folder(folder.path(), FolderOptions::default());
    let mut serving = serve(&log, 1, LogPosition::START).await.unwrap();
    {
        // Polled once: the append runs on another thread, and goes on.
        let mut dropped = Box::pin(serving.writer.commit("\"dropped\"\n".into(), 1));
        assert!(futures::poll!(&mut dropped).is_pending());
    }
    assert_eq!(serving.writer.commit("{}\n".into(), 1).await.unwrap_err().kind(), Kind::Lost);
    assert_eq!(serving.writer.is_current().await.unwrap_err().kind(), Kind::Lost);
    // The lock is released when the append has ended.
    while log.holder_is_alive().await.unwrap() == Some(true) {
        tokio::task::yield_now().await;
    }
    let next = serve(&log, 2, LogPosition::START).await.unwrap();
    assert_eq!(texts(&next.replayed), ["\"dropped\"\n"]);
}

/// Pipes and links in place of the files of a log.
#[tokio::test]
async fn pipes_and_links_are_corrupt_and_never_block() {
    let folder = tempfile::tempdir().unwrap();
    let log = in_folder(folder.path(), FolderOptions::default());
    drop(serve(&log, 1, LogPosition::START).await.unwrap());
    let epoch = folder.path().join("journal/0/log/epoch");
    std::fs::remove_file(&epoch).unwrap();
    std::os::unix::fs::symlink("/dev/null", &epoch).unwrap();
    let taken = log.take_over(&log_holder(2), LogPosition::START, || Ok(some_fence()), |_| Ok(())).await;
    let error = taken.unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains("epoch"), "{error}");
    std::fs::remove_file(&epoch).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&epoch).status().unwrap().success());
    assert_eq!(log.holder_is_alive().await.unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn a_process_that_was_stopped_never_acknowledges_after_a_takeover() {
    let disk = FakeDisk::new();
    let mut stopped = take_over(&on_disk(disk.sound(1)), 1);
    write(&mut stopped, "\"1\"\n");
    let mut second = take_over(&on_disk(disk.sound(2)), 2);
    write(&mut second, "\"2\"\n");
    let outcome = run(stopped.writer.commit("\"late\"\n".into(), 1)).unwrap();
    assert!(matches!(outcome, CommitOutcome::Superseded), "{outcome:?}");
    write(&mut second, "\"3\"\n");
    drop((stopped, second));
    assert_eq!(replayed(&disk, 3), ["\"1\"\n", "\"2\"\n", "\"3\"\n"]);
}

#[test]
fn a_reader_that_saw_a_commit_of_a_process_without_the_log_starts_over() {
    let disk = FakeDisk::new();
    let mut stopped = take_over(&on_disk(disk.sound(1)), 1);
    let mut second = take_over(&on_disk(disk.sound(2)), 2);
    // A disk as another process saw it before the second segment was there.
    let mut before = disk.files();
    assert!(before.remove("00000000000000000002-2.log").is_some());
    let _ = run(stopped.writer.commit("\"late\"\n".into(), 1));
    before.insert("00000000000000000001-1.log".into(), disk.files()["00000000000000000001-1.log"].clone());
    let mut reader = on_disk(FakeDisk::with_files(before).sound(3)).reader(LogPosition::START);
    run(reader.read(|_| Ok(()))).unwrap();
    assert_eq!(reader.position().seq, Seq::new(2));
    write(&mut second, "\"2\"\n");
    let mut reader = on_disk(disk.sound(3)).reader(reader.position());
    let read = run(reader.read(|_| Ok(()))).unwrap();
    assert!(matches!(read, Followed::Mismatch(_)), "{read:?}");
}

#[test]
fn two_takeovers_at_once_have_one_winner() {
    let disk = FakeDisk::new();
    drop(take_over(&on_disk(disk.sound(1)), 1));
    let held = disk.sound(2).try_lock("epoch-2.lock").unwrap().unwrap();
    let log = on_disk(disk.sound(3));
    let attempt = || run(log.take_over(&log_holder(3), LogPosition::START, || Ok(some_fence()), |_| Ok(())));
    assert!(matches!(attempt().unwrap(), TakeOver::Superseded));
    drop(held);
    assert!(matches!(attempt().unwrap(), TakeOver::Fenced(_)));
}

#[test]
fn deletion_keeps_what_the_floor_needs_and_removes_what_earlier_takeovers_left() {
    let disk = FakeDisk::new();
    let on = |process: u32| on_disk(disk.sound(process)).with_segment_bytes(700);
    let mut first = take_over(&on(1), 1);
    for number in 0..4 {
        write(&mut first, &format!("{number}\n"));
    }
    drop(first);
    let second = take_over(&on(2), 2);
    let before = names(&disk);
    assert!(before.contains(&"epoch-1.lock".into()), "{before:?}");
    // Nothing is below the first commit. The lock of the earlier takeover goes anyway, and its last segment, whose only
    // commit was copied; the current lock stays.
    assert_eq!(delete_below(&second, 1), 1);
    let after = names(&disk);
    assert!(!after.contains(&"epoch-1.lock".into()) && after.contains(&"epoch-2.lock".into()), "{after:?}");
    assert_eq!(after.len(), before.len() - 2);
    // Commit 3 stays, and with it every segment from there on.
    let position = second.replayed[1].position();
    assert!(delete_below(&second, 3) > 0);
    drop(second);
    let third = run(serve(&on(3), 3, position)).unwrap();
    assert_eq!(texts(&third.replayed), ["1\n", "2\n", "3\n"]);
    // What is deleted is missing for those who begin before the floor.
    let early = run(on(4).take_over(&log_holder(4), LogPosition::START, || Ok(some_fence()), |_| Ok(())));
    assert!(matches!(early.unwrap(), TakeOver::Mismatch(_)));
}

#[test]
fn a_segment_that_was_created_late_is_ignored_and_deleted() {
    let disk = FakeDisk::new();
    let mut first = take_over(&on_disk(disk.sound(1)).with_segment_bytes(1), 1);
    write(&mut first, "\"1\"\n");
    let mut second = take_over(&on_disk(disk.sound(2)), 2);
    // The first process does not know it yet, and begins another segment, which begins further on.
    let outcome = run(first.writer.commit("\"late\"\n".into(), 1)).unwrap();
    assert!(matches!(outcome, CommitOutcome::Superseded), "{outcome:?}");
    let late = "00000000000000000003-1.log".to_owned();
    assert!(names(&disk).contains(&late), "{:?}", names(&disk));
    write(&mut second, "\"2\"\n");
    drop(first);
    // With it the segment whose only commit was copied.
    assert_eq!(delete_below(&second, 1), 2);
    assert!(!names(&disk).contains(&late));
    drop(second);
    assert_eq!(replayed(&disk, 3), ["\"1\"\n", "\"2\"\n"]);
}

#[test]
fn a_process_that_lost_the_log_deletes_nothing_that_its_successor_needs() {
    let disk = FakeDisk::new();
    let mut first = take_over(&on_disk(disk.sound(1)).with_segment_bytes(1), 1);
    for number in 0..3 {
        write(&mut first, &format!("{number}\n"));
    }
    let mut second = take_over(&on_disk(disk.sound(2)), 2);
    write(&mut second, "3\n");
    let before = names(&disk);
    assert_eq!(delete_below(&first, 1), 0);
    assert_eq!(names(&disk), before);
    drop((first, second));
    assert_eq!(replayed(&disk, 3), ["0\n", "1\n", "2\n", "3\n"]);
}

/// Fails the next sync of the directory if it is set.
#[derive(Debug, Default)]
struct FailDirectorySync(AtomicBool);

impl DiskHook for FailDirectorySync {
    fn step(&self, _: u32, step: DiskStep) -> StepFate {
        let fails = step == DiskStep::SyncDirectory && self.0.swap(false, Relaxed);
        if fails { StepFate::Fails(ErrorKind::Other, 0) } else { StepFate::Done }
    }
}

#[test]
fn a_new_segment_that_cannot_be_created_closes_the_log() {
    let (disk, hook) = (FakeDisk::new(), Arc::new(FailDirectorySync::default()));
    let log = on_disk(disk.process(1, hook.clone())).with_segment_bytes(1);
    let mut first = take_over(&log, 1);
    write(&mut first, "\"1\"\n");
    hook.0.store(true, Relaxed);
    // The new segment is visible: an append to the old one would be lost.
    let error = run(first.writer.commit("\"2\"\n".into(), 1)).unwrap_err();
    assert!(!error.outcome_is_unknown(), "{error}");
    assert!(names(&disk).contains(&"00000000000000000003-1.log".into()));
    assert_eq!(run(first.writer.commit("\"2\"\n".into(), 1)).unwrap_err().kind(), Kind::Lost);
    drop(first);
    assert_eq!(replayed(&disk, 2), ["\"1\"\n"]);
}
