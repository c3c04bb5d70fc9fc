//! One connection, watched: who keeps a server waiting is cut off.
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
//! Only where the client is to act does the time run: it starts anew with each phase. A head must come whole within its
//! time, not byte by byte; while an answer is made or waits for its turn, nobody is blamed.

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

/// A client that takes its answer slower than this much per wait is as bad as one that does not take it.
const TAKEN_BYTES_MIN: usize = 64 * 1_024;

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// For a request.
    Idle,
    /// For the rest of a request's head.
    Head,
    /// For us.
    Answering,
    /// For the client to take its answer.
    Stuck,
}

/// How long a connection waits for its client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waits {
    pub(super) head: Duration,
    pub(super) idle: Duration,
}

/// Where a connection stands. Everything that changes it runs in the connection's own task.
#[derive(Debug)]
pub struct Line {
    phase: watch::Sender<Phase>,
    /// Whether the answer is with hyper, whole.
    handed_over: AtomicBool,
    /// Bytes taken since the line got stuck.
    taken: AtomicUsize,
}

impl Line {
    /// A new connection has to say something soon.
    pub(super) fn new() -> Arc<Self> {
        let phase = watch::Sender::new(Phase::Head);
        Arc::new(Self { phase, handed_over: AtomicBool::new(false), taken: AtomicUsize::new(0) })
    }

    /// Whether an answer is on its way.
    pub(super) fn is_answering(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Answering | Phase::Stuck)
    }

    /// The head of a request is there.
    pub fn asked(&self) {
        self.handed_over.store(false, Relaxed);
        self.turn(&[Phase::Idle, Phase::Head], Phase::Answering);
    }

    /// The body of the answer has been given to hyper.
    pub fn handed_over(&self) {
        self.handed_over.store(true, Relaxed);
    }

    /// Waits until the client has kept us waiting for too long; says with what.
    pub(super) async fn kept_waiting(&self, host: &dyn Host, waits: Waits) -> Phase {
        let mut changes = self.phase.subscribe();
        loop {
            let phase = *changes.borrow_and_update();
            let wait = match phase {
                Phase::Idle | Phase::Stuck => Some(waits.idle),
                Phase::Head => Some(waits.head),
                Phase::Answering => None,
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
        self.turn(&[Phase::Idle], Phase::Head);
    }

    fn got_stuck(&self) {
        if self.turn(&[Phase::Answering], Phase::Stuck) {
            self.taken.store(0, Relaxed);
        }
    }

    fn took(&self, bytes: usize) {
        if self.taken.fetch_add(bytes, Relaxed) + bytes >= TAKEN_BYTES_MIN {
            self.turn(&[Phase::Stuck], Phase::Answering);
        }
    }

    fn flushed(&self) {
        let next = if self.handed_over.load(Relaxed) { Phase::Idle } else { Phase::Answering };
        self.turn(&[Phase::Answering, Phase::Stuck], next);
    }

    fn turn(&self, from: &[Phase], to: Phase) -> bool {
        self.phase.send_if_modified(|phase| {
            let turns = from.contains(phase) && *phase != to;
            if turns {
                *phase = to;
            }
            turns
        })
    }
}

/// The stream of a connection, which tells its line what happens.
pub(super) struct Wire {
    stream: TokioIo<TcpStream>,
    line: Arc<Line>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, line: Arc<Line>) -> Self {
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
    fn a_line_is_blamed_only_for_what_its_client_owes() {
        let line = Line::new();
        let phase = || *line.phase.borrow();
        assert_eq!(phase(), Phase::Head);
        line.asked();
        line.flushed();
        assert_eq!(phase(), Phase::Answering, "there is no answer yet");
        line.got_stuck();
        line.handed_over();
        assert!(phase() == Phase::Stuck && line.is_answering());
        line.flushed();
        assert_eq!(phase(), Phase::Idle);
        line.got_stuck();
        assert_eq!(phase(), Phase::Idle, "nothing is owed");
        line.heard();
        assert_eq!(phase(), Phase::Head);
    }

    #[test]
    fn who_takes_an_answer_byte_by_byte_does_not_take_it() {
        let line = Line::new();
        line.asked();
        line.got_stuck();
        let stuck = line.phase.subscribe();
        for _ in 0..63 {
            line.took(1_024);
            line.got_stuck();
        }
        assert!(!stuck.has_changed().unwrap());
        line.took(1_024);
        assert_eq!(*line.phase.borrow(), Phase::Answering);
    }
}
