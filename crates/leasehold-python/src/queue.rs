//! Queue, for Python. Asynchronous methods take the mailbox for their answer and the number of the call.

use futures::StreamExt;
use leasehold_cli::front::{Front, Order};
use leasehold_core::{Error, Reason, Result, Status, StoreTime, Task, TaskId};
use leasehold_pieces::{ArtifactStore, PublishOptions, Published};
use leasehold_queue::purge::Retention;
use leasehold_queue::{Operated, Submitted};
use leasehold_store::HostExt;
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::event_queue::Mailbox;
use crate::json::{self, JsonAnswer, raised, told};
use crate::listing::{ListQuery, Listing};
use crate::log;
use crate::runtime::{Call, Home};
use crate::worker::{Worker, WorkerSpec};

/// Default name of the caller in the history of tasks.
const BY: &str = "python";

/// A queue that is open or being opened.
#[pyclass(frozen)]
pub(crate) struct Queue {
    home: Mutex<Option<Arc<Home>>>,
    profile: Option<String>,
    opened: Arc<tokio::sync::OnceCell<leasehold_queue::Queue>>,
}

#[pymethods]
impl Queue {
    /// Opens the queue named by the settings; `said` overrides files and variables. The answer describes the queue.
    #[staticmethod]
    fn connect(
        mailbox: &Mailbox,
        number: u64,
        profile: Option<String>,
        said: BTreeMap<String, String>,
        by: Option<String>,
    ) -> PyResult<(Self, Call)> {
        log::start();
        let front = Front::load(profile.as_deref(), pairs(&said)).map_err(|error| raised(&error))?;
        let home = Home::shared().map_err(|error| raised(&error))?;
        Self::open(home, profile, front, mailbox, number, by)
    }

    /// Creates an empty in-memory queue with simulated time. Ignores settings files and variables.
    #[staticmethod]
    fn for_test(
        mailbox: &Mailbox,
        number: u64,
        said: BTreeMap<String, String>,
        by: Option<String>,
    ) -> PyResult<(Self, Call)> {
        log::start();
        let front = Front::bare(pairs(&said)).map_err(|error| raised(&error))?;
        let home = Home::for_test().map_err(|error| raised(&error))?;
        Self::open(home, None, front, mailbox, number, by)
    }

    /// Submits a task, given as a line of `submit-many`.
    fn submit(&self, mailbox: &Mailbox, number: u64, order: String) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move {
            told(async { parsed(&order)?.submit(&queue)?.await.map(|submitted| receipt(&submitted)) }.await)
        })
    }

    /// Submits many tasks; the answer is a list of receipts and errors, in the order of the tasks.
    fn submit_many(&self, mailbox: &Mailbox, number: u64, orders: Vec<String>) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move { told(submit_many(&queue, &orders).await) })
    }

    fn get(&self, mailbox: &Mailbox, number: u64, id: String) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move {
            json::task(async { queue.get(&id.parse()?).await }.await)
        })
    }

    /// Waits until a task is final, for at most `timeout` seconds.
    fn wait(&self, mailbox: &Mailbox, number: u64, id: String, timeout: Option<f64>) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move {
            let patience = timeout.map(|secs| seconds("timeout", secs)).transpose();
            json::task(async { queue.wait(&id.parse()?, patience?).await }.await)
        })
    }

    fn cancel(&self, mailbox: &Mailbox, number: u64, id: String) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move {
            json::task(
                async {
                    let id: TaskId = id.parse()?;
                    operated(&id, "be cancelled", queue.cancel(&id).await?)
                }
                .await,
            )
        })
    }

    fn retry(&self, mailbox: &Mailbox, number: u64, id: String) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move {
            json::task(
                async {
                    let id: TaskId = id.parse()?;
                    operated(&id, "be retried", queue.retry(&id).await?)
                }
                .await,
            )
        })
    }

    fn reschedule(&self, mailbox: &Mailbox, number: u64, id: String, at: String) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move {
            json::task(
                async {
                    let (id, at): (TaskId, StoreTime) = (id.parse()?, at.parse()?);
                    operated(&id, "be rescheduled", queue.reschedule(&id, at).await?)
                }
                .await,
            )
        })
    }

    /// Lists the tasks that match a filter, given as JSON.
    fn listing(&self, which: &str) -> PyResult<Listing> {
        let which: ListQuery = serde_json::from_str(which)
            .map_err(|error| raised(&Error::invalid(format!("invalid filter: {error}"))))?;
        let filter = which.filter().map_err(|error| raised(&error))?;
        let queue = self.opened()?;
        Listing::start(&self.home()?, queue, filter)
    }

    fn purge(
        &self,
        mailbox: &Mailbox,
        number: u64,
        statuses: Vec<String>,
        older_than: f64,
    ) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move {
            told(async { queue.purge_all(&retention(&statuses, older_than)?).await }.await)
        })
    }

    fn check(&self, mailbox: &Mailbox, number: u64, repair: bool) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move { told(queue.check(repair).await) })
    }

    fn stats(&self, mailbox: &Mailbox, number: u64) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move { told(queue.stats().await) })
    }

    /// Publishes a file as an artifact; the answer describes it.
    fn publish(
        &self,
        mailbox: &Mailbox,
        number: u64,
        path: PathBuf,
        name: Option<String>,
        media_type: Option<String>,
    ) -> PyResult<Call> {
        let artifacts = self.artifacts()?;
        self.call(mailbox, number, move |_| async move {
            told(
                async {
                    let usual = artifacts.usual_publishing().clone();
                    let options = PublishOptions { name, media_type, ..usual };
                    artifacts.publish(&path, &options).await.map(|published| described(&published))
                }
                .await,
            )
        })
    }

    /// Downloads an artifact to this path.
    fn fetch(&self, mailbox: &Mailbox, number: u64, artifact: String, to: PathBuf) -> PyResult<Call> {
        let artifacts = self.artifacts()?;
        self.call(mailbox, number, move |queue| async move {
            told(
                async {
                    let (cached, _) = artifacts.fetch(&artifact.parse()?, &|_| ()).await?;
                    queue.client().host().blocking(move || cached.copy_to(&to)).await
                }
                .await,
            )
        })
    }

    /// Moves the simulated time of a test queue forward.
    fn advance(&self, mailbox: &Mailbox, number: u64, secs: f64) -> PyResult<Call> {
        let home = self.home()?;
        if !home.is_for_tests() {
            return Err(raised(&Error::invalid("only a test queue can advance time")));
        }
        let duration = seconds("time", secs).map_err(|error| raised(&error))?;
        self.call(mailbox, number, move |_| async move {
            let still = home.hold_still();
            leasehold::testing::advance(duration).await;
            drop(still);
            told(Ok(Value::Null))
        })
    }

    /// Panics, immediately or on the runtime. For the package's own tests, only on a test queue.
    fn panic(&self, mailbox: &Mailbox, number: u64, at_once: bool) -> PyResult<Call> {
        if !self.home()?.is_for_tests() {
            return Err(raised(&Error::invalid("only a test queue can panic on request")));
        }
        assert!(!at_once, "panicked on purpose");
        self.call(mailbox, number, |_| async { panic!("panicked on purpose") })
    }

    /// Returns the request counts so far, as JSON.
    fn ledger(&self) -> PyResult<String> {
        let snapshot = self.opened()?.client().ledger().snapshot();
        told(Ok(snapshot)).map_err(crate::json::Failure::new_err)
    }

    /// Returns the lower bound of the store's current time.
    fn now(&self) -> PyResult<String> {
        let (home, queue) = (self.home()?, self.opened()?);
        let now = home.at_this_time(|| queue.now()).map_err(|error| raised(&error))?;
        Ok(now.earliest.to_string())
    }

    /// Starts a worker with these handlers, which runs until it is stopped; the answer arrives when it has ended.
    fn work(
        &self,
        mailbox: &Mailbox,
        number: u64,
        said: BTreeMap<String, String>,
        task_types: Vec<String>,
        drain: bool,
    ) -> PyResult<Worker> {
        let (home, queue) = (self.home()?, self.opened()?);
        let front = self.front(&said)?;
        Worker::start(&WorkerSpec {
            home: &home,
            queue: &queue,
            front: &front,
            post: &mailbox.post,
            number,
            task_types: &task_types,
            until_empty: drain,
        })
    }

    /// Closes the queue. The last one ends the runtime's threads and waits for them.
    fn close(&self, py: Python<'_>) {
        let home = self.slot().take();
        if let Some(threads) = home.and_then(Home::close) {
            py.detach(|| threads.end());
        }
    }
}

impl Queue {
    fn open(
        home: Arc<Home>,
        profile: Option<String>,
        front: Front,
        mailbox: &Mailbox,
        number: u64,
        by: Option<String>,
    ) -> PyResult<(Self, Call)> {
        let opened = Arc::<tokio::sync::OnceCell<_>>::default();
        let (slot, is_for_tests) = (opened.clone(), home.is_for_tests());
        let call = home.answer(true, (mailbox.post.clone(), number), async move {
            let connected = async {
                // Created here, because the clock of a test belongs to its runtime.
                let client = if is_for_tests { leasehold::testing::client() } else { front.client()? };
                front.connect(client, by.as_deref().unwrap_or(BY)).await
            };
            let described = connected.await.map(|queue| {
                let described = json!({
                    "describe": queue.client().describe(),
                    "id": queue.agreement().queue_id.as_str(),
                    "shard_prefix_len": queue.shard_len().digits(),
                });
                // Set only here.
                let _ = slot.set(queue);
                described
            });
            told(described)
        })?;
        Ok((Self { home: Mutex::new(Some(home)), profile, opened }, call))
    }

    fn call<R>(
        &self,
        mailbox: &Mailbox,
        number: u64,
        work: impl FnOnce(leasehold_queue::Queue) -> R,
    ) -> PyResult<Call>
    where
        R: Future<Output = JsonAnswer> + Send + 'static,
    {
        let (home, work) = (self.home()?, work(self.opened()?));
        home.answer(true, (mailbox.post.clone(), number), work)
    }

    /// Loads the current settings; `said` overrides files and variables.
    fn front(&self, said: &BTreeMap<String, String>) -> PyResult<Front> {
        let front = if self.home()?.is_for_tests() {
            Front::bare(pairs(said))
        } else {
            Front::load(self.profile.as_deref(), pairs(said))
        };
        front.map_err(|error| raised(&error))
    }

    fn artifacts(&self) -> PyResult<ArtifactStore> {
        let front = self.front(&BTreeMap::new())?;
        front.artifacts(self.opened()?.client()).map_err(|error| raised(&error))
    }

    fn home(&self) -> PyResult<Arc<Home>> {
        let home = self.slot().clone().ok_or_else(|| raised(&Error::invalid("the queue is closed")))?;
        home.check().map_err(|error| raised(&error))?;
        Ok(home)
    }

    fn opened(&self) -> PyResult<leasehold_queue::Queue> {
        self.home()?;
        self.opened.get().cloned().ok_or_else(|| raised(&Error::invalid("the queue is not open")))
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<Home>>> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pairs(said: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, String)> {
    said.iter().map(|(name, value)| (name.as_str(), value.clone()))
}

fn parsed(order: &str) -> Result<Order> {
    serde_json::from_str(order).map_err(|error| Error::invalid(format!("invalid task: {error}")))
}

fn described(published: &Published) -> Value {
    let manifest = &published.manifest;
    json!({
        "id": manifest.artifact,
        "size": manifest.cut.size(),
        "name": manifest.name,
        "media_type": manifest.media_type,
        "was_there": published.was_there,
    })
}

fn receipt(submitted: &Submitted) -> Value {
    let Submitted { id, is_new, existing, is_retried } = submitted;
    json!({"id": id, "is_new": is_new, "existing": existing, "is_retried": is_retried})
}

async fn submit_many(queue: &leasehold_queue::Queue, orders: &[String]) -> Result<Vec<Value>> {
    // If any order is invalid, nothing is submitted.
    let submits: Result<Vec<_>> = orders
        .iter()
        .enumerate()
        .map(|(number, order)| {
            let submit = parsed(order).and_then(|order| order.submit(queue));
            submit.map_err(|error| Error::invalid(format!("orders[{number}]: {error}")))
        })
        .collect();
    let results: Vec<_> = queue.submit_many(submits?).collect().await;
    let answers = results.into_iter().map(|result| match result {
        Ok(submitted) => receipt(&submitted),
        Err(error) => json!({"error": json::described(&error)}),
    });
    Ok(answers.collect())
}

fn operated(id: &TaskId, what: &str, operated: Operated) -> Result<Task> {
    match operated {
        Operated::Done(task) => Ok(*task),
        Operated::Refused(why) => {
            Err(Error::invalid(format!("task {id} cannot {what}: {why}")).about(Reason::Conflict))
        }
    }
}

fn retention(statuses: &[String], older_than: f64) -> Result<Retention> {
    let statuses: Result<Vec<_>> = statuses.iter().map(|status| Status::parse(status)).collect();
    let statuses = statuses?;
    if let Some(status) = statuses.iter().find(|status| !status.is_final()) {
        return Err(Error::invalid(format!("cannot purge {status} tasks: the status must be final")));
    }
    Ok(Retention { statuses, older_than: seconds("age", older_than)? })
}

pub(crate) fn seconds(what: &str, secs: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(secs).map_err(|_| {
        let most = u64::MAX;
        Error::invalid(format!("{what} must be a number of seconds from 0 to {most}, got {secs:?}"))
    })
}
