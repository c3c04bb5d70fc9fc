//! Artifacts of a task: fetched before its handler runs, and published before its completion is recorded, so that no
//! completed task lacks its results.
//!
//! ```text
//!   claimed ──▶ staging ──▶ running ──▶ publishing ──▶ completed
//!               └────────── the claim is renewed ────┘
//! ```
//!
//! The transfer itself is done by an implementation of [`ArtifactIo`].

use futures::future::{BoxFuture, Either, select};
use leasehold_core::limits::ARTIFACTS_MAX;
use leasehold_core::{ArtifactId, Artifacts, Error, Name, Reason, Result, Task};
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

use crate::handler::{Context, HandlerFn, TaskError};
use crate::run_handle::RunHandle;

/// Pause before the next attempt after a result could not be published yet.
const NOT_YET_PAUSE: Duration = Duration::from_mins(61);

/// Transfer of artifacts between this machine and the store.
pub trait ArtifactIo: fmt::Debug + Send + Sync + 'static {
    /// Fetches an artifact. `tell` receives the number of bytes fetched, and their total.
    fn fetch<'a>(
        &'a self,
        artifact: &'a ArtifactId,
        tell: ProgressFn<'a>,
    ) -> BoxFuture<'a, Result<StagedFile>>;

    /// Publishes a file durably in the store. When `stopped` completes it ends soon and removes what is half sent;
    /// for that reason it is not simply dropped.
    fn publish<'a>(
        &'a self,
        name: &'a Name,
        path: &'a Path,
        stopped: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<ArtifactId>>;
}

/// Callback for progress: done, and total.
pub type ProgressFn<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// An artifact on this machine.
pub struct StagedFile {
    /// Its path.
    pub path: PathBuf,
    /// Keeps the file from being removed until it is dropped.
    pub hold: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for StagedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

/// Files of one run: its artifacts and its results.
#[derive(Default)]
pub(crate) struct RunFiles {
    carrier: Option<Arc<dyn ArtifactIo>>,
    staged: BTreeMap<Name, StagedFile>,
    fetched: Mutex<Vec<StagedFile>>,
    results: Mutex<BTreeMap<Name, PathBuf>>,
    /// Values to keep until the results are published.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl RunFiles {
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

    fn carrier(&self) -> Result<&Arc<dyn ArtifactIo>> {
        self.carrier.as_ref().ok_or_else(no_carrier)
    }
}

/// Phase of a run. The time limit of a handler counts only while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Staging,
    Running,
    Publishing,
}

/// Outcome of a run: the handler's output, and its result files.
pub(crate) type RunOutcome = Result<(Value, Artifacts), TaskError>;

/// One run of a task, with its files.
pub(crate) struct StagedRun {
    pub(crate) carrier: Option<Arc<dyn ArtifactIo>>,
    pub(crate) run: HandlerFn,
    pub(crate) task: Task,
    pub(crate) hold: Arc<RunHandle>,
    phase: watch::Sender<Phase>,
}

impl StagedRun {
    pub(crate) fn new(
        carrier: Option<Arc<dyn ArtifactIo>>,
        run: HandlerFn,
        task: Task,
        hold: Arc<RunHandle>,
    ) -> Self {
        Self { carrier, run, task, hold, phase: watch::Sender::new(Phase::Staging) }
    }

    /// Completes when the handler has exceeded its time limit.
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

    /// True while results are being published, which must not be interrupted.
    pub(crate) fn is_publishing(&self) -> impl Fn() -> bool + use<> {
        let phase = self.phase.subscribe();
        move || *phase.borrow() == Phase::Publishing
    }

    /// Stages, runs, publishes. No handler has started before staging is complete, so staging may simply stop with
    /// the claim; publishing is asked to stop, because it has to clean up.
    pub(crate) async fn run(self) -> RunOutcome {
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
            // The reason is known to the caller that stopped it.
            Either::Right(_) => Err(TaskError::Retry("stopped".to_owned())),
        }
    }

    async fn stage(&self) -> Result<RunFiles, TaskError> {
        let mut files = RunFiles { carrier: self.carrier.clone(), ..RunFiles::default() };
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

    async fn publish(&self, files: &RunFiles) -> Result<Artifacts, TaskError> {
        let results = std::mem::take(&mut *lock(&files.results));
        let mut published = Artifacts::new();
        if results.len() > ARTIFACTS_MAX {
            // Nothing is sent that cannot be recorded in the task.
            let many = results.len();
            return Err(TaskError::Permanent(format!(
                "a task can have at most {ARTIFACTS_MAX} results, got {many}; combine them"
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

/// The error for an artifact that was not fetched. One that does not exist fails permanently.
fn not_staged(name: &Name, error: &Error) -> TaskError {
    let why = format!("artifact `{name}` was not fetched: {error}");
    if error.matter() == Some(Reason::Missing) { TaskError::Permanent(why) } else { TaskError::Retry(why) }
}

/// The error for a result that was not published. A result that is being removed can be published only after a pause
/// that is longer than most retries.
fn not_published(name: &Name, error: &Error) -> TaskError {
    let why = format!("result `{name}` was not published: {error}");
    match error.matter() {
        Some(Reason::NotYet) => TaskError::RetryAfter(why, NOT_YET_PAUSE),
        _ => TaskError::Retry(why),
    }
}

fn no_carrier() -> Error {
    Error::invalid("this worker has no artifact cache; configure one to use artifacts")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
