//! Timeouts of one connection.
//!
//! ```text
//!            first byte            whole head              all of the answer is with the kernel
//!   Idle ───────────────▶ Head ───────────────▶ Answering ──────────────────────────────────────▶ Idle
//!                          ▲                      │    ▲
//!                   accepted               no room│    │room for 64 KiB, or for the rest
//!                                                 ▼    │
//!                                                 Stuck
//! ```
//!
//! A timeout runs only while the server waits for the client, and restarts with each phase. A head must arrive whole within
//! its timeout, not byte by byte. While a response is prepared or waits for its turn, no timeout runs.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use leasehold_store::Host;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Fewest bytes of its response that a client must read within a timeout.
const TAKEN_BYTES_MIN: usize = 64 * 1_024;

/// Phase of a connection, by what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    /// The next request.
    Idle,
    /// The rest of a request's head.
    Head,
    /// The server.
    Answering,
    /// The client, to read its response.
    Stuck,
}

/// Timeouts of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionTimeouts {
    pub(super) head: Duration,
    pub(super) idle: Duration,
}

/// State of a connection. It is changed only by the connection's own task.
#[derive(Debug)]
pub struct Connection {
    phase: watch::Sender<ConnectionPhase>,
    /// True once hyper has the whole response.
    handed_over: AtomicBool,
    /// Bytes that the client has read since the connection got stuck.
    taken: AtomicUsize,
}

impl Connection {
    /// State of a new connection: the head timeout runs from the start.
    pub(super) fn new() -> Arc<Self> {
        let phase = watch::Sender::new(ConnectionPhase::Head);
        Arc::new(Self { phase, handed_over: AtomicBool::new(false), taken: AtomicUsize::new(0) })
    }

    /// True while a response is in progress.
    pub(super) fn is_answering(&self) -> bool {
        matches!(*self.phase.borrow(), ConnectionPhase::Answering | ConnectionPhase::Stuck)
    }

    /// Records that the head of a request has arrived.
    pub fn asked(&self) {
        self.handed_over.store(false, Relaxed);
        self.turn(&[ConnectionPhase::Idle, ConnectionPhase::Head], ConnectionPhase::Answering);
    }

    /// Records that hyper has the whole body of the response.
    pub fn handed_over(&self) {
        self.handed_over.store(true, Relaxed);
    }

    /// Waits until the client times out; returns the phase in which it did.
    pub(super) async fn kept_waiting(&self, host: &dyn Host, waits: ConnectionTimeouts) -> ConnectionPhase {
        let mut changes = self.phase.subscribe();
        loop {
            let phase = *changes.borrow_and_update();
            let wait = match phase {
                ConnectionPhase::Idle | ConnectionPhase::Stuck => Some(waits.idle),
                ConnectionPhase::Head => Some(waits.head),
                ConnectionPhase::Answering => None,
            };
            let over = async {
                match wait {
                    Some(wait) => host.sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives in `self`.
                _ = changes.changed() => {}
                () = over => return phase,
            }
        }
    }

    fn heard(&self) {
        self.turn(&[ConnectionPhase::Idle], ConnectionPhase::Head);
    }

    fn got_stuck(&self) {
        if self.turn(&[ConnectionPhase::Answering], ConnectionPhase::Stuck) {
            self.taken.store(0, Relaxed);
        }
    }

    fn took(&self, bytes: usize) {
        if self.taken.fetch_add(bytes, Relaxed) + bytes >= TAKEN_BYTES_MIN {
            self.turn(&[ConnectionPhase::Stuck], ConnectionPhase::Answering);
        }
    }

    fn flushed(&self) {
        let next =
            if self.handed_over.load(Relaxed) { ConnectionPhase::Idle } else { ConnectionPhase::Answering };
        self.turn(&[ConnectionPhase::Answering, ConnectionPhase::Stuck], next);
    }

    fn turn(&self, from: &[ConnectionPhase], to: ConnectionPhase) -> bool {
        self.phase.send_if_modified(|phase| {
            let turns = from.contains(phase) && *phase != to;
            if turns {
                *phase = to;
            }
            turns
        })
    }
}

/// Stream of a connection that updates the state of the connection.
pub(super) struct Wire {
    stream: TokioIo<TcpStream>,
    line: Arc<Connection>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, line: Arc<Connection>) -> Self {
        Self { stream: TokioIo::new(stream), line }
    }

    fn note_write(&self, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &wrote {
            Poll::Pending => self.line.got_stuck(),
            Poll::Ready(Ok(bytes)) => self.line.took(*bytes),
            Poll::Ready(Err(_)) => {}
        }
        wrote
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.line.heard();
        }
        read
    }
}

impl Write for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_write(wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.note_write(wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when it has written all that it holds.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.line.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_runs_only_while_the_client_is_to_act() {
        let line = Connection::new();
        let phase = || *line.phase.borrow();
        assert_eq!(phase(), ConnectionPhase::Head);
        line.asked();
        line.flushed();
        assert_eq!(phase(), ConnectionPhase::Answering, "there is no answer yet");
        line.got_stuck();
        line.handed_over();
        assert!(phase() == ConnectionPhase::Stuck && line.is_answering());
        line.flushed();
        assert_eq!(phase(), ConnectionPhase::Idle);
        line.got_stuck();
        assert_eq!(phase(), ConnectionPhase::Idle, "nothing is owed");
        line.heard();
        assert_eq!(phase(), ConnectionPhase::Head);
    }

    #[test]
    fn a_client_that_reads_byte_by_byte_stays_stuck() {
        let line = Connection::new();
        line.asked();
        line.got_stuck();
        let stuck = line.phase.subscribe();
        for _ in 0..63 {
            line.took(1_024);
            line.got_stuck();
        }
        assert!(!stuck.has_changed().unwrap());
        line.took(1_024);
        assert_eq!(*line.phase.borrow(), ConnectionPhase::Answering);
    }
}
