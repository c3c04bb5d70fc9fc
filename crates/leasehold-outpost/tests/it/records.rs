//! Corrupt records move to `failed/` once, with the reason.

use leasehold_core::Status;
use leasehold_core::outpost::SpoolFile;
use leasehold_outpost::{OutpostConfig, Spool};
use std::fs;
use std::sync::Arc;

use crate::support::{
    any, bucket, claim, complete, config, folder, of, op_names, order, path, places, real, send_all,
    test_spool,
};

#[test]
fn a_corrupt_task_moves_to_failed_when_it_is_claimed() {
    for (body, word) in
        [("", "EOF"), ("{\"id\"", "EOF"), ("{\"shard\": \"0\"}", "missing field"), ("[]", "invalid")]
    {
        let test = test_spool();
        let id = test.spool.submit(order()).unwrap();
        send_all(&test.spool);
        fs::write(path(&test.spool, &SpoolFile::Task(id)), body).unwrap();
        assert_eq!(test.spool.poll(9, &any()).unwrap(), [id], "so that it is dealt with");
        assert!(claim(&test.spool, &id, "w").is_none());
        assert_eq!(places(&test.spool, &id), ["failed"], "{body}");
        assert!(test.spool.poll(9, &any()).unwrap().is_empty());
        let there = test.spool.get(&id).unwrap().unwrap();
        assert_eq!(there.status(), Status::Failed);
        assert_eq!(there.input, body);
        assert!(there.error.as_ref().unwrap().contains(word), "{:?}", there.error);
        assert!(test.spool.requeue(&id).is_err(), "there is nothing to run again");
        assert!(op_names(&test.spool).is_empty());
    }
}

#[test]
fn recovery_moves_corrupt_tasks_too() {
    let test = test_spool();
    let [torn, empty, good] = [(); 3].map(|()| test.spool.submit(order()).unwrap());
    fs::write(path(&test.spool, &SpoolFile::Task(torn)), "{").unwrap();
    fs::remove_file(path(&test.spool, &SpoolFile::Task(empty))).unwrap();
    assert_eq!(test.spool.recover().unwrap().corrupt, 2);
    assert_eq!([torn, empty, good].map(|id| places(&test.spool, &id)[0]), ["failed", "failed", "pending"]);
    let task = test.spool.get(&empty).unwrap().unwrap();
    assert_eq!(task.error.as_deref(), Some("task.json is missing"));
    assert_eq!(test.spool.recover().unwrap().corrupt, 0);
}

#[test]
fn names_that_are_not_ids_are_left_alone() {
    let test = test_spool();
    let strange = test.spool.root().join("pending/notes");
    fs::create_dir(&strange).unwrap();
    test.spool.recover().unwrap();
    assert!(strange.is_dir() && test.spool.poll(9, &any()).unwrap().is_empty());
}

#[test]
fn corrupt_operations_move_to_conflicts() {
    let test = test_spool();
    test.spool.submit(order()).unwrap();
    test.spool.submit(order()).unwrap();
    fs::write(path(&test.spool, &SpoolFile::Outbox(1)), "{").unwrap();
    let seqs: Vec<_> = test.spool.outbox().unwrap().iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, [2]);
    assert_eq!(fs::read_dir(test.spool.root().join("conflicts")).unwrap().count(), 1);
}

#[test]
fn sequence_numbers_are_never_used_twice() {
    let test = test_spool();
    test.spool.submit(order()).unwrap();
    assert!(test.spool.has_unsent_ops().unwrap());
    send_all(&test.spool);
    assert!(!test.spool.has_unsent_ops().unwrap());
    test.spool.submit(order()).unwrap();
    assert_eq!(test.spool.outbox().unwrap()[0].0, 2);
    // Also when `outbox.last` was lost in a power cut.
    fs::write(test.spool.root().join("outbox.last"), "").unwrap();
    test.spool.submit(order()).unwrap();
    assert_eq!(test.spool.outbox().unwrap()[1].0, 3);
    fs::write(test.spool.root().join("outbox.last"), "00000000000000000001").unwrap();
    test.other().submit(order()).unwrap();
    assert_eq!(test.spool.outbox().unwrap()[2].0, 4);
}

#[test]
fn settings_are_the_same_for_all() {
    let test = test_spool();
    let host = || Arc::new(test.host.clone());
    let error = Spool::create(test.data.path(), &of(), config(), host()).unwrap_err();
    assert!(error.to_string().contains("settings differ"), "{error}");
    let opened = Spool::open(test.data.path(), &of(), host()).unwrap();
    assert_eq!(opened.config(), test.spool.config());
    let nowhere = Spool::open(&test.data.path().join("x"), &of(), host()).unwrap_err();
    assert!(nowhere.to_string().contains("no outpost"), "{nowhere}");
    let changed = OutpostConfig { completed_max: 1, ..opened.config().clone() };
    assert!(Spool::create(test.data.path(), &of(), changed, host()).is_err());
}

#[test]
fn files_and_directories_of_a_spool_are_for_its_user_alone() {
    fn below(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
        let inside = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let inside = inside.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] });
        std::iter::once(directory.to_owned()).chain(inside).collect()
    }
    let outside = folder();
    let data = outside.path().join("new/data");
    let spool = real(&data);
    let ids = [(); 3].map(|()| spool.submit(order()).unwrap());
    let held = claim(&spool, &ids[0], "w").unwrap();
    complete(&spool, &held).unwrap();
    let mut held = claim(&spool, &ids[1], "w").unwrap();
    spool.heartbeat(&mut held).unwrap();
    spool.record_bucket_time(bucket(0)).unwrap();
    let all = below(&outside.path().join("new"));
    assert!(all.len() > 12, "{all:?}");
    for path in all {
        let found = std::fs::metadata(&path).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o777;
        assert_eq!(mode, if found.is_dir() { 0o700 } else { 0o600 }, "{}: {mode:o}", path.display());
    }
}
