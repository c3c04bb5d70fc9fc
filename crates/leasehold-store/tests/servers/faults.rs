//! A real server behind a network that loses answers: no write is reported as lost that was carried out, or as carried
//! out that was not, and none is applied twice.

use leasehold_store::Purpose::Admin;
use leasehold_store::testing::conformance::races::{increment, number};
use leasehold_store::testing::{Fault, FaultPlan, ObservedRequest, Proxy, RequestKind};
use leasehold_store::{Client, Verb, When};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::{client, weed};

/// Increments counters with concurrent `writers`, each `times` on its key; a wrongly reported increment would show in
/// the sum.
async fn count_up(client: &Client, writers: usize, times: usize, key: impl Fn(usize) -> String) -> u64 {
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let (client, key) = (client.clone(), key(writer));
        tasks.spawn(async move {
            for _ in 0..times {
                increment(&client, &key, &writer.to_string()).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let mut sum = 0;
    let keys: std::collections::BTreeSet<_> = (0..writers).map(key).collect();
    for key in keys {
        sum += number(&client.get(Admin, &key).await.unwrap().unwrap().body);
    }
    sum
}

fn is_conditional_put(seen: &ObservedRequest) -> bool {
    seen.kind == RequestKind::Put && seen.conditional
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_answer_was_dropped_is_recognised_as_ours() {
    let plan: FaultPlan = Box::new(|seen| {
        if is_conditional_put(seen) && seen.index % 3 == 0 { Fault::DropAnswer } else { Fault::Pass }
    });
    let proxy = Proxy::start(&weed().await.endpoint(), plan).await.unwrap();
    let alone = client(&proxy.endpoint(), "dropped");
    assert_eq!(count_up(&alone, 10, 100, |writer| format!("own/{writer}")).await, 1_000);
    let ledger = alone.ledger().snapshot();
    let dropped = ledger.count(|line| line.outcome == leasehold_store::ledger::Outcome::Ambiguous);
    assert!(dropped > 300, "a third of the answers were dropped: {dropped}");
    // Every put was written at the first attempt, though a third of the answers were lost: none was repeated.
    assert_eq!(ledger.verb(Verb::Put), 1_000);
    assert_eq!(count_up(&alone, 8, 25, |_| "shared".into()).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_mixture_of_faults_makes_an_answer_wrong() {
    let plan: FaultPlan = Box::new(|seen| {
        let mixed = seen.index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        // Every fourth or fifth request: with every second one, the retry budget would sometimes be exhausted.
        match mixed % 40 {
            0 => Fault::DropAnswer,
            1 => Fault::DropRequest,
            2 => Fault::CutAnswer,
            3 => Fault::error(503, "SlowDown"),
            4 => Fault::error(409, "ConditionalRequestConflict"),
            5 => Fault::error(500, "InternalError"),
            6 => Fault::error(429, "TooManyRequests"),
            7 => Fault::Delay { before: Duration::from_millis(30), after: Duration::from_millis(30) },
            8 if is_conditional_put(seen) => Fault::ApplyLate(Duration::from_millis(mixed % 200)),
            _ => Fault::Pass,
        }
    });
    let proxy = Proxy::start(&weed().await.endpoint(), plan).await.unwrap();
    let client = client(&proxy.endpoint(), "mixed");
    assert_eq!(count_up(&client, 8, 40, |_| "shared".into()).await, 320);
    assert_eq!(count_up(&client, 8, 40, |writer| format!("own/{writer}")).await, 320);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_recognises_its_own_write_however_many_came_after_it() {
    let server = weed().await.endpoint();
    let others = client(&server, "waited");
    increment(&others, "shared", "others").await.unwrap();
    let others_are_done = Arc::new(AtomicBool::new(false));
    let reads_pass = Arc::clone(&others_are_done);
    let (written, was_written) = (AtomicBool::new(false), Arc::new(Notify::new()));
    let tell = Arc::clone(&was_written);
    let plan: FaultPlan = Box::new(move |seen| {
        if is_conditional_put(seen) && !written.swap(true, Ordering::SeqCst) {
            tell.notify_one();
            return Fault::DropAnswer;
        }
        let blind = written.load(Ordering::SeqCst) && !reads_pass.load(Ordering::SeqCst);
        if blind { Fault::error(503, "SlowDown") } else { Fault::Pass }
    });
    let proxy = Proxy::start(&server, plan).await.unwrap();
    let patient = client(&proxy.endpoint(), "waited");
    let waiting = tokio::spawn(async move { increment(&patient, "shared", "patient").await });
    was_written.notified().await;
    proxy.settled().await;
    for _ in 0..100 {
        increment(&others, "shared", "others").await.unwrap();
    }
    others_are_done.store(true, Ordering::SeqCst);
    waiting.await.unwrap().unwrap();
    assert_eq!(number(&others.get(Admin, "shared").await.unwrap().unwrap().body), 102);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_is_answered_without_an_etag_has_an_unknown_outcome() {
    // As behind a proxy that strips it, or a portal that answers every request with its own page.
    let plan: FaultPlan = Box::new(|_| Fault::Answer { status: 200, body: "<html></html>".into() });
    let proxy = Proxy::start(&weed().await.endpoint(), plan).await.unwrap();
    let client = client(&proxy.endpoint(), "portal").with_timeout(Duration::from_millis(100));
    let put = client.put(Admin, "k", "one".into(), &When::Absent).await;
    assert!(put.as_ref().is_err_and(leasehold_core::Error::outcome_is_unknown), "{put:?}");
    let put = client.put_always(Admin, "k", "one".into()).await;
    assert!(put.as_ref().is_err_and(leasehold_core::Error::outcome_is_unknown), "{put:?}");
}
