//! A queue, for Python. Every method but the short ones takes the mailbox for its answer and the number of the call.

use futures::StreamExt;
use leasehold_cli::front::{Front, Order};
use leasehold_core::{Error, Matter, Result, Status, StoreTime, Task, TaskId};
use leasehold_pieces::{Artifacts, PublishOptions, Published};
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

use crate::home::{Call, Home};
use crate::listing::{Listing, Which};
use crate::log;
use crate::mailbox::Mailbox;
use crate::told::{self, Told, raised, told};
use crate::worker::{Plan, Worker};

/// Who acts, in the history of tasks, unless the call says otherwise.
const BY: &str = "python";

/// A queue that is open, or about to be.
#[pyclass(frozen)]
pub(crate) struct Queue {
    home: Mutex<Option<Arc<Home>>>,
    profile: Option<String>,
    opened: Arc<tokio::sync::OnceCell<leasehold_queue::Queue>>,
}

#[pymethods]
impl Queue {
    /// Opens the queue that the settings name; `said` wins over what files and variables say. The answer describes it.
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

    /// An empty queue in memory, in a time that the test moves. Neither files nor variables count.
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

    /// Submits a task: an order as of `submit-many`.
    fn submit(&self, mailbox: &Mailbox, number: u64, order: String) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move {
            told(async { parsed(&order)?.submit(&queue)?.await.map(|submitted| receipt(&submitted)) }.await)
        })
    }

    /// Submits many tasks: a list of receipts and errors, in the order of the tasks.
    fn submit_many(&self, mailbox: &Mailbox, number: u64, orders: Vec<String>) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move { told(submit_many(&queue, &orders).await) })
    }

    fn get(&self, mailbox: &Mailbox, number: u64, id: String) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move {
            told::task(async { queue.get(&id.parse()?).await }.await)
        })
    }

    /// Waits until a task is final, for so many seconds at most.
    fn wait(&self, mailbox: &Mailbox, number: u64, id: String, timeout: Option<f64>) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move {
            let patience = timeout.map(|secs| seconds("timeout", secs)).transpose();
            told::task(async { queue.wait(&id.parse()?, patience?).await }.await)
        })
    }

    fn cancel(&self, mailbox: &Mailbox, number: u64, id: String) -> PyResult<Call> {
        self.call(mailbox, number, move |queue| async move {
            told::task(
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
            told::task(
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
            told::task(
                async {
                    let (id, at): (TaskId, StoreTime) = (id.parse()?, at.parse()?);
                    operated(&id, "be rescheduled", queue.reschedule(&id, at).await?)
                }
                .await,
            )
        })
    }

    /// Lists tasks: which of them is JSON.
    fn listing(&self, which: &str) -> PyResult<Listing> {
        let which: Which = serde_json::from_str(which)
            .map_err(|error| raised(&Error::invalid(format!("this does not say which tasks: {error}"))))?;
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

    /// Puts a file into the store; says what it is.
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

    /// Puts an artifact at this path.
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

    /// Lets the time of a test pass.
    fn advance(&self, mailbox: &Mailbox, number: u64, secs: f64) -> PyResult<Call> {
        let home = self.home()?;
        if !home.is_for_tests() {
            return Err(raised(&Error::invalid("only the time of a queue for tests can be moved")));
        }
        let duration = seconds("time", secs).map_err(|error| raised(&error))?;
        self.call(mailbox, number, move |_| async move {
            let still = home.hold_still();
            leasehold::testing::advance(duration).await;
            drop(still);
            told(Ok(Value::Null))
        })
    }

    /// Panics, at once or on the runtime: for the package's own tests, on a queue for tests.
    fn panic(&self, mailbox: &Mailbox, number: u64, at_once: bool) -> PyResult<Call> {
        if !self.home()?.is_for_tests() {
            return Err(raised(&Error::invalid("only a queue for tests panics when asked to")));
        }
        assert!(!at_once, "panicked on purpose");
        self.call(mailbox, number, |_| async { panic!("panicked on purpose") })
    }

    /// Every request so far, as JSON.
    fn ledger(&self) -> PyResult<String> {
        let snapshot = self.opened()?.client().ledger().snapshot();
        told(Ok(snapshot)).map_err(crate::told::Failure::new_err)
    }

    /// The earliest that the present can be, in the store's time.
    fn now(&self) -> PyResult<String> {
        let (home, queue) = (self.home()?, self.opened()?);
        let now = home.at_this_time(|| queue.now()).map_err(|error| raised(&error))?;
        Ok(now.earliest.to_string())
    }

    /// A worker with these handlers, which runs until it is told to stop; the answer comes when it has ended.
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
        Worker::start(&Plan {
            home: &home,
            queue: &queue,
            front: &front,
            post: &mailbox.post,
            number,
            task_types: &task_types,
            until_empty: drain,
        })
    }

    /// Leaves the queue; with the last one the threads end, and this waits for them.
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
                // Made here, because the clock of a test belongs to its runtime.
                let client = if is_for_tests { leasehold::testing::client() } else { front.client()? };
                front.connect(client, by.as_deref().unwrap_or(BY)).await
            };
            let described = connected.await.map(|queue| {
                let described = json!({
                    "describe": queue.client().describe(),
                    "id": queue.agreement().queue_id.as_str(),
                    "shard_prefix_len": queue.shard_len().digits(),
                });
                // Nobody else sets it.
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
        R: Future<Output = Told> + Send + 'static,
    {
        let (home, work) = (self.home()?, work(self.opened()?));
        home.answer(true, (mailbox.post.clone(), number), work)
    }

    /// The settings as they are now; `said` wins over what files and variables say.
    fn front(&self, said: &BTreeMap<String, String>) -> PyResult<Front> {
        let front = if self.home()?.is_for_tests() {
            Front::bare(pairs(said))
        } else {
            Front::load(self.profile.as_deref(), pairs(said))
        };
        front.map_err(|error| raised(&error))
    }

    fn artifacts(&self) -> PyResult<Artifacts> {
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
    serde_json::from_str(order).map_err(|error| Error::invalid(format!("this is not a task: {error}")))
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
    // A mistake in any of them submits nothing.
    let submits: Result<Vec<_>> = orders
        .iter()
        .enumerate()
        .map(|(number, order)| {
            let submit = parsed(order).and_then(|order| order.submit(queue));
            submit.map_err(|error| Error::invalid(format!("orders[{number}]: {error}")))
        })
        .collect();
    let results: Vec<_> = queue.submit_many(submits?).collect().await;
    let told = results.into_iter().map(|result| match result {
        Ok(submitted) => receipt(&submitted),
        Err(error) => json!({"error": told::described(&error)}),
    });
    Ok(told.collect())
}

fn operated(id: &TaskId, what: &str, operated: Operated) -> Result<Task> {
    match operated {
        Operated::Done(task) => Ok(*task),
        Operated::Refused(why) => {
            Err(Error::invalid(format!("task {id} cannot {what}: {why}")).about(Matter::Conflict))
        }
    }
}

fn retention(statuses: &[String], older_than: f64) -> Result<Retention> {
    let statuses: Result<Vec<_>> = statuses.iter().map(|status| Status::parse(status)).collect();
    let statuses = statuses?;
    if let Some(status) = statuses.iter().find(|status| !status.is_final()) {
        return Err(Error::invalid(format!("tasks that are {status} are not final, and stay")));
    }
    Ok(Retention { statuses, older_than: seconds("age", older_than)? })
}

pub(crate) fn seconds(what: &str, secs: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(secs)
        .map_err(|_| Error::invalid(format!("{what} {secs:?} is not a number of seconds from now on")))
}
