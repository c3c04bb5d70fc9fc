//! Segments that are torn, changed, incomplete or missing.

use bytes::Bytes;
use leasehold_core::Kind;
use leasehold_core::journal::{LogPosition, commit, sealed};
use leasehold_store::testing::FakeDisk;
use leasehold_store::testing::log_conformance::{log_holder, some_fence, texts};
use leasehold_store::{Followed, Log, TakeOver};
use std::collections::BTreeMap;

use super::{on_disk, replayed, run, take_over, write};

type DiskFiles = BTreeMap<String, Vec<u8>>;

/// Log of two processes with three segments: chain, copied commit, and a newest segment with these offsets of commits.
fn example() -> (DiskFiles, String, Vec<usize>) {
    let disk = FakeDisk::new();
    let mut first = take_over(&on_disk(disk.sound(1)), 1);
    write(&mut first, "\"a\"\n");
    write(&mut first, "\"b\"\n");
    drop(first);
    let mut second = take_over(&on_disk(disk.sound(2)), 2);
    write(&mut second, "\"c\"\n");
    drop(second);
    let mut third = take_over(&on_disk(disk.sound(3)), 3);
    for records in ["\"d\"\n", "\"e\"\n", "{\"f\":1}\n[]\n"] {
        write(&mut third, records);
    }
    let files = disk.files();
    let newest = "00000000000000000006-3.log".to_owned();
    let body = Bytes::from(files[&newest].clone());
    let header = sealed::first_line(&body, 10_000).unwrap().len() + 1;
    let mut offsets = vec![header];
    while *offsets.last().unwrap() < body.len() {
        let (_, length) = commit::decode_first("", &body.slice(offsets.last().unwrap()..)).unwrap();
        offsets.push(offsets.last().unwrap() + length);
    }
    // The copied commit, the fence, three commits, and the end.
    assert_eq!(offsets.len(), 6);
    (files, newest, offsets)
}

const ALL: [&str; 6] = ["\"a\"\n", "\"b\"\n", "\"c\"\n", "\"d\"\n", "\"e\"\n", "{\"f\":1}\n[]\n"];

fn changed(files: &DiskFiles, name: &str, body: Vec<u8>) -> FakeDisk {
    let mut files = files.clone();
    files.insert(name.to_owned(), body);
    FakeDisk::with_files(files)
}

/// Takes the log over, and returns what was replayed, or the message of the mismatch.
fn attempt(log: &Log) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let on_commit = |commit| {
        found.push(commit);
        Ok(())
    };
    match run(log.take_over(&log_holder(9), LogPosition::START, || Ok(some_fence()), on_commit)) {
        Ok(TakeOver::Fenced(_)) => Ok(texts(&found)),
        Ok(TakeOver::Mismatch(error)) => {
            assert_eq!(error.kind(), Kind::Corrupt);
            Err(error.to_string())
        }
        other => panic!("{other:?}"),
    }
}

/// Reads without the lease, and returns what was read, or the message of the mismatch.
fn follow(log: &Log) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let on_commit = |commit| {
        found.push(commit);
        Ok(())
    };
    match run(log.reader(LogPosition::START).read(on_commit)).unwrap() {
        Followed::Current => Ok(texts(&found)),
        Followed::Mismatch(error) => Err(error.to_string()),
    }
}

/// Checks that a log is read up to a torn commit, and can be continued.
fn assert_torn(disk: &FakeDisk, expected: &[&str], case: &str) {
    let log = on_disk(disk.sound(9));
    assert_eq!(follow(&log).unwrap(), expected, "{case}");
    let mut serving = take_over(&log, 9);
    assert_eq!(texts(&serving.replayed), expected, "{case}");
    write(&mut serving, "\"next\"\n");
    drop(serving);
    let expected: Vec<_> = expected.iter().copied().chain(["\"next\"\n"]).collect();
    assert_eq!(replayed(disk, 10), expected, "{case}");
}

#[test]
fn a_torn_commit_of_any_length_is_the_end() {
    let (files, newest, offsets) = example();
    let body = &files[&newest];
    for cut in offsets[4]..body.len() {
        let disk = changed(&files, &newest, body[..cut].to_vec());
        assert_torn(&disk, &ALL[..5], &format!("cut at {cut}"));
        // As a file system leaves it that has the length, but not the bytes.
        let zeros = [&body[..cut], &vec![0; body.len() - cut]].concat();
        assert_torn(&changed(&files, &newest, zeros), &ALL[..5], &format!("zeros from {cut}"));
    }
    for cut in offsets[3]..offsets[4] {
        let disk = changed(&files, &newest, body[..cut].to_vec());
        assert_torn(&disk, &ALL[..4], &format!("cut at {cut}"));
    }
    assert_torn(&FakeDisk::with_files(files.clone()), &ALL, "nothing is torn");
    // A segment whose fence is torn has no commit: its header is carried over.
    for cut in offsets[1]..offsets[2] {
        assert_torn(&changed(&files, &newest, body[..cut].to_vec()), &ALL[..3], &format!("cut at {cut}"));
    }
}

#[test]
fn a_changed_bit_is_a_mismatch_unless_it_may_be_a_torn_commit() {
    let (files, newest, offsets) = example();
    for (name, body) in files.iter().filter(|(name, _)| name.contains(".log")) {
        // One bit of each byte; the tests of the encoding change every bit.
        for bit in (0..body.len()).map(|byte| byte * 8 + byte % 8) {
            let log = on_disk(changed_bit(&files, name, bit).sound(9));
            let case = format!("bit {bit} of {name}");
            let followed = follow(&log);
            let found = attempt(&log);
            assert_eq!(followed, found, "{case}");
            match found {
                Ok(found) if *name == newest && bit / 8 >= offsets[4] => {
                    assert_eq!(found, ALL[..5], "{case}");
                }
                // Bytes behind the end that a later segment names belong to no commit of the log.
                Ok(found) => {
                    assert!(*name != newest, "{case}");
                    assert_eq!(found, ALL, "{case}");
                }
                Err(message) => assert!(message.contains(name.as_str()), "{case}: {message}"),
            }
        }
    }
}

fn changed_bit(files: &DiskFiles, name: &str, bit: usize) -> FakeDisk {
    let mut body = files[name].clone();
    body[bit / 8] ^= 1 << (bit % 8);
    changed(files, name, body)
}

#[test]
fn a_commit_before_others_is_never_taken_for_a_torn_one() {
    let (files, newest, offsets) = example();
    let body = &files[&newest];
    for number in 1..4 {
        for (what, filling) in [("zeros", 0), ("text", b'x')] {
            let mut other = body.clone();
            other[offsets[number]..offsets[number + 1]].fill(filling);
            let found = attempt(&on_disk(changed(&files, &newest, other).sound(9)));
            let message = found.expect_err(&format!("{what} in place of commit {number}"));
            assert!(message.contains(&format!("{newest} at byte {}", offsets[number])), "{message}");
        }
    }
}

#[test]
fn a_segment_of_the_chain_that_is_shorter_is_a_mismatch() {
    let (files, _, _) = example();
    let name = "00000000000000000001-1.log";
    let body = &files[name];
    // The last commit of this segment is copied into the next one.
    let shorter = changed(&files, name, body[..body.len() / 2].to_vec());
    let message = attempt(&on_disk(shorter.sound(9))).unwrap_err();
    assert!(message.contains("but a later segment expects"), "{message}");
    let mut without = files.clone();
    without.remove(name);
    let message = attempt(&on_disk(FakeDisk::with_files(without).sound(9))).unwrap_err();
    assert_eq!(message, format!("/disk/{name} is corrupt: it is missing"));
}

#[test]
fn segments_without_a_header_are_reported() {
    let (files, _, _) = example();
    let name = "00000000000000000010-4.log";
    for (body, why) in [
        ("", "it has no complete header"),
        ("{}\n", "header: missing field `format` at line 1 column 2"),
        ("{\"format\":2}\n", "format 2 is newer than the supported format 1; upgrade leasehold"),
    ] {
        let mut disk = files.clone();
        disk.insert("epoch".into(), b"4\n".to_vec());
        disk.insert(name.into(), body.into());
        let message = attempt(&on_disk(FakeDisk::with_files(disk).sound(9))).unwrap_err();
        assert_eq!(message, format!("/disk/{name} is corrupt: {why}"));
    }
    // A segment under the name of another.
    let mut disk = files.clone();
    disk.insert("epoch".into(), b"4\n".to_vec());
    disk.insert(name.into(), files["00000000000000000006-3.log"].clone());
    let message = attempt(&on_disk(FakeDisk::with_files(disk).sound(9))).unwrap_err();
    assert_eq!(message, format!("/disk/{name} is corrupt: its header names epoch 3 and commit 6"));
}

#[test]
fn a_commit_of_a_newer_format_at_the_end_is_not_dropped() {
    let (files, newest, _) = example();
    let mut body = files[&newest].clone();
    body.extend_from_slice(b"{\"format\":2,\"new\":true}\nrecords of a newer program\n");
    let message = attempt(&on_disk(changed(&files, &newest, body).sound(9))).unwrap_err();
    assert!(
        message.ends_with("format 2 is newer than the supported format 1; upgrade leasehold"),
        "{message}"
    );
}

#[test]
fn a_missing_or_corrupt_epoch_is_reported_and_nothing_is_written() {
    let (files, _, _) = example();
    for (epoch, why) in [
        (None, "it is missing; write 3 and a line end into `epoch`"),
        (Some(""), "`` is not a number; write the largest number after the `-`"),
        (Some("3"), "`3` is not a number; write the largest number after the `-`"),
        (Some("\u{0}\n"), "`\\x00\\n` is not a number; write the largest number after the `-`"),
    ] {
        let mut other = files.clone();
        other.remove("epoch");
        other.extend(epoch.map(|epoch| ("epoch".to_owned(), epoch.into())));
        let disk = FakeDisk::with_files(other.clone());
        let taken = run(on_disk(disk.sound(9)).take_over(
            &log_holder(9),
            LogPosition::START,
            || Ok(some_fence()),
            |_| Ok(()),
        ));
        let error = taken.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        let (start, error) = (format!("/disk/epoch is corrupt: {why}"), error.to_string());
        assert!(error.starts_with(&start) && error.ends_with("and a line end into `epoch`"), "{error}");
        assert_eq!(disk.files(), other);
    }
    // An epoch that has gone back.
    let disk = changed(&files, "epoch", b"1\n".to_vec());
    let message = attempt(&on_disk(disk.sound(9))).unwrap_err();
    assert_eq!(
        message,
        "/disk/00000000000000000006-3.log is corrupt: it has epoch 3, but by the file `epoch` beside it the last epoch was 1; \
         write 3 into `epoch`"
    );
}

#[test]
fn a_log_that_ends_before_the_snapshot_is_a_mismatch() {
    let (files, newest, offsets) = example();
    let end = take_over(&on_disk(FakeDisk::with_files(files.clone()).sound(1)), 9).replayed[8].position();
    let body = files[&newest][..offsets[3]].to_vec();
    for (disk, why) in [
        (changed(&files, &newest, body), "it ends with commit 7, before 9"),
        (FakeDisk::new(), "it has no segments, and the snapshot covers commit 9"),
    ] {
        let log = on_disk(disk.sound(9));
        let taken = run(log.take_over(&log_holder(9), end, || Ok(some_fence()), |_| Ok(()))).unwrap();
        let TakeOver::Mismatch(error) = taken else { panic!("{taken:?}") };
        assert!(error.to_string().ends_with(why), "{error}");
    }
}
