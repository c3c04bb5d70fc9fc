//! Client of a broker in another process. To the queue it looks like a broker of this process: it receives the same requests,
//! and ends when the connection does.

use bytes::Bytes;
use futures::future::select;
use leasehold_core::journal::SettleRequest;
use leasehold_core::{Error, Kind, Result};
use leasehold_store::Host;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

use super::request::BrokerRequest;
use super::transport::LineChannel;
use super::wire::{RemoteAnswer, complete, encode_call};

/// Time for the last requests of a process to reach the broker.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

/// Passes requests to a broker until the connection is closed, which is an error, or all senders of requests are gone.
pub(super) async fn serve_remotely(
    channel: LineChannel,
    mut requests: mpsc::Receiver<BrokerRequest>,
    host: Arc<dyn Host>,
) -> Result<()> {
    let LineChannel { sender, mut receiver, work } = channel;
    let mut waiting = BTreeMap::new();
    let mut next = 0;
    loop {
        tokio::select! {
            biased;
            line = receiver.recv() => {
                let line = line.ok_or_else(disconnected)?;
                for release in complete(&line, |id| waiting.remove(&id))? {
                    send(BrokerRequest::release(release), &mut next, &mut waiting, &sender).await?;
                }
            }
            // A broker that is slow to read makes its clients wait.
            request = requests.recv(), if sender.capacity() > 0 => match request {
                None => {
                    drop(sender);
                    if let Some(work) = work {
                        select(work, host.sleep(LAST_REQUESTS)).await;
                    }
                    return Ok(());
                }
                Some(BrokerRequest::Close) => {
                    requests.close();
                }
                Some(request) => send(request, &mut next, &mut waiting, &sender).await?,
            },
        }
    }
}

async fn send(
    request: BrokerRequest,
    next: &mut u64,
    waiting: &mut BTreeMap<u64, RemoteAnswer>,
    sender: &mpsc::Sender<Bytes>,
) -> Result<()> {
    let id = *next;
    *next += 1;
    let Some((line, answer)) = encode_call(id, request) else { return Ok(()) };
    waiting.insert(id, answer);
    sender.send(line).await.map_err(|_| disconnected())
}

fn disconnected() -> Error {
    Error::new(Kind::Unavailable, "the broker of this queue has closed the connection; retry")
}

impl BrokerRequest {
    /// Releases a claim that this process has received, and that nobody runs. Its outcome is not waited for: a claim that is
    /// not released expires.
    fn release(release: SettleRequest) -> Self {
        let (answer, _) = oneshot::channel();
        Self::Settle { settlement: Box::new(release), answer }
    }
}
