//! Body of a response.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use super::line::Connection;
use super::pace::SendPacer;
use super::tally::Tally;

/// Bytes that are sent in turns under the rate limit. Dropping it marks the response as handed over to hyper.
pub(super) struct AnswerBody {
    rest: Bytes,
    pace: Option<Arc<SendPacer>>,
    /// Wait for the next turn, and the number of bytes to send then.
    turn: Option<(BoxFuture<'static, ()>, usize)>,
    tally: Tally,
    line: Arc<Connection>,
}

impl AnswerBody {
    pub(super) fn new(
        bytes: Bytes,
        pace: Option<Arc<SendPacer>>,
        tally: Tally,
        line: Arc<Connection>,
    ) -> Self {
        Self { rest: bytes, pace, turn: None, tally, line }
    }

    /// Waits for a turn, if there is a rate limit; returns the number of bytes that may be sent.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<usize> {
        let Some(pace) = &self.pace else { return Poll::Ready(self.rest.len()) };
        let (wait, bytes) = self.turn.get_or_insert_with(|| {
            let bytes = pace.part_bytes().min(self.rest.len());
            let wait = pace.take_turn(bytes);
            (if wait.is_zero() { Box::pin(async {}) } else { pace.sleep(wait) }, bytes)
        });
        ready!(wait.as_mut().poll(context));
        let bytes = *bytes;
        self.turn = None;
        Poll::Ready(bytes)
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let bytes = ready!(self.poll_turn(context));
        let part = self.rest.split_to(bytes);
        self.tally.count(|served| served.bytes += part.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.line.handed_over();
    }
}

/// Bytes that release their upload slot when the last part of them is freed: while a client does not read its response, the
/// connection holds parts of it, and with them all of its memory.
pub(super) fn holding(bytes: Bytes, slot: OwnedSemaphorePermit) -> Bytes {
    Bytes::from_owner(Held { bytes, _slot: slot })
}

struct Held {
    bytes: Bytes,
    _slot: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
