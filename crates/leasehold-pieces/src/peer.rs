//! Client of one peer, which is not trusted.
//!
//! Every response is checked against the manifest: another size, another cut, a map of another length, more or fewer bytes
//! than requested are rejected before they are read. The caller verifies the bytes with the hashes of the manifest.
//!
//! A peer that sends nothing for [`PeerOptions::stall_timeout`] times out. One that sends a byte now and then does not: the
//! leases on pieces set the minimum speed of a peer.

mod connection;
mod error;

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{HOST, HeaderName, HeaderValue};
use http::response::Parts;
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::Empty;
use hyper::body::{Body, Incoming};
use leasehold_core::piece::{PieceCut, PieceMap};
use leasehold_core::{ArtifactId, Error, Result};
use leasehold_http::{Secret, SignClock};
use leasehold_store::Host;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::serve::{PIECE_BYTES_HEADER, Route, SIZE_HEADER, pieces_per_response};
use connection::PeerConnection;
use error::PeerError;

/// Longest error body that is read to keep the connection usable; a longer one closes the connection.
const ERROR_BODY_BYTES_MAX: u64 = 1_024;

/// Limits of the requests to a peer.
#[derive(Debug, Clone, Copy)]
pub struct PeerOptions {
    /// Most connections to the peer at a time: as many as it may hold leases.
    pub connections_max: usize,
    /// Longest wait for a connection, for the head of a response, or for its next byte. Longer than a server lets a
    /// request wait for its turn, so that a busy peer differs from one that does not answer.
    pub stall_timeout: Duration,
}

impl Default for PeerOptions {
    fn default() -> Self {
        Self { connections_max: 4, stall_timeout: Duration::from_secs(10) }
    }
}

/// Reason for which a peer sent no pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerFailure {
    /// Unreachable, busy, or the connection broke.
    NetworkError,
    /// Sent nothing for too long.
    Timeout,
    /// Sent an invalid response.
    InvalidData(String),
}

impl fmt::Display for PeerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NetworkError => f.write_str("cannot reach the peer"),
            Self::Timeout => f.write_str("the peer timed out"),
            Self::InvalidData(message) => write!(f, "invalid response from the peer: {message}"),
        }
    }
}

impl std::error::Error for PeerFailure {}

/// Client of one peer, with its own pool of connections.
pub struct PeerClient {
    peer: Authority,
    secret: Option<Secret>,
    host: Arc<dyn Host>,
    present: SignClock,
    stall_timeout: Duration,
    /// One permit for each connection in use. Connections in use and idle ones together never exceed the permits.
    connections: Semaphore,
    idle: Mutex<Vec<PeerConnection>>,
}

impl PeerClient {
    /// Creates a client of the peer at `http://HOST:PORT`. `present` returns the store's time, for the signatures.
    pub fn new(
        base_url: &str,
        secret: Option<Secret>,
        host: Arc<dyn Host>,
        present: SignClock,
        options: PeerOptions,
    ) -> Result<Self> {
        if options.connections_max == 0 || options.connections_max > Semaphore::MAX_PERMITS {
            return Err(Error::invalid(format!(
                "connections to a peer must be between 1 and {}, got {}",
                Semaphore::MAX_PERMITS,
                options.connections_max
            )));
        }
        Ok(Self {
            peer: parse_address(base_url)?,
            secret,
            host,
            present,
            stall_timeout: options.stall_timeout,
            connections: Semaphore::new(options.connections_max),
            idle: Mutex::default(),
        })
    }

    /// Requests the map of pieces that the peer has; `None` if it neither has nor fetches the artifact.
    pub async fn have(&self, artifact: &ArtifactId, cut: &PieceCut) -> Result<Option<PieceMap>> {
        let route = Route::Have(artifact.clone());
        let _permit = self.permit().await;
        let response = self.exchange(&route, |head, len| check_map(head, len, cut), &|_| ());
        // A map is small: all of it must arrive within the time allowed for the next byte of a piece.
        match self.with_timeout(response).await {
            Ok(bytes) => PieceMap::from_bytes(&bytes, cut.pieces()).map(Some).map_err(|error| {
                self.error(&PeerError::InvalidResponse(format!(
                    "piece map does not match the manifest: {error}"
                )))
            }),
            Err(PeerError::NotFound) => Ok(None),
            Err(error) => Err(self.error(&error)),
        }
    }

    /// Requests the bytes of neighbouring pieces, at most [`pieces_per_response`]; calls `on_bytes` as bytes arrive.
    pub async fn pieces(
        &self,
        artifact: &ArtifactId,
        cut: &PieceCut,
        run: Range<u32>,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<Bytes, PeerFailure> {
        if run.is_empty() || run.end > cut.pieces() || run.end - run.start > pieces_per_response(cut) {
            return Err(PeerFailure::InvalidData(format!("invalid piece range {run:?}")));
        }
        let span = cut.bytes_of_run(&run);
        let wanted = span.end - span.start;
        let route = Route::Pieces(artifact.clone(), run);
        let _permit = self.permit().await;
        let response = self.exchange(&route, |_, len| check_len(len, wanted), on_bytes);
        response.await.map_err(|error| self.failure(&error))
    }

    /// Waits for one of the connections, without a timeout: the peer is not at fault when all of them are in use.
    async fn permit(&self) -> SemaphorePermit<'_> {
        self.connections.acquire().await.expect("it is never closed")
    }

    /// Sends a request, passes head and length of the response to `check`, and reads that many bytes.
    async fn exchange(
        &self,
        route: &Route,
        check: impl FnOnce(&Parts, Option<u64>) -> Result<(), PeerError>,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<Bytes, PeerError> {
        let (mut connection, response) = self.send(route).await?;
        let len = response.body().size_hint().exact();
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            if len.is_some_and(|len| len <= ERROR_BODY_BYTES_MAX)
                && self.read(&mut connection, body, &|_| ()).await.is_ok()
            {
                self.idle().push(connection);
            }
            return Err(PeerError::from_status(head.status));
        }
        check(&head, len)?;
        let bytes = self.read(&mut connection, body, on_bytes).await?;
        self.idle().push(connection);
        Ok(bytes)
    }

    /// Sends a request, over an idle connection if one still works: the peer may close an idle connection at any time, even
    /// as we send.
    async fn send(&self, route: &Route) -> Result<(PeerConnection, Response<Incoming>), PeerError> {
        while let Some(mut connection) = self.take_idle() {
            if !self.with_timeout(async { Ok(connection.is_usable().await) }).await? {
                continue;
            }
            match self.with_timeout(connection.send(self.build_request(route)?)).await {
                Ok(response) => return Ok((connection, response)),
                Err(PeerError::Network(message)) => {
                    tracing::debug!(peer = %self.peer, error = message, "idle peer connection failed");
                }
                Err(error) => return Err(error),
            }
        }
        let mut connection = self.with_timeout(PeerConnection::open(&self.peer)).await?;
        let response = self.with_timeout(connection.send(self.build_request(route)?)).await?;
        Ok((connection, response))
    }

    fn build_request(&self, route: &Route) -> Result<Request<Empty<Bytes>>, PeerError> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = Uri::try_from(route.to_string()).expect("hashes and numbers");
        let host = HeaderValue::from_str(self.peer.as_str()).expect("it was read as an address");
        request.headers_mut().insert(HOST, host);
        if let Some(secret) = &self.secret {
            let now = (self.present)().ok_or(PeerError::TimeUnknown)?;
            let uri = request.uri().clone();
            secret.sign(&Method::GET, &uri, now.earliest, request.headers_mut());
        }
        Ok(request)
    }

    /// Reads a body whose length was checked: hyper returns no more than that.
    async fn read(
        &self,
        connection: &mut PeerConnection,
        mut body: Incoming,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<Bytes, PeerError> {
        let len = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        let mut bytes = BytesMut::with_capacity(len);
        while let Some(more) = self.with_timeout(connection.next_bytes(&mut body)).await? {
            on_bytes(more.len() as u64);
            bytes.extend_from_slice(&more);
        }
        Ok(bytes.freeze())
    }

    async fn with_timeout<T>(
        &self,
        work: impl Future<Output = Result<T, PeerError>>,
    ) -> Result<T, PeerError> {
        tokio::select! {
            biased;
            done = work => done,
            () = self.host.sleep(self.stall_timeout) => Err(PeerError::Timeout),
        }
    }

    fn take_idle(&self) -> Option<PeerConnection> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<PeerConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, error: &PeerError) -> Error {
        Error::new(error.kind(), format!("peer `{}`: {error}", self.peer))
    }

    fn failure(&self, error: &PeerError) -> PeerFailure {
        tracing::debug!(peer = %self.peer, error = %error, "failed to get pieces from peer");
        error.failure()
    }
}

impl fmt::Debug for PeerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerClient").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Parses `http://HOST:PORT` and nothing else.
fn parse_address(text: &str) -> Result<Authority> {
    let read = |uri: Uri| {
        let is_plain =
            uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/") && uri.query().is_none();
        uri.into_parts()
            .authority
            .filter(|peer| is_plain && !peer.host().is_empty() && !peer.as_str().contains('@'))
    };
    text.parse().ok().and_then(read).ok_or_else(|| {
        Error::invalid(format!(
            "invalid peer address `{}`; expected one like http://10.0.0.7:7070",
            text.escape_debug()
        ))
    })
}

/// Checks that a map is for the same artifact size and cut.
fn check_map(head: &Parts, len: Option<u64>, cut: &PieceCut) -> Result<(), PeerError> {
    let number = |name: &HeaderName| head.headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let (size, piece_bytes) = (number(&SIZE_HEADER), number(&PIECE_BYTES_HEADER));
    if (size, piece_bytes) != (Some(cut.size()), Some(cut.piece_bytes().into())) {
        let shown = |number: Option<u64>| {
            number.map_or("an unknown number of".to_owned(), |number| number.to_string())
        };
        return Err(PeerError::InvalidResponse(format!(
            "piece map does not match the manifest: {} bytes in pieces of {} instead of {} in pieces of {}",
            shown(size),
            shown(piece_bytes),
            cut.size(),
            cut.piece_bytes()
        )));
    }
    check_len(len, cut.pieces().div_ceil(8).into()).map_err(|error| {
        PeerError::InvalidResponse(format!("piece map does not match the manifest: a map with {error}"))
    })
}

/// Checks that a response declares the expected length: then nothing is read that was not requested.
fn check_len(len: Option<u64>, wanted: u64) -> Result<(), PeerError> {
    match len {
        Some(len) if len == wanted => Ok(()),
        Some(len) => Err(PeerError::InvalidResponse(format!("{len} bytes instead of {wanted}"))),
        None => Err(PeerError::InvalidResponse(format!("an unknown number of bytes instead of {wanted}"))),
    }
}
