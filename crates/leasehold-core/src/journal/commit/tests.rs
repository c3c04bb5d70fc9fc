use super::*;
use proptest::prelude::*;

fn header(records: u32) -> CommitHeader {
    CommitHeader {
        seq: Seq::new(7),
        epoch: 3,
        instance: HexName::from_random(1),
        write_id: HexName::from_random(2),
        previous: CommitHash([0xab; 32]),
        records,
        fence: None,
    }
}

fn fence() -> CommitHeader {
    let (trusted_until, at) =
        (StoreTime::from_millis(1_700_000_000_000), StoreTime::from_millis(1_700_000_000_001));
    CommitHeader { fence: Some(Fence { trusted_until, at }), ..header(0) }
}

fn encoded(header: &CommitHeader, records: &str) -> Bytes {
    encode(header, records.as_bytes()).unwrap().body
}

fn examples() -> [Bytes; 3] {
    [encoded(&header(1), "{}\n"), encoded(&header(2), "{\"a\":1}\n{\"b\":\"ä\"}\n"), encoded(&fence(), "")]
}

fn reason(body: impl Into<Bytes>) -> String {
    let error = decode("`x`", &body.into()).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    error.to_string()
}

#[test]
fn a_commit_is_read_as_it_was_written() {
    for (header, records) in [(header(1), "{}\n"), (header(2), "{\"a\":1}\n{}\n"), (fence(), "")] {
        let written = encode(&header, records.as_bytes()).unwrap();
        let read = decode("`x`", &written.body).unwrap();
        assert_eq!((&read.header, &read.records[..]), (&header, records.as_bytes()));
        assert_eq!(read.position(), LogPosition { seq: header.seq, hash: written.hash });
    }
}

#[test]
fn the_format_is_fixed() {
    let body = encoded(&header(1), "{\"n\":1}\n");
    let text = std::str::from_utf8(&body).unwrap();
    let expected = format!(
        "{{\"format\":1,\"seq\":7,\"epoch\":3,\"instance\":\"{:032x}\",\"write_id\":\"{:032x}\",\"previous\":\"{}\",\
         \"records\":1,\"bytes\":8,\"checksum\":\"",
        1,
        2,
        "ab".repeat(32)
    );
    let rest = text.strip_prefix(&expected).unwrap();
    assert_eq!(&rest[64..], "\"}\n{\"n\":1}\n");
    let text = String::from_utf8(encoded(&fence(), "").into()).unwrap();
    assert!(
        text.contains(
            "\"records\":0,\"bytes\":0,\"trusted_until\":\"2023-11-14T22:13:20.000Z\",\"at\":\"2023-11-14T22:13:20.001Z\","
        ),
        "{text}"
    );
}

#[test]
fn commits_that_follow_each_other_are_read_one_by_one() {
    let all: Bytes = examples().concat().into();
    let mut place = 0;
    for example in examples() {
        assert_eq!(stated_length(&all[place..]), Some(example.len() as u64));
        let (commit, length) = decode_first("`x`", &all.slice(place..)).unwrap();
        assert_eq!((length, commit), (example.len(), decode("`x`", &example).unwrap()));
        place += length;
    }
    assert_eq!(place, all.len());
    assert_eq!(
        reason(all),
        format!("`x` is not a commit: {} bytes follow its records", place - examples()[0].len())
    );
}

#[test]
fn every_truncation_is_detected() {
    for example in examples() {
        for length in 0..example.len() {
            decode("`x`", &example.slice(..length)).unwrap_err();
            decode_first("`x`", &example.slice(..length)).unwrap_err();
        }
    }
}

#[test]
fn every_changed_bit_is_detected() {
    for example in examples() {
        for bit in 0..example.len() * 8 {
            let mut changed = example.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            decode_first("`x`", &changed.into()).expect_err(&format!("bit {bit}"));
        }
    }
}

#[test]
fn a_corrupt_commit_is_explained() {
    let example = &examples()[1];
    assert_eq!(reason(""), "`x` is not a commit: it has no complete header");
    let cut = example.slice(..example.len() - 3);
    assert_eq!(reason(cut), "`x` is not a commit: it has 16 of 19 bytes of records");
    let mut changed = example.to_vec();
    *changed.last_mut().unwrap() = b' ';
    assert_eq!(reason(changed), "`x` is not a commit: its checksum does not match");
    let newer = String::from_utf8_lossy(example).replacen("\"format\":1", "\"format\":2", 1);
    assert!(is_newer(newer.as_bytes()) && !is_newer(example) && !is_newer(b"{"));
    assert_eq!(
        reason(newer),
        "`x` is not a commit: format 2 is newer than the supported format 1; upgrade leasehold"
    );
    assert_eq!(
        reason("{\"format\":1}\n"),
        "`x` is not a commit: header: missing field `seq` at line 1 column 12"
    );
    assert_eq!(
        reason(oversize::placeholder(1 << 30)),
        "`x` is not a commit: it has 1073741824 bytes; the limit is 16777216"
    );
}

#[test]
fn a_commit_that_could_not_be_read_is_not_written() {
    let large = vec![b'\n'; COMMIT_BYTES_MAX];
    let never = Fence { trusted_until: StoreTime::NEVER, at: StoreTime::from_millis(0) };
    for (header, records, message) in [
        (CommitHeader { seq: Seq::NONE, ..header(1) }, &b"{}\n"[..], "commit 0: commits are numbered from 1"),
        (header(2), b"{}\n", "commit 7: its records must be 2 lines, got 1"),
        (header(1), b"{}\n{}", "commit 7: its records must be 1 lines, got 1"),
        (header(0), b"", "commit 7: a commit that is not a fence must have records"),
        (CommitHeader { records: 1, ..fence() }, b"{}\n", "commit 7: a fence must have no records, got 1"),
        (
            CommitHeader { fence: Some(never), ..fence() },
            b"",
            "commit 7: time 9223372036854775807 of a fence cannot be written",
        ),
        (
            header(16 * 1_024 * 1_024),
            &large,
            "commit 7: records must be at most 16776192 bytes, got 16777216",
        ),
    ] {
        assert_eq!(encode(&header, records).unwrap_err().to_string(), message);
    }
    let endless =
        CommitHeader { instance: serde_json::from_value("x".repeat(2_000).into()).unwrap(), ..header(1) };
    let error = encode(&endless, b"{}\n").unwrap_err().to_string();
    assert!(error.starts_with("header of commit 7 must be at most 1024 bytes, got 2"), "{error}");
}

#[test]
fn equal_content_has_one_hash_and_any_difference_another() {
    let of = |header: &CommitHeader, records: &str| encode(header, records.as_bytes()).unwrap().hash;
    let first = of(&header(1), "{}\n");
    assert_eq!(first, of(&header(1), "{}\n"));
    for other in [
        CommitHeader { seq: Seq::new(8), ..header(1) },
        CommitHeader { epoch: 4, ..header(1) },
        CommitHeader { previous: CommitHash::NONE, ..header(1) },
        CommitHeader { write_id: HexName::from_random(3), ..header(1) },
    ] {
        assert_ne!(of(&other, "{}\n"), first);
    }
    assert_ne!(of(&header(1), "[]\n"), first);
}

proptest! {
    #[test]
    fn garbage_never_panics(body in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        let body = Bytes::from(body);
        prop_assert!(decode("`x`", &body).is_err());
        let _ = stated_length(&body);
    }

    #[test]
    fn a_damaged_header_never_panics(
        place in 0..300_usize,
        with in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        for example in examples() {
            let place = place % example.len();
            let end = (place + with.len()).min(example.len());
            let changed: Bytes = [&example[..place], &with[..], &example[end..]].concat().into();
            let _ = stated_length(&changed);
            prop_assert!(decode_first("`x`", &changed).is_err() || changed.starts_with(&example));
        }
    }

    #[test]
    fn any_records_are_read_as_they_were_written(lines in proptest::collection::vec("[^\n]*", 1..20), seq in 1..u64::MAX) {
        let records: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        let header = CommitHeader { seq: Seq::new(seq), ..header(u32::try_from(lines.len()).unwrap()) };
        let read = decode("`x`", &encoded(&header, &records)).unwrap();
        prop_assert_eq!((read.header, &read.records[..]), (header, records.as_bytes()));
    }
}
