//! The broker that this process uses, its own or a connection to another one: opened by the first request that needs it, on a
//! thread that no handler can block.
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
use leasehold_store::mutant::breaks;
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, oneshot};

use super::broker::Broker;
use super::home::LogHome;
use super::open::{OpenedQueue, connect, connect_only, open};
use super::remote::serve_remotely;
use super::request::{AnswerTo, BrokerRequest, WorkerReport};
use super::service::{ClientCount, serve_clients};
use super::stage::{BrokerEnd, BrokerStage, StageSetter, StageView, stage};
use crate::connect::{BrokerRole, QueueConfig};
use leasehold_broker::BrokerTransport;

/// Maximum number of brokers that one request starts: one may end before it has received the request.
const STARTS_MAX: u32 = 3;

/// Place of the broker that this process is, or is connected to.
#[derive(Debug)]
pub(crate) struct BrokerSlot {
    client: Client,
    home: LogHome,
    transport: Option<Arc<dyn BrokerTransport>>,
    role: BrokerRole,
    running: Mutex<Option<RunningBroker>>,
}

/// Behaviour of a process that cannot connect to a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WithoutBroker {
    /// It becomes the broker.
    BecomeBroker,
    /// It fails.
    Fail,
    /// It reads the log.
    Follow,
}

/// Broker thread of this process, and its owner.
#[derive(Debug)]
struct RunningBroker {
    line: BrokerHandle,
    /// Stops it when this is dropped.
    _work: Running,
}

/// Sender of requests to the broker thread, and its stage.
#[derive(Debug, Clone)]
pub(super) struct BrokerHandle {
    requests: mpsc::Sender<BrokerRequest>,
    stage: StageView,
}

impl BrokerSlot {
    pub(super) fn new(client: Client, config: &QueueConfig) -> Self {
        let (home, transport) = (LogHome::of(&client, config.snapshots), config.transport.clone());
        Self { home, client, transport, role: config.broker_role, running: Mutex::default() }
    }

    /// Log of the queue.
    pub(super) fn home(&self) -> &LogHome {
        &self.home
    }

    /// Role of this process.
    pub(super) fn role(&self) -> BrokerRole {
        self.role
    }

    /// Sends a request to the broker, of this process or of another one, and waits for the answer. Becomes the broker if there is
    /// none.
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

    /// Sends a request to the broker, of this process or of another one, and waits for the answer; none if none serves, or
    /// it has ended before its answer. `client` counts the requests that find the broker.
    pub(super) async fn ask_serving<T>(
        &self,
        client: &Client,
        request: impl FnOnce(AnswerTo<T>) -> BrokerRequest,
    ) -> Option<Result<T>> {
        let line = self.reachable(client).await?;
        let (answer, answered) = oneshot::channel();
        line.requests.send(request(answer)).await.ok()?;
        answered.await.ok()
    }

    /// Connection to a broker that serves, of this process or of another one; none if there is none.
    async fn reachable(&self, client: &Client) -> Option<BrokerHandle> {
        let line = match self.current() {
            Some(line) if line.is_serving() => return Some(line),
            // It is opening, and may wait for the lease of another process.
            Some(_) => return None,
            None => {
                self.transport.as_ref()?;
                self.line(WithoutBroker::Follow, client)
            }
        };
        match line.opened().await {
            None => Some(line),
            Some(_) => None,
        }
    }

    /// Ends a claim; none if it was lost.
    pub(crate) async fn settle(&self, settlement: SettleRequest) -> Result<Option<Task>> {
        let settlement = Box::new(settlement);
        self.ask(|answer| BrokerRequest::Settle { settlement, answer }).await
    }

    /// Ends the claims of a source that wait in the broker.
    pub(super) async fn stop_claims(&self, source: HexName) {
        // A broker that has ended has no claims.
        self.notify(BrokerRequest::StopClaims { source }).await;
    }

    /// Tells the broker about a worker of this process.
    pub(super) async fn report(&self, report: WorkerReport) {
        // The next broker gets the next report.
        self.notify(BrokerRequest::Report(report)).await;
    }

    /// Sends a request without an answer to the broker, if there is one.
    async fn notify(&self, request: BrokerRequest) {
        if let Some(line) = self.current() {
            let _ = line.requests.send(request).await;
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
    pub(super) fn current(&self) -> Option<BrokerHandle> {
        let running = lock(&self.running);
        running.as_ref().map(|running| running.line.clone()).filter(|line| !line.has_ended())
    }

    /// Shuts down the broker of this process.
    pub(super) async fn close(&self) {
        let Some(line) = self.current() else { return };
        line.stage.give_up_waiting();
        // It may have ended by itself.
        let _ = line.requests.send(BrokerRequest::Close).await;
        // Every request has got its own answer, and a lease that could not be released expires.
        line.stage.ended().await;
    }

    /// Connection to a broker that serves. Becomes the broker if there is none, unless this process never does.
    pub(super) async fn serving(&self) -> Result<BrokerHandle> {
        let otherwise = match self.role {
            BrokerRole::Never => WithoutBroker::Fail,
            BrokerRole::Auto | BrokerRole::Only => WithoutBroker::BecomeBroker,
        };
        loop {
            let line = self.line(otherwise, &self.client);
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

    /// Handle of the current broker, of this process or of the connection to another one; starts it if there is none.
    fn line(&self, otherwise: WithoutBroker, client: &Client) -> BrokerHandle {
        let mut running = lock(&self.running);
        match &*running {
            Some(current) if !current.line.has_ended() => current.line.clone(),
            _ => running.insert(self.spawn(otherwise, client)).line.clone(),
        }
    }

    fn spawn(&self, otherwise: WithoutBroker, client: &Client) -> RunningBroker {
        let (requests, received) = mpsc::channel(BROKER_REQUESTS_MAX);
        let (setter, stage) = stage();
        // Connections of its own: those of the caller's runtime may be blocked by a handler.
        let (client, home, transport) = (client.detached(), self.home.clone(), self.transport.clone());
        let link = BrokerThread { client, home, transport, sender: requests.downgrade(), received };
        let work = async move {
            let end = Box::pin(link.run(&setter, otherwise)).await;
            setter.set(BrokerStage::Ended(end));
        };
        let work = self.client.host().spawn_thread("leasehold-broker", Box::pin(work));
        RunningBroker { line: BrokerHandle { requests, stage }, _work: work }
    }
}

/// Thread of a process that is the broker, or is connected to it.
struct BrokerThread {
    client: Client,
    home: LogHome,
    transport: Option<Arc<dyn BrokerTransport>>,
    sender: mpsc::WeakSender<BrokerRequest>,
    received: mpsc::Receiver<BrokerRequest>,
}

impl BrokerThread {
    async fn run(self, stage: &StageSetter, otherwise: WithoutBroker) -> BrokerEnd {
        let Self { client, home, transport, sender, received } = self;
        let opened = match (otherwise, &transport) {
            (WithoutBroker::Follow, Some(transport)) => match connect(&client, &**transport).await {
                Ok(Some(channel)) => Ok(OpenedQueue::Client(channel)),
                Ok(None) => {
                    return BrokerEnd::Stopped("the broker of this queue cannot be reached".to_owned());
                }
                // A request that needs a broker reports the error when it opens one.
                Err(error) => return BrokerEnd::Stopped(error.to_string()),
            },
            (WithoutBroker::Fail, transport) => connect_only(&client, transport.as_deref(), stage).await,
            _ => open(&client, &home, transport.as_deref(), stage).await,
        };
        let served = match opened {
            Err(error) => return BrokerEnd::NotOpened(error.kind(), error.to_string()),
            Ok(OpenedQueue::Client(channel)) => {
                stage.set(BrokerStage::Serving { is_broker: false });
                tracing::debug!(queue = %client.describe(), "connected to the broker of the queue");
                let served = serve_remotely(channel, received, client.host().clone()).await;
                if let Err(error) = &served {
                    tracing::warn!(%error, "connection to the broker has ended, the next request finds or starts another");
                }
                return end(served);
            }
            Ok(OpenedQueue::Broker(journal, listener)) => {
                stage.set(BrokerStage::Serving { is_broker: true });
                tracing::info!(queue = %client.describe(), "became the broker of the queue");
                let host = client.host().clone();
                let clients = ClientCount::default();
                let broker = Box::pin(Broker::new(client, *journal, received, clients.clone()).serve());
                match listener {
                    Some(listener) => Box::pin(serve_clients(listener, sender, host, clients, broker)).await,
                    None => broker.await,
                }
            }
        };
        if let Err(error) = &served {
            tracing::warn!(%error, "broker has stopped, the next request finds or starts another");
        }
        end(served)
    }
}

fn end(served: Result<()>) -> BrokerEnd {
    served.map_or_else(|error| BrokerEnd::Stopped(error.to_string()), |()| BrokerEnd::Closed)
}

impl BrokerHandle {
    fn has_ended(&self) -> bool {
        self.stage.has_ended()
    }

    /// True if this process is the broker.
    pub(super) fn is_broker(&self) -> bool {
        self.stage.is_broker()
    }

    /// Waits until the broker has ended, or the connection to it.
    pub(super) async fn ended(&self) -> BrokerEnd {
        self.stage.ended().await
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
        let lost = Error::new(Kind::Unavailable, message);
        if breaks("lost-answer-is-refusal") { lost } else { lost.with_unknown_outcome() }
    }
}
