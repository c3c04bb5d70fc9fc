//! `submit-many` on a server that becomes unreachable in between.

use leasehold_core::limits::OPERATION_TIMEOUT;
use leasehold_queue::front::SUBMITS_AT_ONCE;
use leasehold_store::testing::{Fault, FaultPlan, Proxy, S3};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::stalls::StallMeter;
use crate::crashes::bucket;

const LINES: usize = 400;
/// Line whose task does not reach the server, and line whose answer is lost. A proxy recognizes them by their long inputs.
const LINE_WITH_LOST_REQUEST: usize = 100;
const LINE_WITH_LOST_ANSWER: usize = 110;
const LONG: usize = 10_000;
const LONGER: usize = 20_000;

/// Fault plan: drops the two tasks and all requests about them, and counts the tasks that arrive.
fn drop_two_tasks(arrived: Arc<Mutex<BTreeSet<String>>>) -> FaultPlan {
    let dropped: Mutex<BTreeSet<String>> = Mutex::default();
    Box::new(move |seen| {
        if !seen.path.contains("/queue/tasks/") {
            return Fault::Pass;
        }
        arrived.lock().unwrap().insert(seen.path.clone());
        match usize::try_from(seen.body_bytes).unwrap() {
            LONGER.. => {
                dropped.lock().unwrap().insert(seen.path.clone());
                Fault::DropAnswer
            }
            LONG.. => {
                dropped.lock().unwrap().insert(seen.path.clone());
                Fault::DropRequest
            }
            _ if dropped.lock().unwrap().contains(&seen.path) => Fault::DropRequest,
            _ => Fault::Pass,
        }
    })
}

fn line(number: usize) -> String {
    let length = match number {
        LINE_WITH_LOST_REQUEST => LONG,
        LINE_WITH_LOST_ANSWER => LONGER,
        _ => 1,
    };
    format!("{{\"task_type\": \"a\", \"input\": [{number}, \"{}\"]}}\n", "x".repeat(length))
}

#[tokio::test(flavor = "multi_thread")]
async fn many_submits_to_a_server_that_dies_continue_exactly() {
    let test_store = bucket().await;
    let queue = test_store.queue().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, (1..=LINES).map(line).collect::<String>()).unwrap();
    let submit_many = ["submit-many", file.path().to_str().unwrap(), "--json"];

    let arrived = Arc::default();
    let proxy =
        Proxy::start(&S3::shared().await.endpoint(), drop_two_tasks(Arc::clone(&arrived))).await.unwrap();
    let mut command = test_store.command(&submit_many);
    command.env("AWS_ENDPOINT_URL", proxy.endpoint()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let submitting = command.spawn().unwrap();
    // Line 100 is waited for, and as many lines after it as are submitted at once.
    while arrived.lock().unwrap().len() < LINE_WITH_LOST_REQUEST + SUBMITS_AT_ONCE - 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Requests that are under way are answered; the two lines without an answer are asked for again and again.
    proxy.settled().await;
    let requests = || proxy.counts().put + proxy.counts().get;
    let before = requests();
    while requests() < before + 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(proxy);
    let (died, meter) = (Instant::now(), StallMeter::start());
    let output = tokio::task::spawn_blocking(|| submitting.wait_with_output().unwrap()).await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(75), "{stderr}");
    // No request is retried for longer than this, and none of them after another.
    let took = died.elapsed().saturating_sub(meter.stalled());
    assert!(took < OPERATION_TIMEOUT + Duration::from_secs(15), "stopped after {took:?}: {stderr}");

    let report: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let lines_where = |is_it: &dyn Fn(&Value) -> bool| -> Vec<u64> {
        report.iter().filter(|report| is_it(report)).map(|report| report["line"].as_u64().unwrap()).collect()
    };
    let acknowledged = lines_where(&|report| report.get("id").is_some());
    let unknown = lines_where(&|report| report["outcome_unknown"] == true);
    // Those that were under way when line 100 failed, and no other.
    let begun = LINE_WITH_LOST_REQUEST + SUBMITS_AT_ONCE - 1;
    assert!(report.len() <= begun, "it continued after the error: {} lines", report.len());
    assert!(acknowledged.iter().any(|line| *line > LINE_WITH_LOST_REQUEST as u64), "{acknowledged:?}");
    assert!(
        [LINE_WITH_LOST_REQUEST, LINE_WITH_LOST_ANSWER].iter().all(|line| unknown.contains(&(*line as u64))),
        "{unknown:?}"
    );
    assert!(stderr.contains(&format!("submitted {} of {LINES} tasks", acknowledged.len())), "{stderr}");

    let (_, from) = stderr.split_once("continue with --from ").unwrap_or_else(|| panic!("{stderr}"));
    let from = from.split(|letter: char| !(letter.is_ascii_digit() || ",-".contains(letter))).next().unwrap();
    let rest = test_store.command(&[&submit_many[..], &["--from", from]].concat()).output().unwrap();
    assert!(rest.status.success(), "--from {from}: {rest:?}");

    let mut found: BTreeMap<u64, usize> = BTreeMap::new();
    let listed = test_store.command(&["list", "--limit", "10000", "--json"]).output().unwrap();
    for task in String::from_utf8(listed.stdout).unwrap().lines() {
        let task: Value = serde_json::from_str(task).unwrap();
        let id = task["id"].as_str().unwrap().parse().unwrap();
        *found.entry(queue.get(&id).await.unwrap().input[0].as_u64().unwrap()).or_default() += 1;
    }
    for line in 1..=LINES as u64 {
        let times = found.get(&line).copied().unwrap_or(0);
        // A line of unknown outcome was reported, and may be submitted twice.
        let allowed = if unknown.contains(&line) { 1..=2 } else { 1..=1 };
        assert!(allowed.contains(&times), "line {line} is in {times} times; --from {from}; {stderr}");
    }
}
