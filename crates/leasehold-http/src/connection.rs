//! Timeouts of one connection.
//!
//! ```text
//!            first byte            whole head              all of the response is with the kernel
//!   Idle ───────────────▶ Head ───────────────▶ Responding ─────────────────────────────────────▶ Idle
//!                          ▲                      │    ▲
//!                   accepted               no room│    │room for 64 KiB, or for the rest
//!                                                 ▼    │
//!                                                 Stalled
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
const READ_BYTES_MIN: usize = 64 * 1_024;

/// Phase of a connection, by what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
    /// The next request.
    Idle,
    /// The rest of a request's head.
    Head,
    /// The server.
    Responding,
    /// The client, to read its response.
    Stalled,
}

/// Timeouts of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionTimeouts {
    pub(crate) head: Duration,
    pub(crate) idle: Duration,
}

/// State of a connection. It is changed only by the connection's own task.
#[derive(Debug)]
pub struct Connection {
    phase: watch::Sender<ConnectionPhase>,
    /// True once hyper has the whole response.
    is_body_handed_over: AtomicBool,
    /// Bytes that the client has read since the connection stalled.
    read_bytes: AtomicUsize,
}

impl Connection {
    /// State of a new connection: the head timeout runs from the start.
    pub(crate) fn new() -> Arc<Self> {
        let phase = watch::Sender::new(ConnectionPhase::Head);
        Arc::new(Self { phase, is_body_handed_over: AtomicBool::new(false), read_bytes: AtomicUsize::new(0) })
    }

    /// True while a response is in progress.
    pub(crate) fn is_responding(&self) -> bool {
        matches!(*self.phase.borrow(), ConnectionPhase::Responding | ConnectionPhase::Stalled)
    }

    /// Records that the head of a request has arrived.
    pub fn request_received(&self) {
        self.is_body_handed_over.store(false, Relaxed);
        self.transition(&[ConnectionPhase::Idle, ConnectionPhase::Head], ConnectionPhase::Responding);
    }

    /// Records that hyper has the whole body of the response.
    pub fn body_handed_over(&self) {
        self.is_body_handed_over.store(true, Relaxed);
    }

    /// Waits until the client times out; returns the phase in which it did.
    pub(crate) async fn timed_out(&self, host: &dyn Host, timeouts: ConnectionTimeouts) -> ConnectionPhase {
        let mut changes = self.phase.subscribe();
        loop {
            let phase = *changes.borrow_and_update();
            let wait = match phase {
                ConnectionPhase::Idle | ConnectionPhase::Stalled => Some(timeouts.idle),
                ConnectionPhase::Head => Some(timeouts.head),
                ConnectionPhase::Responding => None,
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

    fn bytes_received(&self) {
        self.transition(&[ConnectionPhase::Idle], ConnectionPhase::Head);
    }

    fn write_blocked(&self) {
        if self.transition(&[ConnectionPhase::Responding], ConnectionPhase::Stalled) {
            self.read_bytes.store(0, Relaxed);
        }
    }

    fn bytes_written(&self, bytes: usize) {
        if self.read_bytes.fetch_add(bytes, Relaxed) + bytes >= READ_BYTES_MIN {
            self.transition(&[ConnectionPhase::Stalled], ConnectionPhase::Responding);
        }
    }

    fn flushed(&self) {
        let next = if self.is_body_handed_over.load(Relaxed) {
            ConnectionPhase::Idle
        } else {
            ConnectionPhase::Responding
        };
        self.transition(&[ConnectionPhase::Responding, ConnectionPhase::Stalled], next);
    }

    fn transition(&self, from: &[ConnectionPhase], to: ConnectionPhase) -> bool {
        self.phase.send_if_modified(|phase| {
            let changes = from.contains(phase) && *phase != to;
            if changes {
                *phase = to;
            }
            changes
        })
    }
}

/// Stream of a connection that updates the state of the connection.
pub(crate) struct TrackedStream {
    stream: TokioIo<TcpStream>,
    connection: Arc<Connection>,
}

impl TrackedStream {
    pub(crate) fn new(stream: TcpStream, connection: Arc<Connection>) -> Self {
        Self { stream: TokioIo::new(stream), connection }
    }

    fn note_write(&self, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &wrote {
            Poll::Pending => self.connection.write_blocked(),
            Poll::Ready(Ok(bytes)) => self.connection.bytes_written(*bytes),
            Poll::Ready(Err(_)) => {}
        }
        wrote
    }
}

impl Read for TrackedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.connection.bytes_received();
        }
        read
    }
}

impl Write for TrackedStream {
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
            self.connection.flushed();
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
    fn a_timeout_runs_only_while_the_client_must_act() {
        let connection = Connection::new();
        let phase = || *connection.phase.borrow();
        assert_eq!(phase(), ConnectionPhase::Head);
        connection.request_received();
        connection.flushed();
        assert_eq!(phase(), ConnectionPhase::Responding, "there is no response yet");
        connection.write_blocked();
        connection.body_handed_over();
        assert!(phase() == ConnectionPhase::Stalled && connection.is_responding());
        connection.flushed();
        assert_eq!(phase(), ConnectionPhase::Idle);
        connection.write_blocked();
        assert_eq!(phase(), ConnectionPhase::Idle, "no response is in progress");
        connection.bytes_received();
        assert_eq!(phase(), ConnectionPhase::Head);
    }

    #[test]
    fn a_client_that_reads_byte_by_byte_stays_stalled() {
        let connection = Connection::new();
        connection.request_received();
        connection.write_blocked();
        let stalled = connection.phase.subscribe();
        for _ in 0..63 {
            connection.bytes_written(1_024);
            connection.write_blocked();
        }
        assert!(!stalled.has_changed().unwrap());
        connection.bytes_written(1_024);
        assert_eq!(*connection.phase.borrow(), ConnectionPhase::Responding);
    }
}
