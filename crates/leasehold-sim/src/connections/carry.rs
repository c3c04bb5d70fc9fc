//! A connection: passes lines in both directions, until one end closes it, ends without that, or it breaks.

use bytes::Bytes;
use futures::future::{Either, join, select};
use leasehold_queue::LineChannel;
use std::fmt::Write;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc;

use super::Connections;
use crate::executor::ProcessId;
use crate::random::SimRandom;

/// Upper bound of the usual time that a line takes.
const LATENCY_MAX: Duration = Duration::from_millis(5);
/// Upper bound of the time that a slow line takes: longer than a client waits for a sign of its broker.
const SLOW_MAX: Duration = Duration::from_secs(40);
/// Upper bound of the time after which an end learns that its connection has broken.
const LEARNS_WITHIN: Duration = Duration::from_secs(8);
/// Upper bound of the time after which a process learns that the other end of its connection has vanished.
const VANISHED_WITHIN: Duration = Duration::from_mins(15);
/// Number of characters of a line in the trace.
const TRACED: usize = 100;

/// Lines of one process, as the connection has them.
pub(super) struct FarEnd {
    node: String,
    process: ProcessId,
    outgoing: mpsc::Receiver<Bytes>,
    incoming: mpsc::Sender<Bytes>,
}

/// Connection between two processes.
pub(super) struct SimConnection {
    pub(super) connections: Connections,
    pub(super) client: FarEnd,
    pub(super) broker: FarEnd,
}

/// End of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PassEnd {
    /// The sender has closed the connection.
    Closed,
    /// The process of the sender was killed.
    Killed,
    /// The receiver has closed the connection.
    Refused,
    Broken,
}

/// Creates a channel of a process, and its far end.
pub(super) fn channel(lines_max: usize, node: &str, process: ProcessId) -> (LineChannel, FarEnd) {
    let (sender, outgoing) = mpsc::channel(lines_max);
    let (incoming, receiver) = mpsc::channel(lines_max);
    let end = FarEnd { node: node.to_owned(), process, outgoing, incoming };
    (LineChannel { sender, receiver, work: None }, end)
}

/// Draws the usual time that a line takes.
pub(super) fn latency(rng: &mut SimRandom) -> Duration {
    rng.between(Duration::from_micros(100), LATENCY_MAX)
}

impl SimConnection {
    /// Passes lines until the connection ends, and then until both ends have learned that.
    pub(super) async fn carry(self, mut rng: SimRandom) {
        let Self { connections, mut client, mut broker } = self;
        let (up, down) = (SimRandom::new(rng.next()), SimRandom::new(rng.next()));
        let (end, is_by_client) = {
            let up = connections.pass(
                &mut client.outgoing,
                (client.process, &client.node),
                (&broker.incoming, &broker.node),
                up,
            );
            let down = connections.pass(
                &mut broker.outgoing,
                (broker.process, &broker.node),
                (&client.incoming, &client.node),
                down,
            );
            match select(pin!(up), pin!(down)).await {
                Either::Left((end, _)) => (end, end != PassEnd::Refused),
                Either::Right((end, _)) => (end, end == PassEnd::Refused),
            }
        };
        let (first, second) = if is_by_client { (client, broker) } else { (broker, client) };
        connections.note(&first.node, format_args!("⇹ {}: {end:?}", second.node));
        if end == PassEnd::Broken {
            let (one, other) =
                (rng.between(Duration::ZERO, LEARNS_WITHIN), rng.between(Duration::ZERO, LEARNS_WITHIN));
            join(connections.lose(first, one), connections.lose(second, other)).await;
            return;
        }
        let names = (first.node, second.node.clone());
        drop((first.outgoing, first.incoming));
        let is_silent = end == PassEnd::Killed && rng.happens(3_000);
        if connections.is_injected(is_silent) {
            connections.lose(second, rng.between(LEARNS_WITHIN, VANISHED_WITHIN)).await;
        } else {
            connections.executor.sleep(latency(&mut rng)).await;
            connections.until_joined(&names.0, &names.1).await;
        }
    }
}

impl Connections {
    /// Passes lines in one direction.
    async fn pass(
        &self,
        outgoing: &mut mpsc::Receiver<Bytes>,
        (process, from): (ProcessId, &str),
        (incoming, to): (&mpsc::Sender<Bytes>, &str),
        mut rng: SimRandom,
    ) -> PassEnd {
        loop {
            let line = outgoing.recv().await;
            let is_killed = !self.executor.is_alive(process);
            // Lines that a killed process had not handed to its machine are lost.
            let line = line.filter(|_| !is_killed || rng.happens(7_000));
            let Some(line) = line else {
                return if is_killed { PassEnd::Killed } else { PassEnd::Closed };
            };
            let (is_slow, is_broken) = (rng.happens(self.rates.slow), rng.happens(self.rates.broken));
            let (usual, slow) = (latency(&mut rng), rng.between(LATENCY_MAX, SLOW_MAX));
            let arrives = rng.happens(5_000);
            self.executor.sleep(if self.is_injected(is_slow) { slow } else { usual }).await;
            self.until_joined(from, to).await;
            let is_broken = self.is_injected(is_broken);
            if is_broken && !arrives {
                return PassEnd::Broken;
            }
            self.note(from, format_args!("→ {to} {}", shortened(&line)));
            // The end of the line belongs to the stream, not to the line that is received.
            let line = line.slice(..line.len() - 1);
            if incoming.send(line).await.is_err() {
                return PassEnd::Refused;
            }
            if is_broken {
                return PassEnd::Broken;
            }
        }
    }

    /// Loses what a process sends until it has learned that its connection has ended, or closes it.
    async fn lose(&self, mut end: FarEnd, learns_after: Duration) {
        let mut learned = self.executor.sleep(learns_after);
        while let Either::Left((Some(_), _)) = select(pin!(end.outgoing.recv()), &mut learned).await {}
    }
}

/// Beginning of a line, for the trace.
fn shortened(line: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(line).trim_end().chars().take(TRACED).collect::<String>();
    if line.len() > TRACED {
        let _ = write!(text, "… {} bytes", line.len());
    }
    text
}
