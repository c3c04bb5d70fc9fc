//! Artifacts of tasks: progress while they are fetched.

use futures::future::BoxFuture;
use leasehold_core::{ArtifactId, Name, NewTask, Result, Status};
use leasehold_store::{Host, SystemHost};
use leasehold_worker::{ArtifactIo, ProgressFn, Shutdown, StagedFile, TaskError, Worker, WorkerOptions};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::{options, queue};

const LEASE: Duration = Duration::from_secs(6);

/// Fetches that take longer than the interval of renewals, and report progress.
#[derive(Debug)]
struct SlowFetch;

impl ArtifactIo for SlowFetch {
    fn fetch<'a>(&'a self, _: &'a ArtifactId, report: ProgressFn<'a>) -> BoxFuture<'a, Result<StagedFile>> {
        Box::pin(async move {
            report(1, 2);
            SystemHost.sleep(LEASE / 2).await;
            Ok(StagedFile { path: "/nowhere".into(), guard: Box::new(()) })
        })
    }

    fn publish<'a>(
        &'a self,
        _: &'a Name,
        _: &'a Path,
        _: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<ArtifactId>> {
        Box::pin(async { Ok(ArtifactId::blake3([0; 32])) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_task_has_no_progress_of_staging() {
    let queue = queue().await;
    let mut order = NewTask::new("read", json!(null)).unwrap();
    order.artifacts.insert(Name::checked("name", "text").unwrap(), ArtifactId::blake3([7; 32]));
    let id = queue.submit_task(order).await.unwrap().id;
    let (reader, own) = (queue.clone(), id);
    let worker = Worker::new(queue.clone(), "w1", None).unwrap().artifact_io(Arc::new(SlowFetch));
    let worker = worker.handle("read", move |_: leasehold_worker::Context, (): ()| {
        let reader = reader.clone();
        async move {
            while reader.get(&own).await?.progress.is_some() {
                SystemHost.sleep(Duration::from_millis(20)).await;
            }
            Ok::<_, TaskError>(())
        }
    });
    let options = WorkerOptions { lease: LEASE, ..options() };
    let running = tokio::spawn(worker.unwrap().options(options).run(Shutdown::default()));
    while queue.get(&id).await.unwrap().progress.is_none() {
        SystemHost.sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(queue.get(&id).await.unwrap().progress.unwrap()["staging"]["bytes"], 1);
    running.await.unwrap().unwrap();
    let task = queue.get(&id).await.unwrap();
    assert_eq!((task.status(), task.progress), (Status::Completed, None));
}
