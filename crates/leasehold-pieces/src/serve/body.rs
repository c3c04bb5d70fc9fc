//! Body of a response.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::body::{Body, Frame, SizeHint};
use leasehold_http::{Connection, SendRateLimiter};
use tokio::sync::OwnedSemaphorePermit;

use super::counters::ServerCounters;

/// Bytes that are sent in turns under the rate limit. Dropping it marks the response as handed over to hyper.
pub(super) struct ResponseBody {
    rest: Bytes,
    rate_limit: Option<Arc<SendRateLimiter>>,
    /// Wait for the next turn, and the number of bytes to send then.
    turn: Option<(BoxFuture<'static, ()>, usize)>,
    counters: ServerCounters,
    connection: Arc<Connection>,
}

impl ResponseBody {
    pub(super) fn new(
        bytes: Bytes,
        rate_limit: Option<Arc<SendRateLimiter>>,
        counters: ServerCounters,
        connection: Arc<Connection>,
    ) -> Self {
        Self { rest: bytes, rate_limit, turn: None, counters, connection }
    }

    /// Waits for a turn, if there is a rate limit; returns the number of bytes that may be sent.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<usize> {
        let Some(rate_limit) = &self.rate_limit else { return Poll::Ready(self.rest.len()) };
        let (wait, bytes) = self.turn.get_or_insert_with(|| {
            let bytes = rate_limit.part_bytes().min(self.rest.len());
            let wait = rate_limit.take_turn(bytes);
            (if wait.is_zero() { Box::pin(async {}) } else { rate_limit.sleep(wait) }, bytes)
        });
        ready!(wait.as_mut().poll(context));
        let bytes = *bytes;
        self.turn = None;
        Poll::Ready(bytes)
    }
}

impl Body for ResponseBody {
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
        self.counters.count(|counts| counts.bytes += part.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.connection.body_handed_over();
    }
}

/// Bytes that release their upload slot when the last part of them is freed: while a client does not read its response, the
/// connection holds parts of it, and with them all of its memory.
pub(super) fn with_upload_slot(bytes: Bytes, slot: OwnedSemaphorePermit) -> Bytes {
    Bytes::from_owner(BytesWithSlot { bytes, _slot: slot })
}

struct BytesWithSlot {
    bytes: Bytes,
    _slot: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for BytesWithSlot {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
