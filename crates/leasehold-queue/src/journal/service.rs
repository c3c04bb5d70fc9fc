//! Clients of a broker in other processes: their requests go into the broker's own queue of requests, and each answer is sent
//! when the broker has given it.
//!
//! Limits: [`BROKER_CLIENTS_MAX`] connections, and [`CLIENT_CALLS_MAX`] open requests of each. A connection with more is not
//! read until answers were sent, so that a client with many requests waits, and nothing grows.

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use leasehold_core::limits::{BROKER_CLIENTS_MAX, CLIENT_CALLS_MAX};
use leasehold_store::Host;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

use super::request::BrokerRequest;
use super::transport::{BrokerListener, LineChannel};
use super::wire::decode_call;
use crate::source::next_or;

/// Time for the last answers of a broker to reach its clients.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Serves the clients of a listener while `broker` runs, and then sends the last answers. Returns the output of `broker`.
pub(super) async fn serve_clients<T>(
    listener: BrokerListener,
    requests: mpsc::WeakSender<BrokerRequest>,
    host: Arc<dyn Host>,
    broker: impl Future<Output = T>,
) -> T {
    let BrokerListener { mut accepted, work } = listener;
    let has_ended = watch::Sender::new(false);
    let output = {
        let mut clients = FuturesUnordered::new();
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
                    Either::Right(Some(client)) => {
                        clients.push(serve_client(client, requests.clone(), has_ended.subscribe()));
                    }
                }
            }
        };
        let output = match select(pin!(broker), pin!(accepting)).await {
            Either::Left((output, _)) => output,
            Either::Right(_) => unreachable!("it never ends"),
        };
        has_ended.send_replace(true);
        // Each sends the answers that it has, and ends.
        select(pin!(async { while clients.next().await.is_some() {} }), host.sleep(LAST_ANSWERS)).await;
        output
    };
    drop(accepted);
    select(work, host.sleep(LAST_ANSWERS)).await;
    output
}

/// Serves one client until it disconnects, sends a malformed line, or the broker ends. What the broker has not answered is
/// dropped, and claims among it are released.
async fn serve_client(
    client: LineChannel,
    requests: mpsc::WeakSender<BrokerRequest>,
    mut has_ended: watch::Receiver<bool>,
) {
    let LineChannel { sender, mut receiver, work: _work } = client;
    let mut answers: Answers = FuturesUnordered::new();
    loop {
        let line = {
            let received = pin!(receive(&mut receiver, answers.len() < CLIENT_CALLS_MAX));
            let ended = pin!(has_ended.wait_for(|has_ended| *has_ended));
            match select(select(received, ended), pin!(forward(&mut answers, &sender))).await {
                Either::Left((Either::Left((Some(line), _)), _)) => line,
                Either::Left((Either::Right(_), _)) => break,
                Either::Left((Either::Left((None, _)), _)) | Either::Right(_) => return,
            }
        };
        let (request, answer) = match decode_call(&line) {
            Ok(call) => call,
            Err(error) => {
                tracing::warn!(%error, "client of the broker sent a malformed request, disconnected it");
                return;
            }
        };
        let Some(requests) = requests.upgrade() else { break };
        // Answers are sent while the broker has no room for another request.
        let sent = {
            let forwarding = pin!(forward(&mut answers, &sender));
            match select(pin!(requests.send(request)), forwarding).await {
                Either::Left((sent, _)) => sent,
                Either::Right(_) => return,
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

/// Answers of a client that the broker has yet to give.
type Answers = FuturesUnordered<BoxFuture<'static, Option<Bytes>>>;

/// Receives a line, if there is room for its answer.
async fn receive(receiver: &mut mpsc::Receiver<Bytes>, has_room: bool) -> Option<Bytes> {
    if has_room { receiver.recv().await } else { std::future::pending().await }
}

/// Sends answers until the client disconnects, or one was sent and there may be room again.
///
/// # Cancel safety
///
/// No answer is lost when the future is dropped: there is room for it before it is taken.
async fn forward(answers: &mut Answers, sender: &mpsc::Sender<Bytes>) {
    loop {
        let Ok(room) = sender.reserve().await else { return };
        match answers.next().await {
            Some(Some(answer)) => room.send(answer),
            // The broker drops answers when it ends.
            Some(None) => {}
            None => std::future::pending().await,
        }
    }
}
