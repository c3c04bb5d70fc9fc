//! A task to be submitted, with its options.

use futures::future::BoxFuture;
use leasehold_core::new_task::Start;
pub use leasehold_core::new_task::Submitted;
use leasehold_core::{ArtifactId, Error, Name, NewTask, Priority, Result, RetryPolicy, StoreTime};
use serde::Serialize;
use std::future::IntoFuture;
use std::time::Duration;
use tracing::Instrument;

use super::QueueLayout;
use crate::unique::UniqueKey;

/// Default number of concurrent submits of [`Queue::submit_many`](crate::Queue::submit_many).
pub const SUBMITS_AT_ONCE: usize = 32;

/// A task to be submitted: set its options, then await it.
#[derive(Debug)]
#[must_use = "nothing is submitted until this is awaited"]
pub struct Submit<'a> {
    pub(super) layout: &'a dyn QueueLayout,
    /// The first invalid option is reported when this is awaited, so that calls can be chained.
    pub(super) new_task: Result<NewTask>,
    pub(super) key: Option<UniqueKey>,
}

impl<'a> Submit<'a> {
    pub(crate) fn new(layout: &'a dyn QueueLayout, task_type: &str, input: impl Serialize) -> Self {
        let input = serde_json::to_value(input)
            .map_err(|error| Error::invalid("the input cannot be written as JSON").because(error));
        Self::of(layout, input.and_then(|input| NewTask::new(task_type, input)))
    }

    pub(crate) fn of(layout: &'a dyn QueueLayout, new_task: Result<NewTask>) -> Self {
        Self { layout, new_task, key: None }
    }

    /// Starts the task after a delay.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|new_task| new_task.start = Start::After(delay))
    }

    /// Starts the task at this time of the store.
    pub fn at(self, at: StoreTime) -> Self {
        self.with(|new_task| new_task.start = Start::At(at))
    }

    /// Submits the task only once under this idempotency key. Text is a key for the whole queue with a lifetime of a
    /// day; use a [`UniqueKey`] for another scope or lifetime.
    pub fn key(self, key: impl Into<UniqueKey>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Maximum number of attempts.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with(|new_task| new_task.max_attempts = Some(attempts))
    }

    /// Pauses between attempts.
    pub fn retry_policy(self, policy: RetryPolicy) -> Self {
        self.with(|new_task| new_task.retry_policy = Some(policy))
    }

    /// Time limit of one run of the handler, rounded up to whole seconds.
    pub fn timeout(self, timeout: Duration) -> Self {
        let secs = timeout.as_secs().saturating_add(u64::from(timeout.subsec_nanos() > 0));
        self.with(|new_task| new_task.timeout_secs = Some(secs))
    }

    /// Lets the task expire if it has not started within this time of its submission.
    pub fn expires_in(self, after: Duration) -> Self {
        self.with(|new_task| new_task.expires_in = Some(after))
    }

    /// Priority among the tasks that are due in the same minute, 0 to 9, 9 first. The default is 5.
    pub fn priority(self, priority: u8) -> Self {
        let prioritised = |new_task| Ok(NewTask { priority: Priority::new(priority)?, ..new_task });
        Self { new_task: self.new_task.and_then(prioritised), ..self }
    }

    /// Adds a tag, by which tasks can be listed. Can be called several times.
    pub fn tag(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|new_task| drop(new_task.tags.insert(name.into(), value.into())))
    }

    /// Fetches an artifact before the handler runs, which finds the file under this name. Can be called several
    /// times.
    pub fn artifact(self, name: &str, artifact: ArtifactId) -> Self {
        let given = |mut new_task: NewTask| {
            new_task.artifacts.insert(Name::checked("name of an artifact", name)?, artifact);
            Ok(new_task)
        };
        Self { new_task: self.new_task.and_then(given), ..self }
    }

    fn with(mut self, change: impl FnOnce(&mut NewTask)) -> Self {
        if let Ok(new_task) = &mut self.new_task {
            change(new_task);
        }
        self
    }
}

impl<'a> IntoFuture for Submit<'a> {
    type Output = Result<Submitted>;
    type IntoFuture = BoxFuture<'a, Result<Submitted>>;

    /// Submits the task. Once this returns, it survives the crash of any process (promise P1).
    fn into_future(self) -> Self::IntoFuture {
        let submit = async move {
            let mut new_task = self.new_task?;
            let key = self.key.or_else(|| new_task.idempotency_key.take().map(UniqueKey::new));
            new_task.idempotency_key = key.as_ref().map(|key| key.key.clone());
            self.layout.submit_once(new_task, key).await
        };
        Box::pin(submit.instrument(tracing::debug_span!("submit")))
    }
}
