//! Client of a broker in another process. To the queue it looks like a broker of this process: it receives the same requests,
//! and ends when the connection does.

use bytes::Bytes;
use futures::future::select;
use leasehold_core::journal::SettleRequest;
use leasehold_core::{Error, Kind, Result};
use leasehold_store::Host;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

use super::request::BrokerRequest;
use super::service::PULSE_INTERVAL;
use super::wire::{RemoteAnswer, complete, encode_call};
use leasehold_broker::LineChannel;

/// Time without a line after which the process of a broker counts as stopped: three times [`PULSE_INTERVAL`].
const SILENCE_MAX: Duration = Duration::from_secs(3 * PULSE_INTERVAL.as_secs());

/// Time for the last requests of a process to reach the broker, and for their answers.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Passes requests to a broker until the connection is closed, which is an error, or all senders of requests are gone.
pub(super) async fn serve_remotely(
    channel: LineChannel,
    mut requests: mpsc::Receiver<BrokerRequest>,
    host: Arc<dyn Host>,
) -> Result<()> {
    let LineChannel { sender, mut receiver, work } = channel;
    let mut calls = OpenCalls::default();
    let mut releases = VecDeque::new();
    let (mut heard_at, mut silence) = (host.instant(), host.sleep(SILENCE_MAX));
    // Set when no more requests follow.
    let mut closing = None;
    while closing.is_none() || calls.has_prompt() || !releases.is_empty() {
        tokio::select! {
            biased;
            line = receiver.recv() => {
                let line = line.ok_or_else(disconnected)?;
                heard_at = host.instant();
                if line.is_empty() {
                    // Each end shows the other one that it runs. A broker that reads no requests waits for none of these.
                    let _ = sender.try_send(Bytes::from_static(b"\n"));
                } else {
                    releases.extend(complete(&line, |id| calls.take(id))?);
                }
            }
            // A broker that is slow to read makes its clients wait.
            received = receive(&sender, &mut releases, &mut requests),
                if closing.is_none() || !releases.is_empty() =>
            {
                match received.ok_or_else(disconnected)? {
                    None => closing = Some(host.sleep(LAST_ANSWERS)),
                    Some(BrokerRequest::Close) => requests.close(),
                    Some(request) => {
                        if let Some(line) = calls.add(request) {
                            sender.send(line).await.map_err(|_| disconnected())?;
                        }
                    }
                }
            }
            () = async {
                match &mut closing {
                    Some(over) => over.await,
                    None => std::future::pending().await,
                }
            } => break,
            () = &mut silence => {
                let left = SILENCE_MAX.saturating_sub(host.instant().since(heard_at));
                if left.is_zero() {
                    return Err(silent());
                }
                silence = host.sleep(left);
            }
        }
    }
    drop(sender);
    if let Some(work) = work {
        select(work, host.sleep(LAST_ANSWERS)).await;
    }
    Ok(())
}

/// Requests that were sent and are not answered.
#[derive(Default)]
struct OpenCalls {
    waiting: BTreeMap<u64, RemoteAnswer>,
    /// Number of them that are answered at once.
    prompt: usize,
    next: u64,
}

impl OpenCalls {
    /// Adds a request, and returns its line.
    fn add(&mut self, request: BrokerRequest) -> Option<Bytes> {
        let (line, answer) = encode_call(self.next, request)?;
        self.prompt += usize::from(answer.is_prompt);
        self.waiting.insert(self.next, answer);
        self.next += 1;
        Some(line)
    }

    fn take(&mut self, id: u64) -> Option<RemoteAnswer> {
        let answer = self.waiting.remove(&id)?;
        self.prompt -= usize::from(answer.is_prompt);
        Some(answer)
    }

    fn has_prompt(&self) -> bool {
        self.prompt > 0
    }
}

/// Receives a request when there is room for its line, releases of unused claims first; none in a closed connection.
///
/// # Cancel safety
///
/// No request is lost when the future is dropped.
async fn receive(
    sender: &mpsc::Sender<Bytes>,
    releases: &mut VecDeque<SettleRequest>,
    requests: &mut mpsc::Receiver<BrokerRequest>,
) -> Option<Option<BrokerRequest>> {
    let _room = sender.reserve().await.ok()?;
    match releases.pop_front() {
        Some(release) => Some(Some(BrokerRequest::release(release))),
        None => Some(requests.recv().await),
    }
}

fn silent() -> Error {
    let secs = SILENCE_MAX.as_secs();
    Error::new(Kind::Unavailable, format!("the broker of this queue has been silent for {secs} s; retry"))
}

fn disconnected() -> Error {
    Error::new(Kind::Unavailable, "the broker of this queue has closed the connection; retry")
}

impl BrokerRequest {
    /// Releases a claim that this process has received, and that nobody runs. Its outcome is not waited for: a claim that is
    /// not released expires.
    pub(super) fn release(release: SettleRequest) -> Self {
        let (answer, _) = oneshot::channel();
        Self::Settle { settlement: Box::new(release), answer }
    }
}
