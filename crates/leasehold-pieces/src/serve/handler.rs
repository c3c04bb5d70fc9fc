//! Handles a request.
//!
//! The order matters: first the path, which costs nothing; then the signature; only then the piece source. A request that is
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
use leasehold_http::{Connection, ListenerEvent, RequestHandler, Secret, SendRateLimiter, SignClock};
use leasehold_store::Host;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::PieceSource;
use super::body::{ResponseBody, with_upload_slot};
use super::counters::ServerCounters;
use super::error_response::ErrorResponse;
use super::route::{Route, pieces_per_response};

/// Header with an artifact's size.
pub(crate) const SIZE_HEADER: HeaderName = HeaderName::from_static("x-leasehold-size");
/// Header with the size of its pieces.
pub(crate) const PIECE_BYTES_HEADER: HeaderName = HeaderName::from_static("x-leasehold-piece-bytes");

/// Longest wait for an upload slot: shorter than the client's timeout, so that it receives 503 before it times out.
const UPLOAD_WAIT: Duration = Duration::from_secs(5);

/// State that all connections share.
pub(super) struct PieceHandler {
    pub(super) source: Arc<dyn PieceSource>,
    pub(super) secret: Option<Secret>,
    pub(super) present: SignClock,
    pub(super) host: Arc<dyn Host>,
    pub(super) uploads: Arc<Semaphore>,
    pub(super) rate_limit: Option<Arc<SendRateLimiter>>,
    pub(super) counters: ServerCounters,
}

/// Contents of a response.
struct ResponseContent {
    bytes: Bytes,
    /// Value of content-length; the bytes themselves may be left out.
    len: u64,
    cut: Option<PieceCut>,
}

impl RequestHandler for PieceHandler {
    type Body = ResponseBody;

    async fn handle(
        self: Arc<Self>,
        connection: Arc<Connection>,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        connection.request_received();
        let result = self.content(&request).await;
        self.counters.count(|counts| {
            counts.requests += 1;
            match &result {
                Ok(_) => counts.answered += 1,
                Err(error) => *error.counter(&mut counts.refused) += 1,
            }
        });
        let body = |bytes, rate_limit| {
            ResponseBody::new(bytes, rate_limit, self.counters.clone(), connection.clone())
        };
        match result {
            Ok(content) => {
                content_response(content, request.method(), |bytes| body(bytes, self.rate_limit.clone()))
            }
            Err(error) => error_response(error, request.method(), |bytes| body(bytes, None)),
        }
    }

    fn on_event(&self, event: ListenerEvent) {
        self.counters.count(|counts| match event {
            ListenerEvent::Connected => counts.connections += 1,
            ListenerEvent::Refused => counts.refused.connections += 1,
            ListenerEvent::InvalidRequest => counts.refused.invalid_http += 1,
            ListenerEvent::TimedOut => counts.refused.timed_out += 1,
        });
    }
}

impl PieceHandler {
    async fn content(&self, request: &Request<Incoming>) -> Result<ResponseContent, ErrorResponse> {
        let route = Route::parse(request.uri()).ok_or(ErrorResponse::NotFound)?;
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(ErrorResponse::MethodNotAllowed);
        }
        if !request.body().is_end_stream() {
            return Err(ErrorResponse::UnexpectedBody);
        }
        if route != Route::Health {
            self.check_signature(request)?;
        }
        match route {
            Route::Health => Ok(ResponseContent::new(Bytes::from_static(b"ok\n"), None)),
            Route::Have(artifact) => {
                let (cut, map) = self.have(artifact).await?;
                Ok(ResponseContent::new(map.to_bytes().into(), Some(cut)))
            }
            Route::Pieces(artifact, run) => self.pieces(artifact, run, request.method()).await,
        }
    }

    fn check_signature(&self, request: &Request<Incoming>) -> Result<(), ErrorResponse> {
        let Some(secret) = &self.secret else { return Ok(()) };
        let now = (self.present)().ok_or(ErrorResponse::TimeUnknown)?;
        let verified = secret.verify(request.method(), request.uri(), request.headers(), now);
        verified.map_err(ErrorResponse::InvalidSignature)
    }

    /// Reads the piece map on a thread that may block: manifests and journals of large artifacts are large themselves.
    async fn have(&self, artifact: ArtifactId) -> Result<(PieceCut, PieceMap), ErrorResponse> {
        let source = self.source.clone();
        blocking(move || source.have(&artifact)).await?.ok_or(ErrorResponse::NotFound)
    }

    async fn pieces(
        &self,
        artifact: ArtifactId,
        run: Range<u32>,
        method: &Method,
    ) -> Result<ResponseContent, ErrorResponse> {
        let (cut, map) = self.have(artifact.clone()).await?;
        check_run(&run, &cut, &map)?;
        let span = cut.bytes_of_run(&run);
        let len = span.end - span.start;
        if method == Method::HEAD {
            return Ok(ResponseContent { bytes: Bytes::new(), len, cut: Some(cut) });
        }
        let slot = self.upload_slot().await?;
        let bytes = self.read(artifact, run, slot).await?;
        if bytes.len() as u64 != len {
            tracing::error!(expected = len, got = bytes.len(), "cache returned the wrong number of bytes");
            return Err(ErrorResponse::ReadFailed);
        }
        Ok(ResponseContent { bytes, len, cut: Some(cut) })
    }

    async fn upload_slot(&self) -> Result<OwnedSemaphorePermit, ErrorResponse> {
        tokio::select! {
            biased;
            slot = self.uploads.clone().acquire_owned() => Ok(slot.expect("it is never closed")),
            () = self.host.sleep(UPLOAD_WAIT) => Err(ErrorResponse::Busy),
        }
    }

    /// Reads pieces on a thread that may block. It holds the slot: a client that disconnects does not end the read.
    async fn read(
        &self,
        artifact: ArtifactId,
        run: Range<u32>,
        slot: OwnedSemaphorePermit,
    ) -> Result<Bytes, ErrorResponse> {
        let source = self.source.clone();
        let work =
            move || source.read(&artifact, run).map(|bytes| bytes.map(|bytes| with_upload_slot(bytes, slot)));
        match blocking(work).await? {
            Ok(bytes) => bytes.ok_or(ErrorResponse::NotFound),
            Err(error) => {
                tracing::warn!(%error, "failed to read pieces");
                Err(ErrorResponse::ReadFailed)
            }
        }
    }
}

/// Calls the piece source on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ErrorResponse> {
    #[expect(clippy::disallowed_methods, reason = "file systems have no asynchronous calls")]
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|panicked| {
        tracing::error!(error = %panicked, "piece reader thread panicked");
        ErrorResponse::ReadFailed
    })
}

impl ResponseContent {
    fn new(bytes: Bytes, cut: Option<PieceCut>) -> Self {
        Self { len: bytes.len() as u64, bytes, cut }
    }
}

/// Checks that all of a run is here and fits into a response.
fn check_run(run: &Range<u32>, cut: &PieceCut, map: &PieceMap) -> Result<(), ErrorResponse> {
    if run.end > cut.pieces() {
        return Err(ErrorResponse::NotFound);
    }
    if run.end - run.start > pieces_per_response(cut) {
        return Err(ErrorResponse::TooManyPieces);
    }
    if run.clone().all(|piece| map.has(piece)) { Ok(()) } else { Err(ErrorResponse::NotFound) }
}

fn content_response(
    content: ResponseContent,
    method: &Method,
    body: impl Fn(Bytes) -> ResponseBody,
) -> Response<ResponseBody> {
    let bytes = if method == Method::HEAD { Bytes::new() } else { content.bytes };
    let mut response = Response::new(body(bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, content.len.into());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Some(cut) = content.cut {
        headers.insert(SIZE_HEADER, cut.size().into());
        headers.insert(PIECE_BYTES_HEADER, cut.piece_bytes().into());
    }
    response
}

fn error_response(
    error: ErrorResponse,
    method: &Method,
    body: impl Fn(Bytes) -> ResponseBody,
) -> Response<ResponseBody> {
    let message = Bytes::from(format!("{error}\n"));
    let len = message.len();
    let mut response = Response::new(body(if method == Method::HEAD { Bytes::new() } else { message }));
    *response.status_mut() = error.status();
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, len.into());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    let (name, value) = match error {
        ErrorResponse::MethodNotAllowed => (ALLOW, "GET, HEAD"),
        ErrorResponse::InvalidSignature(_) => (WWW_AUTHENTICATE, "Leasehold"),
        ErrorResponse::TimeUnknown | ErrorResponse::Busy => (RETRY_AFTER, "1"),
        // The body would be read as the next request.
        ErrorResponse::UnexpectedBody => (CONNECTION, "close"),
        ErrorResponse::NotFound | ErrorResponse::TooManyPieces | ErrorResponse::ReadFailed => {
            return response;
        }
    };
    headers.insert(name, HeaderValue::from_static(value));
    response
}
