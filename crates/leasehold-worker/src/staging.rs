//! Artifacts in a task's life: brought here before its handler runs, and put into the store before its completion is
//! written, so that no completed task lacks its results.
//!
//! ```text
//!   claimed ──▶ staging ──▶ running ──▶ publishing ──▶ completed
//!               └────────── the claim is renewed ────┘
//! ```
//!
//! How that is done is not known here: a worker is given a [`Carrier`].

use futures::future::{BoxFuture, Either, select};
use leasehold_core::limits::ARTIFACTS_MAX;
use leasehold_core::{ArtifactId, Artifacts, Error, Matter, Name, Result, Task};
use leasehold_store::Host;
use leasehold_store::mutant::{Rule, breaks};
use serde_json::{Value, json};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

use crate::handler::{Context, Run, TaskError};
use crate::hold::Hold;

/// So long after one that has to wait, the next attempt follows.
const NOT_YET_PAUSE: Duration = Duration::from_mins(61);

/// Brings artifacts to this machine, and files into the store.
pub trait Carrier: fmt::Debug + Send + Sync + 'static {
    /// Brings an artifact here. It tells how many bytes are here, and of how many.
    fn fetch<'a>(&'a self, artifact: &'a ArtifactId, tell: Tell<'a>) -> BoxFuture<'a, Result<Brought>>;

    /// Puts a file into the store, where it can be relied on from then on. When `stopped` comes it gives up soon, and leaves
    /// nothing behind that is half sent: that is why it is not simply dropped.
    fn publish<'a>(
        &'a self,
        name: &'a Name,
        path: &'a Path,
        stopped: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<ArtifactId>>;
}

/// Hears how far something has come: so much, of so much.
pub type Tell<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// An artifact on this machine.
pub struct Brought {
    /// Where it is.
    pub path: PathBuf,
    /// It stays there as long as this lives.
    pub hold: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Brought {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

/// The files of one run: those it was given, and those it gives.
#[derive(Default)]
pub(crate) struct Files {
    carrier: Option<Arc<dyn Carrier>>,
    staged: BTreeMap<Name, Brought>,
    fetched: Mutex<Vec<Brought>>,
    results: Mutex<BTreeMap<Name, PathBuf>>,
    /// What has to live until the results are published.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl Files {
    pub(crate) fn paths(&self) -> BTreeMap<Name, PathBuf> {
        self.staged.iter().map(|(name, brought)| (name.clone(), brought.path.clone())).collect()
    }

    pub(crate) fn path(&self, name: &str) -> Option<&Path> {
        self.staged
            .iter()
            .find(|(known, _)| known.as_str() == name)
            .map(|(_, brought)| brought.path.as_path())
    }

    pub(crate) async fn fetch(&self, artifact: &ArtifactId) -> Result<PathBuf> {
        let brought = self.carrier()?.fetch(artifact, &|_, _| ()).await?;
        let path = brought.path.clone();
        lock(&self.fetched).push(brought);
        Ok(path)
    }

    pub(crate) fn give(&self, name: &str, path: PathBuf) -> Result<()> {
        self.carrier()?;
        lock(&self.results).insert(Name::checked("name of a result", name)?, path);
        Ok(())
    }

    pub(crate) fn keep(&self, what: Box<dyn Any + Send>) {
        lock(&self.kept).push(what);
    }

    fn carrier(&self) -> Result<&Arc<dyn Carrier>> {
        self.carrier.as_ref().ok_or_else(no_carrier)
    }
}

/// Where a run is. A handler's time counts only while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Staging,
    Running,
    Publishing,
}

/// What a run came to: the handler's output, and its files.
pub(crate) type Outcome = Result<(Value, Artifacts), TaskError>;

/// One run of a task, with its files.
pub(crate) struct Whole {
    pub(crate) carrier: Option<Arc<dyn Carrier>>,
    pub(crate) run: Run,
    pub(crate) task: Task,
    pub(crate) hold: Arc<Hold>,
    phase: watch::Sender<Phase>,
}

impl Whole {
    pub(crate) fn new(carrier: Option<Arc<dyn Carrier>>, run: Run, task: Task, hold: Arc<Hold>) -> Self {
        Self { carrier, run, task, hold, phase: watch::Sender::new(Phase::Staging) }
    }

    /// Comes when the handler has run for longer than it may.
    pub(crate) fn too_long(&self, host: Arc<dyn Host>) -> BoxFuture<'static, ()> {
        let Some(secs) = self.task.timeout_secs else { return Box::pin(futures::future::pending()) };
        let mut phase = self.phase.subscribe();
        Box::pin(async move {
            let began = phase.wait_for(|phase| *phase != Phase::Staging).await.is_ok();
            host.sleep(Duration::from_secs(secs)).await;
            if !began || *phase.borrow() == Phase::Publishing {
                futures::future::pending::<()>().await;
            }
        })
    }

    /// Whether results are being published, which has to end by itself.
    pub(crate) fn is_publishing(&self) -> impl Fn() -> bool + use<> {
        let phase = self.phase.subscribe();
        move || *phase.borrow() == Phase::Publishing
    }

    /// Stages, runs, publishes. Also a handler that cannot be dropped has not begun before all is here, so staging may
    /// simply stop when the claim does; publishing is told, because it has something to clear away.
    pub(crate) async fn run(self) -> Outcome {
        let files = Arc::new(self.unless_stopped(self.stage()).await?);
        self.hold.clear_progress();
        self.phase.send_replace(Phase::Running);
        let context = Context::new(self.task.clone(), self.hold.clone(), files.clone());
        let output = (self.run)(context, self.task.input.clone()).await?;
        self.phase.send_replace(Phase::Publishing);
        let results = self.publish(&files).await?;
        Ok((output, results))
    }

    async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = Result<T, TaskError>>,
    ) -> Result<T, TaskError> {
        if breaks(Rule::StagingGoesOn) {
            return work.await;
        }
        match select(Box::pin(work), Box::pin(self.hold.until_stopped())).await {
            Either::Left((done, _)) => done,
            // Why is known to whoever has stopped it.
            Either::Right(_) => Err(TaskError::Retry("stopped".to_owned())),
        }
    }

    async fn stage(&self) -> Result<Files, TaskError> {
        let mut files = Files { carrier: self.carrier.clone(), ..Files::default() };
        for (name, artifact) in &self.task.artifacts {
            let tell = |bytes, of| {
                let (name, artifact) = (name.as_str(), artifact.as_str());
                let staging = json!({"name": name, "artifact": artifact, "bytes": bytes, "of": of});
                self.hold.set_progress(json!({"staging": staging}));
            };
            let fetched = match &self.carrier {
                Some(carrier) => carrier.fetch(artifact, &tell).await,
                None => Err(no_carrier()),
            };
            let brought = fetched.map_err(|error| not_staged(name, &error))?;
            files.staged.insert(name.clone(), brought);
        }
        Ok(files)
    }

    async fn publish(&self, files: &Files) -> Result<Artifacts, TaskError> {
        let results = std::mem::take(&mut *lock(&files.results));
        let mut published = Artifacts::new();
        if results.len() > ARTIFACTS_MAX {
            // Nothing is sent that could not be named in the task.
            let many = results.len();
            return Err(TaskError::Permanent(format!(
                "{many} results; a task has at most {ARTIFACTS_MAX}: put them together"
            )));
        }
        for (name, path) in results {
            let carrier = files.carrier().map_err(|error| TaskError::Retry(error.to_string()))?;
            let stopped = Box::pin(async {
                self.hold.until_stopped().await;
            });
            let artifact = carrier.publish(&name, &path, stopped).await;
            let artifact = artifact.map_err(|error| not_published(&name, &error))?;
            published.insert(name, artifact);
        }
        Ok(published)
    }
}

/// What was never published, or is gone, will not come back by trying again.
fn not_staged(name: &Name, error: &Error) -> TaskError {
    let why = format!("artifact `{name}` was not fetched: {error}");
    if error.matter() == Some(Matter::Missing) { TaskError::Permanent(why) } else { TaskError::Retry(why) }
}

/// What is being removed cannot be published for a while that is longer than most retries take.
fn not_published(name: &Name, error: &Error) -> TaskError {
    let why = format!("result `{name}` was not published: {error}");
    match error.matter() {
        Some(Matter::NotYet) => TaskError::RetryAfter(why, NOT_YET_PAUSE),
        _ => TaskError::Retry(why),
    }
}

fn no_carrier() -> Error {
    Error::invalid("this worker deals with no artifacts; give it a cache")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
