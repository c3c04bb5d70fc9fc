//! Handles a request.
//!
//! The order matters: first the path, which costs nothing; then the signature; only then the shelf. A request that is
//! refused never makes the server touch a file.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{HeaderValue, Method, Request, Response};
use hyper::body::{Body, Incoming};
use leasehold_core::ArtifactId;
use leasehold_core::piece::{PieceCut, PieceMap};
use leasehold_store::Host;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Shelf;
use super::body::{AnswerBody, holding};
use super::door::{Answers, Connection, Happened};
use super::pace::SendPacer;
use super::refusal::Refusal;
use super::route::{Route, pieces_per_answer};
use super::tally::Tally;
use crate::sign::{Secret, SignClock};

/// Header with an artifact's size.
pub(crate) const SIZE: HeaderName = HeaderName::from_static("x-leasehold-size");
/// Header with the size of its pieces.
pub(crate) const PIECE_BYTES: HeaderName = HeaderName::from_static("x-leasehold-piece-bytes");

/// Longest wait for an upload slot: shorter than the client's timeout, so that it receives 503 before it times out.
const UPLOAD_WAIT: Duration = Duration::from_secs(5);

/// State that all connections share.
pub(super) struct Answerer {
    pub(super) shelf: Arc<dyn Shelf>,
    pub(super) secret: Option<Secret>,
    pub(super) present: SignClock,
    pub(super) host: Arc<dyn Host>,
    pub(super) uploads: Arc<Semaphore>,
    pub(super) pace: Option<Arc<SendPacer>>,
    pub(super) tally: Tally,
}

/// Contents of a response.
struct Goods {
    bytes: Bytes,
    /// Value of content-length; the bytes themselves may be left out.
    len: u64,
    cut: Option<PieceCut>,
}

impl Answers for Answerer {
    type Body = AnswerBody;

    async fn answer(
        self: Arc<Self>,
        line: Arc<Connection>,
        request: Request<Incoming>,
    ) -> Response<AnswerBody> {
        line.asked();
        let gives = self.give(&request).await;
        self.tally.count(|served| {
            served.requests += 1;
            match &gives {
                Ok(_) => served.answered += 1,
                Err(refusal) => *refusal.counter(&mut served.refused) += 1,
            }
        });
        let body = |bytes, pace| AnswerBody::new(bytes, pace, self.tally.clone(), line.clone());
        match gives {
            Ok(goods) => filled(goods, request.method(), |bytes| body(bytes, self.pace.clone())),
            Err(refusal) => refused(refusal, request.method(), |bytes| body(bytes, None)),
        }
    }

    fn note(&self, happened: Happened) {
        self.tally.count(|served| match happened {
            Happened::Connected => served.connections += 1,
            Happened::TurnedAway => served.refused.connections += 1,
            Happened::Garbage => served.refused.garbage += 1,
            Happened::Slow => served.refused.slow += 1,
        });
    }
}

impl Answerer {
    async fn give(&self, request: &Request<Incoming>) -> Result<Goods, Refusal> {
        let route = Route::read(request.uri()).ok_or(Refusal::Missing)?;
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(Refusal::Method);
        }
        if !request.body().is_end_stream() {
            return Err(Refusal::Body);
        }
        if route != Route::Health {
            self.check_signature(request)?;
        }
        match route {
            Route::Health => Ok(Goods::new(Bytes::from_static(b"ok\n"), None)),
            Route::Have(artifact) => {
                let (cut, map) = self.have(artifact).await?;
                Ok(Goods::new(map.to_bytes().into(), Some(cut)))
            }
            Route::Pieces(artifact, run) => self.pieces(artifact, run, request.method()).await,
        }
    }

    fn check_signature(&self, request: &Request<Incoming>) -> Result<(), Refusal> {
        let Some(secret) = &self.secret else { return Ok(()) };
        let now = (self.present)().ok_or(Refusal::Timeless)?;
        let verified = secret.verify(request.method(), request.uri(), request.headers(), now);
        verified.map_err(Refusal::Unproven)
    }

    /// Reads the piece map on a thread that may block: manifests and journals of large artifacts are large themselves.
    async fn have(&self, artifact: ArtifactId) -> Result<(PieceCut, PieceMap), Refusal> {
        let source = self.shelf.clone();
        blocking(move || source.have(&artifact)).await?.ok_or(Refusal::Missing)
    }

    async fn pieces(&self, artifact: ArtifactId, run: Range<u32>, method: &Method) -> Result<Goods, Refusal> {
        let (cut, map) = self.have(artifact.clone()).await?;
        check_run(&run, &cut, &map)?;
        let span = cut.bytes_of_run(&run);
        let len = span.end - span.start;
        if method == Method::HEAD {
            return Ok(Goods { bytes: Bytes::new(), len, cut: Some(cut) });
        }
        let slot = self.upload_slot().await?;
        let bytes = self.read(artifact, run, slot).await?;
        if bytes.len() as u64 != len {
            tracing::error!(expected = len, got = bytes.len(), "cache returned the wrong number of bytes");
            return Err(Refusal::Failed);
        }
        Ok(Goods { bytes, len, cut: Some(cut) })
    }

    async fn upload_slot(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        tokio::select! {
            biased;
            slot = self.uploads.clone().acquire_owned() => Ok(slot.expect("it is never closed")),
            () = self.host.sleep(UPLOAD_WAIT) => Err(Refusal::Busy),
        }
    }

    /// Reads pieces on a thread that may block. It holds the slot: a client that disconnects does not end the read.
    async fn read(
        &self,
        artifact: ArtifactId,
        run: Range<u32>,
        slot: OwnedSemaphorePermit,
    ) -> Result<Bytes, Refusal> {
        let source = self.shelf.clone();
        let work = move || source.read(&artifact, run).map(|bytes| bytes.map(|bytes| holding(bytes, slot)));
        match blocking(work).await? {
            Ok(bytes) => bytes.ok_or(Refusal::Missing),
            Err(error) => {
                tracing::warn!(%error, "failed to read pieces");
                Err(Refusal::Failed)
            }
        }
    }
}

/// Calls the shelf on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    #[expect(clippy::disallowed_methods, reason = "file systems have no asynchronous calls")]
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|died| {
        tracing::error!(error = %died, "piece reader thread panicked");
        Refusal::Failed
    })
}

impl Goods {
    fn new(bytes: Bytes, cut: Option<PieceCut>) -> Self {
        Self { len: bytes.len() as u64, bytes, cut }
    }
}

/// Checks that all of a run is here and fits into a response.
fn check_run(run: &Range<u32>, cut: &PieceCut, map: &PieceMap) -> Result<(), Refusal> {
    if run.end > cut.pieces() {
        return Err(Refusal::Missing);
    }
    if run.end - run.start > pieces_per_answer(cut) {
        return Err(Refusal::TooMany);
    }
    if run.clone().all(|piece| map.has(piece)) { Ok(()) } else { Err(Refusal::Missing) }
}

fn filled(goods: Goods, method: &Method, body: impl Fn(Bytes) -> AnswerBody) -> Response<AnswerBody> {
    let bytes = if method == Method::HEAD { Bytes::new() } else { goods.bytes };
    let mut answer = Response::new(body(bytes));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_LENGTH, goods.len.into());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Some(cut) = goods.cut {
        headers.insert(SIZE, cut.size().into());
        headers.insert(PIECE_BYTES, cut.piece_bytes().into());
    }
    answer
}

fn refused(refusal: Refusal, method: &Method, body: impl Fn(Bytes) -> AnswerBody) -> Response<AnswerBody> {
    let words = Bytes::from(format!("{refusal}\n"));
    let len = words.len();
    let mut answer = Response::new(body(if method == Method::HEAD { Bytes::new() } else { words }));
    *answer.status_mut() = refusal.status();
    let headers = answer.headers_mut();
    headers.insert(CONTENT_LENGTH, len.into());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    let (name, value) = match refusal {
        Refusal::Method => (ALLOW, "GET, HEAD"),
        Refusal::Unproven(_) => (WWW_AUTHENTICATE, "Leasehold"),
        Refusal::Timeless | Refusal::Busy => (RETRY_AFTER, "1"),
        // The body would be read as the next request.
        Refusal::Body => (CONNECTION, "close"),
        Refusal::Missing | Refusal::TooMany | Refusal::Failed => return answer,
    };
    headers.insert(name, HeaderValue::from_static(value));
    answer
}
