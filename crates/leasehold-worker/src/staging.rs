//! Artifacts of a task: fetched before its handler runs, and published before its completion is recorded, so that no
//! completed task lacks its results.
//!
//! ```text
//!   claimed ──▶ staging ──▶ running ──▶ publishing ──▶ completed
//!               └────────── the claim is renewed ────┘
//! ```
//!
//! The transfer itself is done by an implementation of [`ArtifactIo`].

use futures::FutureExt;
use futures::future::{BoxFuture, Either, pending, select};
use leasehold_core::limits::ARTIFACTS_MAX;
use leasehold_core::{ArtifactId, Artifacts, Error, Name, Reason, Result, Task};
use leasehold_store::Host;
use leasehold_store::host::lock;
use leasehold_store::mutant::breaks;
use serde_json::{Value, json};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::handler::{Context, HandlerFn, TaskError};
use crate::run_handle::{Phase, RunHandle};

/// Pause before the next attempt after a result could not be published yet.
const NOT_YET_PAUSE: Duration = Duration::from_mins(61);

/// Transfer of artifacts between this machine and the store.
pub trait ArtifactIo: fmt::Debug + Send + Sync + 'static {
    /// Fetches an artifact. `report` receives the number of bytes fetched, and their total.
    fn fetch<'a>(
        &'a self,
        artifact: &'a ArtifactId,
        report: ProgressFn<'a>,
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
    pub guard: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for StagedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

/// Transfer of artifacts, or the error of a worker without it.
pub(crate) type ArtifactAccess = std::result::Result<Arc<dyn ArtifactIo>, &'static str>;

/// Error of a worker for which no transfer was set.
pub(crate) const NO_ARTIFACT_IO: &str = "this worker has no artifact cache; configure one to use artifacts";

/// Files of one run: its artifacts and its results.
pub(crate) struct RunFiles {
    artifact_io: ArtifactAccess,
    staged: BTreeMap<Name, StagedFile>,
    results: Mutex<BTreeMap<Name, PathBuf>>,
    /// Values to keep until the results are published, such as files that the handler has fetched.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

/// Files of the run.
impl Context {
    /// Path of the task's artifact with this name. The file must not be changed.
    #[must_use]
    pub fn artifact(&self, name: &str) -> Option<&Path> {
        let mut staged = self.files.staged.iter();
        staged.find(|(known, _)| known.as_str() == name).map(|(_, file)| file.path.as_path())
    }

    /// Paths of all artifacts of the task.
    #[must_use]
    pub fn artifacts(&self) -> BTreeMap<Name, PathBuf> {
        self.files.staged.iter().map(|(name, file)| (name.clone(), file.path.clone())).collect()
    }

    /// Fetches another artifact. Its file exists until the end of this run.
    pub async fn fetch(&self, artifact: &ArtifactId) -> Result<PathBuf> {
        let file = self.files.artifact_io()?.fetch(artifact, &|_, _| ()).await?;
        let path = file.path.clone();
        self.keep(file);
        Ok(path)
    }

    /// Adds a file to the results. It is published when the handler has succeeded, before the task is completed.
    pub fn publish(&self, name: &str, path: impl Into<PathBuf>) -> Result<()> {
        self.files.artifact_io()?;
        lock(&self.files.results).insert(Name::checked("name of a result", name)?, path.into());
        Ok(())
    }

    /// Keeps a value until the results are published, such as the temporary directory that contains them.
    pub fn keep(&self, value: impl Any + Send) {
        lock(&self.files.kept).push(Box::new(value));
    }
}

impl RunFiles {
    fn new(artifact_io: ArtifactAccess) -> Self {
        Self { artifact_io, staged: BTreeMap::new(), results: Mutex::default(), kept: Mutex::default() }
    }

    fn artifact_io(&self) -> Result<&Arc<dyn ArtifactIo>> {
        self.artifact_io.as_ref().map_err(|missing| Error::invalid(*missing))
    }
}

/// Outcome of a run: the handler's output, and its result files.
pub(crate) type RunOutcome = Result<(Value, Artifacts), TaskError>;

/// One run of a task, with its files.
pub(crate) struct StagedRun {
    pub(crate) artifact_io: ArtifactAccess,
    pub(crate) handler: HandlerFn,
    pub(crate) task: Arc<Task>,
    pub(crate) run: Arc<RunHandle>,
}

/// Completes when a handler has exceeded its time limit.
pub(crate) async fn timed_out(run: &RunHandle, secs: Option<u64>, host: &dyn Host) {
    let Some(secs) = secs else { return pending().await };
    run.until_started().await;
    host.sleep(Duration::from_secs(secs)).await;
    if run.phase() == Phase::Publishing {
        pending::<()>().await;
    }
}

impl StagedRun {
    /// Stages, runs, publishes. No handler has started before staging is complete, so staging may simply stop with
    /// the claim; publishing is asked to stop, because it has to clean up.
    pub(crate) async fn run(self) -> RunOutcome {
        let stopped = async {
            if breaks("staging-goes-on") { pending().await } else { self.run.until_stopped().await }
        };
        let (staged, stopped) = (pin!(self.stage()), pin!(stopped));
        let files = match select(staged, stopped).await {
            Either::Left((files, _)) => Arc::new(files?),
            // The reason is known to the caller that stopped it.
            Either::Right(_) => return Err(TaskError::Retry("stopped".to_owned())),
        };
        self.run.clear_progress();
        self.run.set_phase(Phase::Running);
        let (task, run) = (self.task.clone(), self.run.clone());
        let context = Context { task, run, files: files.clone() };
        let output = (self.handler)(context, self.task.input.clone()).await?;
        self.run.set_phase(Phase::Publishing);
        let results = self.publish(&files).await?;
        Ok((output, results))
    }

    fn stopped(&self) -> BoxFuture<'_, ()> {
        self.run.until_stopped().map(drop).boxed()
    }

    async fn stage(&self) -> Result<RunFiles, TaskError> {
        let mut files = RunFiles::new(self.artifact_io.clone());
        for (name, artifact) in &self.task.artifacts {
            let report = |bytes, of| {
                let (name, artifact) = (name.as_str(), artifact.as_str());
                let staging = json!({"name": name, "artifact": artifact, "bytes": bytes, "of": of});
                self.run.set_progress(json!({"staging": staging}));
            };
            let fetched = async { files.artifact_io()?.fetch(artifact, &report).await }.await;
            files.staged.insert(name.clone(), fetched.map_err(|error| not_staged(name, &error))?);
        }
        Ok(files)
    }

    async fn publish(&self, files: &RunFiles) -> Result<Artifacts, TaskError> {
        let results = std::mem::take(&mut *lock(&files.results));
        let mut published = Artifacts::new();
        if results.len() > ARTIFACTS_MAX {
            // Nothing is sent that cannot be recorded in the task.
            let count = results.len();
            return Err(TaskError::Permanent(format!(
                "a task can have at most {ARTIFACTS_MAX} results, got {count}; combine them"
            )));
        }
        for (name, path) in results {
            let artifact_io = files.artifact_io().map_err(|error| TaskError::Retry(error.to_string()))?;
            let artifact = artifact_io.publish(&name, &path, self.stopped()).await;
            let artifact = artifact.map_err(|error| not_published(&name, &error))?;
            published.insert(name, artifact);
        }
        Ok(published)
    }
}

/// Error for an artifact that was not fetched. One that does not exist fails permanently.
fn not_staged(name: &Name, error: &Error) -> TaskError {
    let message = format!("artifact `{name}` was not fetched: {error}");
    if error.reason() == Some(Reason::Missing) {
        TaskError::Permanent(message)
    } else {
        TaskError::Retry(message)
    }
}

/// Error for a result that was not published. A result that is being removed can be published only after a pause
/// that is longer than most retries.
fn not_published(name: &Name, error: &Error) -> TaskError {
    let message = format!("result `{name}` was not published: {error}");
    match error.reason() {
        Some(Reason::NotYet) => TaskError::RetryAfter(message, NOT_YET_PAUSE),
        _ => TaskError::Retry(message),
    }
}
