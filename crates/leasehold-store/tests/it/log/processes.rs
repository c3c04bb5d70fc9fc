//! Real processes: aborted before each system call, killed at any instant, stopped and continued.

use leasehold_core::journal::LogPosition;
use leasehold_store::testing::log_conformance::{ServingLog, commit, serve, texts};
use leasehold_store::{FolderOptions, Log, SystemHost};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// More system calls than the exerciser needs.
const STEPS_MAX: usize = 500;

fn start(root: &Path, epoch: u64, step: usize) -> Child {
    Command::new(env!("CARGO_BIN_EXE_store-exerciser"))
        .args(["log", root.to_str().unwrap(), &epoch.to_string(), &step.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Lines that a process has printed; the last one only if it is complete.
fn lines(printed: &str) -> Vec<String> {
    printed.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect()
}

/// Temporary folder, in memory where possible: nothing is lost there but by a power loss.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

async fn take_over(root: &Path, epoch: u64) -> ServingLog {
    let log = Log::in_folder(root, FolderOptions::default(), Arc::new(SystemHost));
    serve(&log, epoch, LogPosition::START).await.unwrap()
}

/// Fails unless all these lines were replayed, in this order.
fn assert_contains(replayed: &[String], acknowledged: &[String], case: &str) {
    let mut found = replayed.iter();
    for line in acknowledged {
        assert!(found.any(|one| one == line), "{case}: {line:?} was acknowledged; replayed: {replayed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_aborted_before_any_system_call_loses_nothing() {
    for step in 1..STEPS_MAX {
        let folder = folder();
        let mut acknowledged = Vec::new();
        // The second process takes over from the first, and is aborted, too.
        let mut is_done = true;
        for epoch in [1, 2] {
            let ended = start(folder.path(), epoch, step).wait_with_output().unwrap();
            acknowledged.extend(lines(&String::from_utf8(ended.stdout).unwrap()));
            // It aborts at a step, or finishes: nothing else.
            assert!(ended.status.success() || ended.status.code().is_none(), "step {step}: {}", ended.status);
            is_done &= ended.status.success();
        }
        let case = format!("aborted before step {step}");
        let mut next = take_over(folder.path(), 3).await;
        assert_contains(&texts(&next.replayed), &acknowledged, &case);
        commit(&mut next.writer, "\"next\"\n").await.unwrap();
        if is_done {
            assert!(step > 10 && acknowledged.len() == 6, "{case}: {acknowledged:?}");
            return;
        }
    }
    panic!("the exerciser does not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_killed_at_any_instant_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    for round in 1..=30 {
        let mut process = start(folder.path(), round, 0);
        let mut printed = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        printed.read_line(&mut line).unwrap();
        tokio::time::sleep(Duration::from_micros(round * 7_919 % 9_000)).await;
        process.kill().unwrap();
        process.wait().unwrap();
        std::io::Read::read_to_string(&mut printed, &mut line).unwrap();
        acknowledged.extend(lines(&line));
    }
    let next = take_over(folder.path(), 1_000).await;
    assert!(acknowledged.len() >= 30, "{}", acknowledged.len());
    assert_contains(&texts(&next.replayed), &acknowledged, "killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_stopped_beyond_a_takeover_is_superseded() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = start(folder.path(), 1, 0);
    let pid = Pid::from_child(&process);
    let mut printed = BufReader::new(process.stdout.take().unwrap());
    let mut text = String::new();
    for _ in 0..5 {
        printed.read_line(&mut text).unwrap();
    }
    kill_process(pid, Signal::STOP).unwrap();
    let log = Log::in_folder(folder.path(), FolderOptions::default(), Arc::new(SystemHost));
    assert_eq!(log.holder_is_alive().await.unwrap(), Some(true), "a stopped process is alive");
    let mut next = take_over(folder.path(), 2).await;
    commit(&mut next.writer, "\"next\"\n").await.unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    std::io::Read::read_to_string(&mut printed, &mut text).unwrap();
    assert!(process.wait().unwrap().success());
    let mut acknowledged = lines(&text);
    assert_eq!(acknowledged.pop().as_deref(), Some("superseded\n"));
    commit(&mut next.writer, "\"last\"\n").await.unwrap();
    drop(next);
    acknowledged.extend(["\"next\"\n".to_owned(), "\"last\"\n".to_owned()]);
    let last = take_over(folder.path(), 3).await;
    assert_contains(&texts(&last.replayed), &acknowledged, "stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_is_no_longer_alive() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = start(folder.path(), 1, 0);
    BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    let log = Log::in_folder(folder.path(), FolderOptions::default(), Arc::new(SystemHost));
    assert_eq!(log.holder_is_alive().await.unwrap(), Some(true));
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(log.holder_is_alive().await.unwrap(), Some(false));
}
