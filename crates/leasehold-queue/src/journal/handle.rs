//! The broker of this process: started by the first request that needs it, on a thread that no handler can block.
//!
//! ```text
//!   none ── request ──▶ opening ──▶ serving ── closed, superseded, or an outcome is unknown ──▶ ended ── request ──▶ opening
//! ```
//!
//! It belongs to the queue, and ends with it. [`BrokerSlot::close`] shuts it down: what was decided is committed, and the
//! lease is released. A queue that is dropped without that leaves its lease to expire, as a process that is killed does.

use leasehold_core::journal::SettleRequest;
use leasehold_core::limits::BROKER_REQUESTS_MAX;
use leasehold_core::{Error, HexName, Kind, Now, Result, Task, TaskId};
use leasehold_store::Client;
use leasehold_store::host::{Running, lock};
use std::sync::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::broker::Broker;
use super::broker::maintenance::SnapshotLimits;
use super::home::LogHome;
use super::open::open;
use super::request::{AnswerTo, BrokerRequest};
use super::stage::{BrokerEnd, BrokerStage, StageSetter, StageView, stage};

/// Maximum number of brokers that one request starts: one may end before it has received the request.
const STARTS_MAX: u32 = 3;

/// Place of the broker of this process.
#[derive(Debug)]
pub(crate) struct BrokerSlot {
    client: Client,
    home: LogHome,
    running: Mutex<Option<RunningBroker>>,
}

/// Broker of this process, and its owner.
#[derive(Debug)]
struct RunningBroker {
    line: BrokerLine,
    /// Stops it when this is dropped.
    _work: Running,
}

/// Connection to a broker of this process.
#[derive(Debug, Clone)]
pub(super) struct BrokerLine {
    requests: mpsc::Sender<BrokerRequest>,
    stage: StageView,
}

impl BrokerSlot {
    pub(super) fn new(client: Client, snapshots: SnapshotLimits) -> Self {
        Self { home: LogHome::of(&client, snapshots), client, running: Mutex::default() }
    }

    /// Log of the queue.
    pub(super) fn home(&self) -> &LogHome {
        &self.home
    }

    /// Becomes the broker, if this process is not.
    pub(super) async fn start(&self) -> Result<()> {
        self.serving().await.map(drop)
    }

    /// Sends a request to the broker of this process, and waits for the answer. Starts a broker if there is none.
    pub(super) async fn ask<T>(&self, request: impl FnOnce(AnswerTo<T>) -> BrokerRequest) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let mut request = request(answer);
        for _ in 0..STARTS_MAX {
            let line = self.serving().await?;
            match line.requests.send(request).await {
                Ok(()) => {
                    return match answered.await {
                        Ok(answer) => answer,
                        Err(_) => Err(line.lost_answer().await),
                    };
                }
                // It has ended, and has not seen the request.
                Err(unsent) => request = unsent.0,
            }
        }
        Err(Error::new(
            Kind::Unavailable,
            format!("the broker of this queue stopped {STARTS_MAX} times; see the log, then retry"),
        ))
    }

    /// Sends a request to the broker of this process, and waits for the answer; none if there is no broker that serves, or
    /// it has ended before its answer.
    pub(super) async fn ask_serving<T>(
        &self,
        request: impl FnOnce(AnswerTo<T>) -> BrokerRequest,
    ) -> Option<Result<T>> {
        let line = self.current().filter(BrokerLine::is_serving)?;
        let (answer, answered) = oneshot::channel();
        line.requests.send(request(answer)).await.ok()?;
        answered.await.ok()
    }

    /// Ends a claim; none if it was lost.
    pub(crate) async fn settle(&self, settlement: SettleRequest) -> Result<Option<Task>> {
        let settlement = Box::new(settlement);
        self.ask(|answer| BrokerRequest::Settle { settlement, answer }).await
    }

    /// Ends the claims of a source that wait in the broker.
    pub(super) async fn stop_claims(&self, source: HexName) {
        if let Some(line) = self.current() {
            // A broker that has ended has no claims.
            let _ = line.requests.send(BrokerRequest::StopClaims { source }).await;
        }
    }

    /// Waits until a task has another revision than `rev`; false if there is no broker, or it has ended.
    pub(super) async fn watch(&self, id: TaskId, rev: u64) -> bool {
        let (answer, changed) = oneshot::channel();
        let Some(line) = self.current() else { return false };
        let is_sent = line.requests.send(BrokerRequest::Watch { id, rev, answer }).await.is_ok();
        is_sent && changed.await.is_ok()
    }

    /// Current time of the store.
    pub(super) fn now(&self) -> Result<Now> {
        self.client.known_now()
    }

    /// Connection to the broker of this process, if it has one that serves or is about to.
    pub(super) fn current(&self) -> Option<BrokerLine> {
        let running = lock(&self.running);
        running.as_ref().map(|running| running.line.clone()).filter(|line| !line.has_ended())
    }

    /// Shuts down the broker of this process.
    pub(super) async fn close(&self) {
        let Some(line) = self.current() else { return };
        // It may have ended by itself.
        let _ = line.requests.send(BrokerRequest::Close).await;
        // Every request has got its own answer, and a lease that could not be released expires.
        line.stage.ended().await;
    }

    async fn serving(&self) -> Result<BrokerLine> {
        loop {
            let line = self.line();
            if line.is_serving() {
                return Ok(line);
            }
            match line.opened().await {
                None => return Ok(line),
                Some(BrokerEnd::NotOpened(kind, why)) => return Err(Error::new(kind, why)),
                Some(BrokerEnd::Closed | BrokerEnd::Stopped(_)) => {}
            }
        }
    }

    /// Connection to the current broker; starts one if there is none.
    fn line(&self) -> BrokerLine {
        let mut running = lock(&self.running);
        match &*running {
            Some(current) if !current.line.has_ended() => current.line.clone(),
            _ => running.insert(self.spawn()).line.clone(),
        }
    }

    fn spawn(&self) -> RunningBroker {
        let (requests, received) = mpsc::channel(BROKER_REQUESTS_MAX);
        let (setter, stage) = stage();
        // Connections of its own: those of the caller's runtime may be blocked by a handler.
        let (client, home) = (self.client.detached(), self.home.clone());
        let work = async move {
            let end = run(client, &home, received, &setter).await;
            setter.set(BrokerStage::Ended(end));
        };
        let work = self.client.host().spawn_thread("leasehold-broker", Box::pin(work));
        RunningBroker { line: BrokerLine { requests, stage }, _work: work }
    }
}

async fn run(
    client: Client,
    home: &LogHome,
    requests: mpsc::Receiver<BrokerRequest>,
    stage: &StageSetter,
) -> BrokerEnd {
    let opened = match open(&client, home).await {
        Ok(opened) => opened,
        Err(error) => return BrokerEnd::NotOpened(error.kind(), error.to_string()),
    };
    stage.set(BrokerStage::Serving);
    tracing::info!(queue = %client.describe(), "became the broker of the queue");
    match Broker::new(client, opened, requests).serve().await {
        Ok(()) => BrokerEnd::Closed,
        Err(error) => {
            tracing::warn!(%error, "broker has stopped, the next request starts another");
            BrokerEnd::Stopped(error.to_string())
        }
    }
}

impl BrokerLine {
    fn has_ended(&self) -> bool {
        self.stage.has_ended()
    }

    fn is_serving(&self) -> bool {
        !self.requests.is_closed() && self.stage.is_serving()
    }

    /// Waits until the broker serves, or has ended. Returns how it has ended.
    async fn opened(&self) -> Option<BrokerEnd> {
        match self.stage.opened().await {
            // It is closing.
            None if self.requests.is_closed() => Some(self.stage.ended().await),
            opened => opened,
        }
    }

    /// Error of a request whose answer was dropped: the broker has ended, and the outcome is unknown.
    async fn lost_answer(&self) -> Error {
        let why = match self.stage.ended().await {
            BrokerEnd::NotOpened(_, why) | BrokerEnd::Stopped(why) => why,
            BrokerEnd::Closed => "it was closed".to_owned(),
        };
        let message = format!("outcome unknown: the broker ended before its answer: {why}");
        Error::new(Kind::Unavailable, message).with_unknown_outcome()
    }
}
