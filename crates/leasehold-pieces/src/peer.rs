//! Asks one peer for pieces, and believes nothing.
//!
//! What a peer says is held against what the manifest says: another size, another cut, a map of another length, more or
//! fewer bytes than were asked for are refused before they are read. Whether the bytes are the right ones is checked by
//! whoever asked, with the hashes of the manifest.
//!
//! A peer that is silent for [`PeerOptions::stall_wait`] is given up. One that sends a byte now and then is not: how fast
//! a peer must be is the business of the leases on pieces.

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
use leasehold_core::piece::{Cut, PieceMap};
use leasehold_core::{ArtifactId, Error, Result};
use leasehold_store::Host;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::serve::{PIECE_BYTES, Route, SIZE, pieces_per_answer};
use crate::sign::{Present, Secret};
use link::Link;
use trouble::Trouble;

/// Most bytes of a refusal's words that are read, to keep the connection; a longer one costs the connection.
const WORDS_BYTES_MAX: u64 = 1_024;

/// How to ask a peer.
#[derive(Debug, Clone, Copy)]
pub struct PeerOptions {
    /// Most connections to it at a time: as many as it may hold leases.
    pub connections_max: usize,
    /// Longest wait for a connection, for the head of an answer, for the next byte of it. Longer than a server lets a
    /// request wait for its turn, so that a busy peer is told from a dead one.
    pub stall_wait: Duration,
}

impl Default for PeerOptions {
    fn default() -> Self {
        Self { connections_max: 4, stall_wait: Duration::from_secs(10) }
    }
}

/// Why a peer gave no pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerFailure {
    /// It cannot be reached, is busy, or the connection broke.
    NetworkError,
    /// It was silent for too long.
    Timeout,
    /// It answered with something else.
    InvalidData(String),
}

impl fmt::Display for PeerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NetworkError => f.write_str("the peer cannot be reached"),
            Self::Timeout => f.write_str("the peer was silent for too long"),
            Self::InvalidData(words) => write!(f, "the peer answered wrongly: {words}"),
        }
    }
}

impl std::error::Error for PeerFailure {}

/// A peer that can be asked, over a few connections of its own.
pub struct PeerClient {
    peer: Authority,
    secret: Option<Secret>,
    host: Arc<dyn Host>,
    present: Present,
    stall_wait: Duration,
    /// One permit for each connection in use. With those that are idle there are never more than permits.
    connections: Semaphore,
    idle: Mutex<Vec<Link>>,
}

impl PeerClient {
    /// A client of the peer at `http://HOST:PORT`. `present` tells the store's time, for the signatures.
    pub fn new(
        base_url: &str,
        secret: Option<Secret>,
        host: Arc<dyn Host>,
        present: Present,
        options: PeerOptions,
    ) -> Result<Self> {
        if options.connections_max == 0 || options.connections_max > Semaphore::MAX_PERMITS {
            return Err(Error::invalid(format!("{} connections to a peer", options.connections_max)));
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

    /// Which pieces the peer says it has; nothing if it neither has nor fetches the artifact.
    pub async fn have(&self, artifact: &ArtifactId, cut: &Cut) -> Result<Option<PieceMap>> {
        let route = Route::Have(artifact.clone());
        let _permit = self.permit().await;
        let asked = self.ask(&route, |head, len| check_map(head, len, cut), &|_| ());
        // A map is small: all of it has to come within the time that the next byte of a piece has.
        match self.within(asked).await {
            Ok(bytes) => PieceMap::from_bytes(&bytes, cut.pieces()).map(Some).map_err(|error| {
                self.error(&Trouble::Nonsense(format!("it lies about what it has: {error}")))
            }),
            Err(Trouble::Missing) => Ok(None),
            Err(trouble) => Err(self.error(&trouble)),
        }
    }

    /// The bytes of neighbouring pieces, at most [`pieces_per_answer`]; `on_bytes` hears of bytes as they come.
    pub async fn pieces(
        &self,
        artifact: &ArtifactId,
        cut: &Cut,
        run: Range<u32>,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<Bytes, PeerFailure> {
        if run.is_empty() || run.end > cut.pieces() || run.end - run.start > pieces_per_answer(cut) {
            return Err(PeerFailure::InvalidData(format!("pieces {run:?} cannot be asked for")));
        }
        let span = cut.bytes_of_run(&run);
        let wanted = span.end - span.start;
        let route = Route::Pieces(artifact.clone(), run);
        let _permit = self.permit().await;
        let asked = self.ask(&route, |_, len| check_len(len, wanted), on_bytes);
        asked.await.map_err(|trouble| self.failure(&trouble))
    }

    /// Waits for one of the connections. However long it takes: that others use them is not the peer's fault.
    async fn permit(&self) -> SemaphorePermit<'_> {
        self.connections.acquire().await.expect("it is never closed")
    }

    /// Asks, lets `check` look at the head and the length of the answer, and reads that many bytes.
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

    /// Sends a request, over a connection that is there if it still works: the peer may close one that is idle at any
    /// time, even as we send.
    async fn send(&self, route: &Route) -> Result<(Link, Response<Incoming>), Trouble> {
        while let Some(mut link) = self.take_idle() {
            if !self.within(async { Ok(link.is_usable().await) }).await? {
                continue;
            }
            match self.within(link.send(self.request(route)?)).await {
                Ok(answer) => return Ok((link, answer)),
                Err(Trouble::Network(words)) => {
                    tracing::debug!(peer = %self.peer, words, "an idle connection broke");
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

    /// Reads a body whose length was checked: hyper gives no more than that.
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
        tracing::debug!(peer = %self.peer, %trouble, "no pieces");
        trouble.failure()
    }
}

impl fmt::Debug for PeerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerClient").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// `http://HOST:PORT` and nothing else.
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
            "`{}` is not the address of a peer like http://10.0.0.7:7070",
            text.escape_debug()
        ))
    })
}

/// A map has to be of the same artifact, cut in the same way.
fn check_map(head: &Parts, len: Option<u64>, cut: &Cut) -> Result<(), Trouble> {
    let number = |name: &HeaderName| head.headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let (size, piece_bytes) = (number(&SIZE), number(&PIECE_BYTES));
    if (size, piece_bytes) != (Some(cut.size()), Some(cut.piece_bytes().into())) {
        let said = |number: Option<u64>| {
            number.map_or("an unknown number of".to_owned(), |number| number.to_string())
        };
        return Err(Trouble::Nonsense(format!(
            "it lies about what it has: {} bytes in pieces of {} instead of {} in pieces of {}",
            said(size),
            said(piece_bytes),
            cut.size(),
            cut.piece_bytes()
        )));
    }
    check_len(len, cut.pieces().div_ceil(8).into())
        .map_err(|trouble| Trouble::Nonsense(format!("it lies about what it has: a map with {trouble}")))
}

/// An answer has to say its length, and the right one: then nothing is read that was not asked for.
fn check_len(len: Option<u64>, wanted: u64) -> Result<(), Trouble> {
    match len {
        Some(len) if len == wanted => Ok(()),
        Some(len) => Err(Trouble::Nonsense(format!("{len} bytes instead of {wanted}"))),
        None => Err(Trouble::Nonsense(format!("an unknown number of bytes instead of {wanted}"))),
    }
}
