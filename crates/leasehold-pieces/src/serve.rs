//! HTTP server of pieces for peers.
//!
//! A server sends the verified pieces of its [`PieceSource`] to peers that know the secret, through the listener of
//! `leasehold-http`. Its limits hold whatever the clients do:
//!
//! * connections: beyond [`ServeOptions::connections_max`] a connection is answered with 503 at once and closed;
//! * uploads: beyond [`ServeOptions::uploads_max`] a request for pieces waits for five seconds, then gets a 503; a slot
//!   is held until the last byte is with the kernel, so the memory of all responses is bounded by slots times response;
//! * bytes per second, over all responses;
//! * timeouts: for the head of a request, for a client to read its response, and for an idle connection.
//!
//! | module | contents |
//! | --- | --- |
//! | `route` | paths |
//! | `handler` | handles a request |
//! | `error_response` | reasons for an error response |
//! | `body` | response body |
//! | `counters` | counters |

mod body;
mod counters;
mod error_response;
mod handler;
mod route;

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leasehold_core::piece::{PieceCut, PieceMap};
use leasehold_core::{ArtifactId, Error, Result};
use leasehold_http::{HttpListener, ListenerLimits, Secret, SendRateLimiter, SignClock};
use leasehold_store::Host;
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use tokio::sync::Semaphore;

use handler::PieceHandler;

pub use counters::{RefusedCounts, ServerCounters, ServerCounts};
pub(crate) use handler::{PIECE_BYTES_HEADER, SIZE_HEADER};
pub(crate) use route::Route;
pub use route::{RESPONSE_BYTES_MAX, pieces_per_response};

/// Source of the pieces that a server sends: only verified ones.
pub trait PieceSource: Send + Sync + 'static {
    /// Returns the map of pieces that are here; `None` if the artifact is not. Called on a thread that may block.
    fn have(&self, artifact: &ArtifactId) -> Option<(PieceCut, PieceMap)>;

    /// Reads the bytes of neighbouring pieces; `None` if one of them is not here. Called on a thread that may block.
    fn read(&self, artifact: &ArtifactId, pieces: Range<u32>) -> Result<Option<Bytes>>;
}

/// Options of a piece server.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Address to listen on; port 0 lets the system choose.
    pub addr: SocketAddr,
    /// Secret with which peers sign their requests. Without it the server listens on loopback only.
    pub secret: Option<Secret>,
    /// Most connections at a time.
    pub connections_max: usize,
    /// Most responses with pieces at a time.
    pub uploads_max: usize,
    /// Most bytes per second, over all responses.
    pub upload_bytes_per_sec: Option<u64>,
    /// Longest wait for the head of a request.
    pub header_wait: Duration,
    /// Longest wait for the next request, and for a client to read 64 KiB of its response.
    pub idle_wait: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            secret: None,
            connections_max: 256,
            uploads_max: 16,
            upload_bytes_per_sec: None,
            header_wait: Duration::from_secs(10),
            idle_wait: Duration::from_secs(30),
        }
    }
}

impl ServeOptions {
    fn check(&self) -> Result<()> {
        let Self { addr, secret, connections_max, uploads_max, upload_bytes_per_sec, .. } = self;
        if secret.is_none() && !addr.ip().to_canonical().is_loopback() {
            return Err(Error::invalid(format!(
                "listening on `{addr}` requires a secret, because other machines can reach it; set one or listen on 127.0.0.1"
            )));
        }
        if *connections_max == 0 || *uploads_max == 0 || *upload_bytes_per_sec == Some(0) {
            return Err(Error::invalid(
                "connections_max, uploads_max and upload_bytes_per_sec must be at least 1, got 0",
            ));
        }
        if *uploads_max > Semaphore::MAX_PERMITS {
            let most = Semaphore::MAX_PERMITS;
            return Err(Error::invalid(format!("uploads_max must be at most {most}, got {uploads_max}")));
        }
        Ok(())
    }
}

/// HTTP server of pieces.
pub struct PieceServer {
    listener: HttpListener,
    handler: Arc<PieceHandler>,
}

impl PieceServer {
    /// Starts to listen; no request is answered before [`PieceServer::run`]. `present` returns the store's time.
    pub async fn bind(
        source: Arc<dyn PieceSource>,
        options: ServeOptions,
        host: Arc<dyn Host>,
        present: SignClock,
    ) -> Result<Self> {
        options.check()?;
        let limits = ListenerLimits {
            connections_max: options.connections_max,
            // Peers are trusted by their secret, and many of them may share an address.
            per_address_max: options.connections_max,
            header_wait: options.header_wait,
            idle_wait: options.idle_wait,
        };
        let listener = HttpListener::bind(options.addr, limits, host.clone()).await?;
        let rate_limit =
            options.upload_bytes_per_sec.map(|rate| Arc::new(SendRateLimiter::new(host.clone(), rate)));
        let handler = Arc::new(PieceHandler {
            source,
            secret: options.secret,
            present,
            host,
            uploads: Arc::new(Semaphore::new(options.uploads_max)),
            rate_limit,
            counters: ServerCounters::default(),
        });
        Ok(Self { listener, handler })
    }

    /// Address that the server listens on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// Counters, updated while the server runs.
    #[must_use]
    pub fn counters(&self) -> ServerCounters {
        self.handler.counters.clone()
    }

    /// Serves until shutdown: drain finishes the responses in progress, abort ends them.
    pub async fn run(self, shutdown: Shutdown) -> Result<()> {
        self.listener.run(self.handler, shutdown.reached(Stage::Drain), shutdown.reached(Stage::Abort)).await;
        Ok(())
    }
}

impl fmt::Debug for PieceServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PieceServer").field("addr", &self.listener.addr()).finish_non_exhaustive()
    }
}
