//! Client of one peer, which is not trusted.
//!
//! Every response is checked against the manifest: another size, another cut, a map of another length, more or fewer bytes
//! than requested are rejected before they are read. The caller verifies the bytes with the hashes of the manifest.
//!
//! A peer that sends nothing for [`PeerOptions::stall_wait`] times out. One that sends a byte now and then does not: the
//! leases on pieces set the minimum speed of a peer.

mod link;
mod trouble;

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
use leasehold_store::Host;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::serve::{PIECE_BYTES, Route, SIZE, pieces_per_answer};
use crate::sign::{Secret, SignClock};
use link::Link;
use trouble::Trouble;

/// Longest error body that is read to keep the connection usable; a longer one closes the connection.
const WORDS_BYTES_MAX: u64 = 1_024;

/// Limits of the requests to a peer.
#[derive(Debug, Clone, Copy)]
pub struct PeerOptions {
    /// Most connections to the peer at a time: as many as it may hold leases.
    pub connections_max: usize,
    /// Longest wait for a connection, for the head of a response, or for its next byte. Longer than a server lets a
    /// request wait for its turn, so that a busy peer differs from a dead one.
    pub stall_wait: Duration,
}

impl Default for PeerOptions {
    fn default() -> Self {
        Self { connections_max: 4, stall_wait: Duration::from_secs(10) }
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
            Self::InvalidData(words) => write!(f, "invalid response from the peer: {words}"),
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
    stall_wait: Duration,
    /// One permit for each connection in use. Connections in use and idle ones together never exceed the permits.
    connections: Semaphore,
    idle: Mutex<Vec<Link>>,
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
            peer: read_address(base_url)?,
            secret,
            host,
            present,
            stall_wait: options.stall_wait,
            connections: Semaphore::new(options.connections_max),
            idle: Mutex::default(),
        })
    }

    /// Requests the map of pieces that the peer has; `None` if it neither has nor fetches the artifact.
    pub async fn have(&self, artifact: &ArtifactId, cut: &PieceCut) -> Result<Option<PieceMap>> {
        let route = Route::Have(artifact.clone());
        let _permit = self.permit().await;
        let asked = self.ask(&route, |head, len| check_map(head, len, cut), &|_| ());
        // A map is small: all of it must arrive within the time allowed for the next byte of a piece.
        match self.within(asked).await {
            Ok(bytes) => PieceMap::from_bytes(&bytes, cut.pieces()).map(Some).map_err(|error| {
                self.error(&Trouble::Nonsense(format!("piece map does not match the manifest: {error}")))
            }),
            Err(Trouble::Missing) => Ok(None),
            Err(trouble) => Err(self.error(&trouble)),
        }
    }

    /// Requests the bytes of neighbouring pieces, at most [`pieces_per_answer`]; calls `on_bytes` as bytes arrive.
    pub async fn pieces(
        &self,
        artifact: &ArtifactId,
        cut: &PieceCut,
        run: Range<u32>,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<Bytes, PeerFailure> {
        if run.is_empty() || run.end > cut.pieces() || run.end - run.start > pieces_per_answer(cut) {
            return Err(PeerFailure::InvalidData(format!("invalid piece range {run:?}")));
        }
        let span = cut.bytes_of_run(&run);
        let wanted = span.end - span.start;
        let route = Route::Pieces(artifact.clone(), run);
        let _permit = self.permit().await;
        let asked = self.ask(&route, |_, len| check_len(len, wanted), on_bytes);
        asked.await.map_err(|trouble| self.failure(&trouble))
    }

    /// Waits for one of the connections, without a timeout: the peer is not at fault when all of them are in use.
    async fn permit(&self) -> SemaphorePermit<'_> {
        self.connections.acquire().await.expect("it is never closed")
    }

    /// Sends a request, passes head and length of the response to `check`, and reads that many bytes.
    async fn ask(
        &self,
        route: &Route,
        check: impl FnOnce(&Parts, Option<u64>) -> Result<(), Trouble>,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<Bytes, Trouble> {
        let (mut link, answer) = self.send(route).await?;
        let len = answer.body().size_hint().exact();
        let (head, body) = answer.into_parts();
        if head.status != StatusCode::OK {
            if len.is_some_and(|len| len <= WORDS_BYTES_MAX)
                && self.read(&mut link, body, &|_| ()).await.is_ok()
            {
                self.idle().push(link);
            }
            return Err(Trouble::of(head.status));
        }
        check(&head, len)?;
        let bytes = self.read(&mut link, body, on_bytes).await?;
        self.idle().push(link);
        Ok(bytes)
    }

    /// Sends a request, over an idle connection if one still works: the peer may close an idle connection at any time, even
    /// as we send.
    async fn send(&self, route: &Route) -> Result<(Link, Response<Incoming>), Trouble> {
        while let Some(mut link) = self.take_idle() {
            if !self.within(async { Ok(link.is_usable().await) }).await? {
                continue;
            }
            match self.within(link.send(self.request(route)?)).await {
                Ok(answer) => return Ok((link, answer)),
                Err(Trouble::Network(words)) => {
                    tracing::debug!(peer = %self.peer, error = words, "idle peer connection failed");
                }
                Err(trouble) => return Err(trouble),
            }
        }
        let mut link = self.within(Link::open(&self.peer)).await?;
        let answer = self.within(link.send(self.request(route)?)).await?;
        Ok((link, answer))
    }

    fn request(&self, route: &Route) -> Result<Request<Empty<Bytes>>, Trouble> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = Uri::try_from(route.to_string()).expect("hashes and numbers");
        let host = HeaderValue::from_str(self.peer.as_str()).expect("it was read as an address");
        request.headers_mut().insert(HOST, host);
        if let Some(secret) = &self.secret {
            let now = (self.present)().ok_or(Trouble::Timeless)?;
            let uri = request.uri().clone();
            secret.sign(&Method::GET, &uri, now.earliest, request.headers_mut());
        }
        Ok(request)
    }

    /// Reads a body whose length was checked: hyper returns no more than that.
    async fn read(
        &self,
        link: &mut Link,
        mut body: Incoming,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<Bytes, Trouble> {
        let len = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        let mut bytes = BytesMut::with_capacity(len);
        while let Some(more) = self.within(link.next_bytes(&mut body)).await? {
            on_bytes(more.len() as u64);
            bytes.extend_from_slice(&more);
        }
        Ok(bytes.freeze())
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
        tokio::select! {
            biased;
            done = work => done,
            () = self.host.sleep(self.stall_wait) => Err(Trouble::Silent),
        }
    }

    fn take_idle(&self) -> Option<Link> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Link>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, trouble: &Trouble) -> Error {
        Error::new(trouble.kind(), format!("peer `{}`: {trouble}", self.peer))
    }

    fn failure(&self, trouble: &Trouble) -> PeerFailure {
        tracing::debug!(peer = %self.peer, error = %trouble, "failed to get pieces from peer");
        trouble.failure()
    }
}

impl fmt::Debug for PeerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerClient").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Parses `http://HOST:PORT` and nothing else.
fn read_address(text: &str) -> Result<Authority> {
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
fn check_map(head: &Parts, len: Option<u64>, cut: &PieceCut) -> Result<(), Trouble> {
    let number = |name: &HeaderName| head.headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let (size, piece_bytes) = (number(&SIZE), number(&PIECE_BYTES));
    if (size, piece_bytes) != (Some(cut.size()), Some(cut.piece_bytes().into())) {
        let said = |number: Option<u64>| {
            number.map_or("an unknown number of".to_owned(), |number| number.to_string())
        };
        return Err(Trouble::Nonsense(format!(
            "piece map does not match the manifest: {} bytes in pieces of {} instead of {} in pieces of {}",
            said(size),
            said(piece_bytes),
            cut.size(),
            cut.piece_bytes()
        )));
    }
    check_len(len, cut.pieces().div_ceil(8).into()).map_err(|trouble| {
        Trouble::Nonsense(format!("piece map does not match the manifest: a map with {trouble}"))
    })
}

/// Checks that a response declares the expected length: then nothing is read that was not requested.
fn check_len(len: Option<u64>, wanted: u64) -> Result<(), Trouble> {
    match len {
        Some(len) if len == wanted => Ok(()),
        Some(len) => Err(Trouble::Nonsense(format!("{len} bytes instead of {wanted}"))),
        None => Err(Trouble::Nonsense(format!("an unknown number of bytes instead of {wanted}"))),
    }
}
