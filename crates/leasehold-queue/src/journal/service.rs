//! Clients of a broker in other processes: their requests go into the broker's own queue of requests, and each answer is sent
//! when the broker has given it.
//!
//! A client that has not shown that it may write to the bucket gets answers to reads, and an error for everything else.
//!
//! Limits: [`BROKER_CLIENTS_MAX`] connections, and [`CLIENT_CALLS_MAX`] open requests of each. A connection with more is not
//! read until answers were sent, so that a client with many requests waits, and nothing grows.

use bytes::Bytes;
use futures::future::{BoxFuture, Either, Shared, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use leasehold_core::limits::{BROKER_CLIENTS_MAX, CLIENT_CALLS_MAX};
use leasehold_store::Host;
use leasehold_store::mutant::breaks;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

use super::request::BrokerRequest;
use super::wire::{UndeliveredClaims, claims_of, decode_call};
use crate::source::next_or;
use leasehold_broker::{AcceptedClient, BrokerListener, LineChannel};

/// Interval of empty lines to each client, by which it tells a broker that is idle from one that is stopped.
pub(super) const PULSE_INTERVAL: Duration = Duration::from_secs(5);

/// Time for the last answers of a broker to reach its clients.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Serves the clients of a listener while `broker` runs, and then sends the last answers. Returns the output of `broker`.
pub(super) async fn serve_clients<T>(
    listener: BrokerListener,
    requests: mpsc::WeakSender<BrokerRequest>,
    host: Arc<dyn Host>,
    count: ClientCount,
    broker: impl Future<Output = T>,
) -> T {
    let BrokerListener { mut accepted, work } = listener;
    // Wakes the clients in one order, as a `watch` does not.
    let (running, ended) = oneshot::channel::<()>();
    let ended: BrokerEnded = ended.map(drop).boxed().shared();
    let output = {
        let mut clients = FuturesUnordered::new();
        // Clients that connect while the broker closes wait here for its end: then they find the next one.
        let mut late = Vec::new();
        let accepting = async {
            loop {
                match next_or(&mut clients, pin!(accepted.recv())).await {
                    Either::Left(()) => {}
                    // The broker serves its own process on.
                    Either::Right(None) => return std::future::pending::<()>().await,
                    Either::Right(Some(_)) if clients.len() >= BROKER_CLIENTS_MAX => {
                        tracing::warn!(
                            connections = clients.len(),
                            "too many connections to the broker, refused one"
                        );
                    }
                    Either::Right(Some(client)) if requests.upgrade().is_none_or(|open| open.is_closed()) => {
                        late.push(client);
                    }
                    Either::Right(Some(client)) => {
                        let counted = count.add();
                        let served = serve_client(client, requests.clone(), host.clone(), ended.clone());
                        clients.push(async move {
                            let _counted = counted;
                            served.await;
                        });
                    }
                }
            }
        };
        let output = match select(pin!(broker), pin!(accepting)).await {
            Either::Left((output, _)) => output,
            Either::Right(_) => unreachable!("it never ends"),
        };
        drop(running);
        // Each sends the answers that it has, and ends.
        select(pin!(async { while clients.next().await.is_some() {} }), host.sleep(LAST_ANSWERS)).await;
        output
    };
    drop(accepted);
    select(work, host.sleep(LAST_ANSWERS)).await;
    output
}

/// Ends when the broker has ended.
type BrokerEnded = Shared<BoxFuture<'static, ()>>;

/// Serves one client until it disconnects, sends a malformed line, or the broker ends. What the broker has not answered is
/// dropped, and claims among it are released.
async fn serve_client(
    client: AcceptedClient,
    requests: mpsc::WeakSender<BrokerRequest>,
    host: Arc<dyn Host>,
    mut ended: BrokerEnded,
) {
    let AcceptedClient { channel: LineChannel { sender, mut receiver, work: _work }, access } = client;
    let mut answers: Answers = FuturesUnordered::new();
    let mut sent = SentClaims { claims: Vec::new(), requests: requests.clone() };
    let mut pulse = host.sleep(PULSE_INTERVAL);
    loop {
        let event = tokio::select! {
            biased;
            () = &mut ended => break,
            is_open = forward(&mut answers, &sender, &mut sent) => ClientEvent::Answered { is_open },
            line = receiver.recv(), if answers.len() < CLIENT_CALLS_MAX => ClientEvent::Line(line),
            () = &mut pulse => ClientEvent::Pulse,
        };
        let line = match event {
            ClientEvent::Answered { is_open: true } => continue,
            // It shows that the client runs.
            ClientEvent::Line(Some(line)) if line.is_empty() => continue,
            ClientEvent::Answered { is_open: false } | ClientEvent::Line(None) => return,
            ClientEvent::Line(Some(line)) => line,
            ClientEvent::Pulse => {
                // A client that does not read knows that it is connected.
                let _ = sender.try_send(Bytes::from_static(b"\n"));
                pulse = host.sleep(PULSE_INTERVAL);
                continue;
            }
        };
        let (request, answer) = match decode_call(&line, &*host, access) {
            Ok((Some(request), answer)) => (request, answer),
            Ok((None, answer)) => {
                answers.push(answer);
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "client of the broker sent a malformed request, disconnected it");
                return;
            }
        };
        let Some(requests) = requests.upgrade() else { break };
        let mut sending = pin!(requests.send(request));
        // Answers are sent while the broker has no room for another request.
        let sent = loop {
            tokio::select! {
                biased;
                sent = &mut sending => break sent,
                is_open = forward(&mut answers, &sender, &mut sent) => if !is_open { return },
            }
        };
        if sent.is_err() {
            break;
        }
        answers.push(answer);
    }
    while let Some(answer) = answers.next().await {
        let Some(answer) = answer else { continue };
        if sender.send(answer).await.is_err() {
            return;
        }
    }
}

/// Number of connected clients.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientCount(Arc<AtomicU64>);

impl ClientCount {
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts a client until the result is dropped.
    fn add(&self) -> CountedClient {
        self.0.fetch_add(1, Ordering::Relaxed);
        CountedClient(self.clone())
    }
}

/// A client that is counted.
struct CountedClient(ClientCount);

impl Drop for CountedClient {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

enum ClientEvent {
    /// An answer was sent, or dropped by the broker; there may be room for another request.
    Answered {
        is_open: bool,
    },
    Line(Option<Bytes>),
    Pulse,
}

/// Answers of a client that the broker has yet to give.
type Answers = FuturesUnordered<BoxFuture<'static, Option<Bytes>>>;

/// Waits for an answer and sends it. False if the client has disconnected.
///
/// # Cancel safety
///
/// No answer is lost when the future is dropped: there is room for it before it is taken.
async fn forward(answers: &mut Answers, sender: &mpsc::Sender<Bytes>, sent: &mut SentClaims) -> bool {
    let Ok(room) = sender.reserve().await else { return false };
    match answers.next().await {
        Some(Some(answer)) => {
            if breaks("claim-released-after-answer") {
                sent.claims.extend(claims_of(&answer));
            }
            room.send(answer);
        }
        // The broker drops answers when it ends.
        Some(None) => {}
        None => std::future::pending().await,
    }
    true
}

/// Claims that are released when their connection ends, although their answers were sent: none, but for a mutant of rule C6.
struct SentClaims {
    claims: UndeliveredClaims,
    requests: mpsc::WeakSender<BrokerRequest>,
}

impl Drop for SentClaims {
    fn drop(&mut self) {
        if let Some(requests) = self.requests.upgrade() {
            self.claims.drain(..).for_each(|claim| drop(requests.try_send(BrokerRequest::release(claim))));
        }
    }
}
