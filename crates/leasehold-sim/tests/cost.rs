//! Request costs are correct: one workload makes the same requests in virtual time on the simulated bucket
//! and in real time on a real server. Requests per task are equal; requests per time are close.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use futures::future::{Either, select};
use leasehold_core::ShardLen;
use leasehold_sim::cost::{CostReport, Mode, Workload};
use leasehold_store::Purpose::{Claim, Settle, Submit};
use leasehold_store::Verb::{Delete, Get, List, Put};
use leasehold_store::testing::S3;
use leasehold_store::{Client, Host, Purpose, SystemHost, Verb, open};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

const TASKS: u64 = 1_000;
const SECONDS: f64 = 60.0;
/// Interval at which a worker scans while tasks are waiting.
const SCAN_EVERY: Duration = Duration::from_millis(100);

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number of tasks")]
fn workload(mode: Mode) -> Workload {
    Workload {
        // Two workers that scan the same entries sometimes claim the same task, more often on a slow store
        // than on a fast one; two with shards of their own never do.
        workers: if mode == Mode::Leased { 2 } else { 1 },
        tasks_per_day: (1_000.0 * 86_400.0 / SECONDS) as u64,
        days: SECONDS / 86_400.0,
        mode,
        shard_len: ShardLen::DEFAULT,
        handler: Duration::from_millis(10),
    }
}

fn count(report: &CostReport, purpose: Purpose, verb: Verb) -> u64 {
    report.requests.get(&(purpose, verb)).copied().unwrap_or(0)
}

#[expect(clippy::print_stdout, reason = "the table is what this is for")]
fn show(mode: Mode, simulated: &CostReport, real: &CostReport) {
    println!("{mode:?}, {TASKS} tasks in {SECONDS} s: simulated / real");
    let lines: std::collections::BTreeSet<_> =
        simulated.requests.keys().chain(real.requests.keys()).collect();
    for (purpose, verb) in lines {
        let [one, other] = [simulated, real].map(|report| count(report, *purpose, *verb));
        println!("{:>10} {verb:<8?} {one:>6} {other:>6}", purpose.name());
    }
}

/// Checks that requests per task are exact on both stores, and that requests per time are close, at the pace
/// that machine and server allow.
#[expect(clippy::cast_precision_loss, reason = "a few thousand requests")]
fn check(mode: Mode, simulated: &CostReport, real: &CostReport, pace: f64) {
    // The holder of the shard or the inbox keeps the entry.
    let (claim_puts, claim_deletes) = if mode == Mode::Shared { (2 * TASKS, TASKS) } else { (TASKS, 0) };
    for report in [simulated, real] {
        assert_eq!(report.tasks, TASKS);
        for (purpose, verb, expected) in [
            (Claim, Put, claim_puts),
            (Claim, Delete, claim_deletes),
            (Settle, Put, TASKS),
            (Settle, Delete, TASKS),
        ] {
            assert_eq!(count(report, purpose, verb), expected, "{mode:?} {purpose:?} {verb:?}");
        }
        // An entry may be listed before its task exists: then it is read once more.
        let reads = count(report, Claim, Get);
        assert!((TASKS..TASKS * 11 / 10).contains(&reads), "{mode:?}: {reads} reads");
        // At most one bell a second by each of the four producers.
        let rings = count(report, Submit, Put) - 2 * TASKS;
        let seconds = report.days * 86_400.0;
        assert!(rings >= 10 && rings as f64 <= 4.0 * seconds, "{mode:?}: {rings} rings in {seconds:.0} s");
    }
    for verb in [Put, Get, List, Delete] {
        let [one, other] = [simulated, real].map(|report| report.verb(verb));
        let is_close = other * 2 <= one * 3 && one as f64 * pace * 2.0 <= other as f64 * 3.0;
        assert!(is_close, "{mode:?}: {one} {verb:?} simulated, {other} real at a pace of {pace:.2}");
    }
}

/// Checks that a journal makes not many more commits on the real server: they depend on the time that a put takes, since
/// tasks that come meanwhile share the next one.
fn check_journal(simulated: &CostReport, real: &CostReport) {
    for report in [simulated, real] {
        assert_eq!(report.tasks, TASKS);
        for purpose in [Submit, Claim, Settle, Purpose::Discover, Purpose::Renew] {
            assert!(
                [Put, Get, List, Delete].iter().all(|verb| count(report, purpose, *verb) == 0),
                "{purpose:?}"
            );
        }
        let reads = count(report, Purpose::Journal, Get);
        assert!(reads < 20, "nothing is read while the broker serves: {reads}");
    }
    let [one, other] = [simulated, real].map(|report| count(report, Purpose::Journal, Put));
    assert!(one < TASKS && other < TASKS, "tasks share commits: {one} simulated, {other} real");
    // A slower server makes fewer commits: on a busy machine far fewer.
    assert!(other * 2 <= one * 3, "{one} commits simulated, {other} real");
}

async fn compare(mode: Mode, s3: S3, bucket: &str) {
    // On a thread of its own: inside a task the runtime would make the simulated tasks yield to others.
    let simulated = std::thread::scope(|scope| scope.spawn(|| workload(mode).play(1, |_| {})).join());
    let simulated = simulated.unwrap().unwrap();
    let open = || {
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        Ok(Client::new(open(&format!("s3://{bucket}/{mode:?}"), &s3.options(), &host)?, host))
    };
    let (beside, scans, began) = (open().unwrap(), AtomicU32::new(0), SystemHost.instant());
    let workload = workload(mode);
    let played = select(Box::pin(workload.run_on_store(1, open)), Box::pin(scan(&beside, &scans))).await;
    let Either::Left((real, _)) = played;
    let real = real.unwrap();
    let pace = SCAN_EVERY.as_secs_f64() * f64::from(scans.load(Relaxed))
        / SystemHost.instant().since(began).as_secs_f64();
    show(mode, &simulated, &real);
    if mode == Mode::Journal {
        check_journal(&simulated, &real);
    } else {
        check(mode, &simulated, &real, pace);
    }
}

/// Scans as a worker does, as often as possible.
async fn scan(client: &Client, scans: &AtomicU32) -> Infallible {
    loop {
        client.get(Purpose::Admin, "nothing").await.unwrap();
        client.host().sleep(SCAN_EVERY).await;
        scans.fetch_add(1, Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_tasks_make_the_same_requests_on_a_real_server() {
    let s3 = S3::shared().await;
    let bucket = s3.fresh_bucket().await;
    let compare = |mode| compare(mode, s3, &bucket);
    tokio::join!(compare(Mode::Shared), compare(Mode::Leased), compare(Mode::Direct), compare(Mode::Journal));
}
