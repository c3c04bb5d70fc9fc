//! Records are read as they were written, and no line panics.

use proptest::prelude::*;
use serde_json::json;
use std::time::Duration;

use super::broker::{TestBroker, encoded, minutes, secs};
use crate::error::Kind;
use crate::journal::{EncodedTask, JournalRecord, JournalState, JournalTask};
use crate::settlement::Settlement;
use crate::step::Event;

/// A log with every kind of record.
fn broker() -> TestBroker {
    let mut broker = TestBroker::new();
    let ids: Vec<_> = (0..9).map(|n| broker.submit_input("resize", json!({"n": n}))).collect();
    let claims = broker.claim("w1", 6);
    broker.take_over();
    broker.renew("w1");
    let settlements = [
        Settlement::complete(json!({"size": 3})),
        Settlement::Fail { error: "no \"disk\"\n".into(), retryable: true, after: Some(secs(5)) },
        Settlement::Snooze(minutes(9)),
        Settlement::Release,
    ];
    for (claim, settlement) in claims.iter().zip(settlements) {
        broker.settle(claim, settlement);
    }
    broker.operate(ids[4], &Event::Cancel).unwrap();
    broker.settle(&claims[4], Settlement::Stop);
    broker.operate(ids[6], &Event::Reschedule { at: broker.now().earliest.plus(minutes(3)) }).unwrap();
    broker.operate(ids[7], &Event::Cancel).unwrap();
    broker.operate(ids[7], &Event::Retry).unwrap();
    broker.submit_expiring(secs(30));
    broker.pass(minutes(2));
    broker.tick();
    broker.pass(Duration::from_hours(49));
    broker.purge(secs(0));
    broker
}

#[test]
fn a_log_is_readable() {
    let log = broker().log_text();
    for kind in [
        "submit",
        "claim",
        "heard",
        "complete",
        "fail",
        "snooze",
        "release",
        "stop",
        "cancel",
        "reschedule",
        "retry",
        "timeout",
        "expire",
        "purge",
    ] {
        assert!(log.contains(&format!("{{\"kind\":\"{kind}\"")), "no record of kind {kind}");
    }
    insta::assert_snapshot!(log);
}

#[test]
fn records_are_read_as_they_were_written() {
    for line in broker().log_text().lines().filter(|line| line.starts_with('{')) {
        let mut written = Vec::new();
        JournalRecord::read(line.as_bytes()).unwrap().write(&mut written);
        assert_eq!(String::from_utf8(written).unwrap(), format!("{line}\n"));
    }
}

#[test]
fn the_head_of_a_task_is_that_of_its_encoding() {
    let broker = broker();
    for (id, body) in encoded(&broker.state) {
        let body = body.as_bytes();
        let (read, task) = (EncodedTask::read(body).unwrap(), JournalTask::decode(body).unwrap());
        assert_eq!((read.id(), &read), (id, &task.encode()));
    }
}

#[test]
fn corrupt_records_are_explained() {
    let id = broker().submit("resize");
    let lines = [
        String::new(),
        "null".into(),
        "{}".into(),
        r#"{"kind":"submit","record":{}}"#.into(),
        r#"{"kind":"submit","record":[]}"#.into(),
        r#"{"record":{},"kind":"submit"}"#.into(),
        format!(r#"{{"kind":"submit","record":{{"id":"{id}","task_type":"a/b"}}}}"#),
        format!(r#"{{"kind":"submit","record":{{"id":"{id}","task_type":"a","created_at":"never"}}}}"#),
        r#"{"kind":"schedule","name":"nightly"}"#.into(),
        r#"{"kind":"heard","by":"w1"}"#.into(),
        format!(r#"{{"kind":"cancel","task":"{id}"}}"#),
        format!(r#"{{"kind":"cancel","task":"{id}","change":{{"rev":2}}}}"#),
        format!(
            r#"{{"kind":"cancel","task":"{id}","change":{{"rev":2,"at":"2023-11-14T22:13:20Z"}},"x":1}}"#
        ),
        format!(
            r#"{{"kind":"cancel","task":"{id}","change":{{"rev":2,"at":"2023-11-14T22:13:20Z","x":1}}}}"#
        ),
    ];
    let errors: Vec<_> = lines
        .iter()
        .map(|line| {
            let error = JournalRecord::read(line.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt);
            format!("{line}\n    {error}")
        })
        .collect();
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn records_out_of_order_are_corrupt() {
    let mut broker = TestBroker::new();
    broker.submit("resize");
    let claim = broker.claim("w1", 1).remove(0);
    broker.take_over();
    broker.renew("w1");
    broker.settle(&claim, Settlement::Release);
    let log = broker.log_text();
    let lines: Vec<_> = log.lines().filter(|line| line.starts_with('{')).collect();
    let [submit, claim, heard, release] = lines[..] else { panic!("{log}") };
    let errors: Vec<_> = [
        vec![claim],
        vec![heard],
        vec![submit, submit],
        vec![submit, heard],
        vec![submit, release],
        vec![submit, claim, claim],
    ]
    .iter()
    .map(|lines| JournalState::default().replay(lines.join("\n").as_bytes()).unwrap_err().to_string())
    .collect();
    insta::assert_snapshot!(errors.join("\n"));
}

proptest! {
    #[test]
    fn no_line_panics(line in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = JournalRecord::read(&line);
        let _ = JournalTask::decode(&line);
        let _ = JournalState::default().replay(&line);
    }

    /// Lines that are almost right: one byte of a real log is changed, or the line ends early.
    #[test]
    fn no_damaged_line_panics(line in 0usize..30, place in 0usize..600, byte: u8, cut: bool) {
        thread_local!(static LOG: String = broker().log_text());
        let mut state = JournalState::default();
        LOG.with(|log| {
            for (number, whole) in log.lines().filter(|line| line.starts_with('{')).enumerate() {
                let mut damaged = whole.as_bytes().to_vec();
                if number == line && place < damaged.len() {
                    damaged[place] = byte;
                    damaged.truncate(if cut { place } else { damaged.len() });
                }
                let _ = state.replay(&damaged);
            }
        });
        for (id, _) in state.bodies_from(None) {
            let _ = state.get(&id);
        }
    }
}
