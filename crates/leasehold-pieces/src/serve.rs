//! Pieces for peers, over HTTP.
//!
//! A server gives away what its [`Shelf`] has verified, to whoever knows the secret, within limits that hold whatever the
//! clients do:
//!
//! * connections: beyond [`ServeOptions::connections_max`] a connection is answered with 503 at once and closed;
//! * uploads: beyond [`ServeOptions::uploads_max`] a request for pieces waits for five seconds, then gets a 503; a slot
//!   lasts until the last byte is with the kernel, so the memory of all answers is bounded by slots times answer;
//! * bytes per second, over all answers;
//! * patience: a head that does not come, an answer that is not taken, a connection that is not used are cut off.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `route` | the paths |
//! | `answer` | from a request to an answer |
//! | `refusal` | why a request gets nothing |
//! | `body` | how bytes go out |
//! | `pace` | the bound on bytes per second |
//! | [`door`] | connections, within their bounds: for whatever else listens, too |
//! | `line` | a connection, watched |
//! | `tally` | what was served |

mod answer;
mod body;
pub mod door;
mod line;
mod pace;
mod refusal;
mod route;
mod tally;

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leasehold_core::piece::{Cut, PieceMap};
use leasehold_core::{ArtifactId, Error, Result};
use leasehold_store::Host;
use leasehold_worker::Shutdown;
use tokio::sync::Semaphore;

use crate::sign::{Present, Secret};
use answer::Answerer;
use door::{Bounds, Door};
use pace::Pace;

pub(crate) use answer::{PIECE_BYTES, SIZE};
pub(crate) use route::Route;
pub use route::{ANSWER_BYTES_MAX, pieces_per_answer};
pub use tally::{Refused, Served, Tally};

/// What a server can give: only verified pieces.
pub trait Shelf: Send + Sync + 'static {
    /// Which pieces of an artifact are here; nothing if none. Called on a thread that may block.
    fn have(&self, artifact: &ArtifactId) -> Option<(Cut, PieceMap)>;

    /// The bytes of neighbouring pieces that are here; nothing if one is not. Called on a thread that may block.
    fn read(&self, artifact: &ArtifactId, pieces: Range<u32>) -> Result<Option<Bytes>>;
}

/// How to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Where to listen; port 0 lets the system choose.
    pub addr: SocketAddr,
    /// What peers sign their requests with. Without it only this machine may ask.
    pub secret: Option<Secret>,
    /// Most connections at a time.
    pub connections_max: usize,
    /// Most answers with pieces at a time.
    pub uploads_max: usize,
    /// Most bytes per second, over all answers.
    pub upload_bytes_per_sec: Option<u64>,
    /// Longest wait for the head of a request.
    pub header_wait: Duration,
    /// Longest wait for the next request, and for a client to take 64 KiB of its answer.
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
                "`{addr}` can be reached from other machines and there is no secret: give the peers one, or listen on 127.0.0.1"
            )));
        }
        if *connections_max == 0 || *uploads_max == 0 || *upload_bytes_per_sec == Some(0) {
            return Err(Error::invalid(
                "a piece server needs a connection, an upload and a byte per second at least",
            ));
        }
        if *uploads_max > Semaphore::MAX_PERMITS {
            return Err(Error::invalid(format!("{uploads_max} uploads at a time are too many")));
        }
        Ok(())
    }
}

/// Gives pieces to peers.
pub struct PieceServer {
    door: Door,
    answerer: Arc<Answerer>,
}

impl PieceServer {
    /// Listens; nothing is answered before [`PieceServer::run`]. `present` tells the store's time.
    pub async fn bind(
        shelf: Arc<dyn Shelf>,
        options: ServeOptions,
        host: Arc<dyn Host>,
        present: Present,
    ) -> Result<Self> {
        options.check()?;
        let bounds = Bounds {
            connections_max: options.connections_max,
            // Peers know the secret, and many of them may share an address.
            per_address_max: options.connections_max,
            header_wait: options.header_wait,
            idle_wait: options.idle_wait,
        };
        let door = Door::open(options.addr, bounds, host.clone()).await?;
        let pace = options.upload_bytes_per_sec.map(|rate| Arc::new(Pace::new(host.clone(), rate)));
        let answerer = Arc::new(Answerer {
            shelf,
            secret: options.secret,
            present,
            host,
            uploads: Arc::new(Semaphore::new(options.uploads_max)),
            pace,
            tally: Tally::default(),
        });
        Ok(Self { door, answerer })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.door.addr()
    }

    /// Counts what is served, while it is.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.answerer.tally.clone()
    }

    /// Serves until it is stopped: draining finishes the answers that are on their way, aborting ends them.
    pub async fn run(self, shutdown: Shutdown) -> Result<()> {
        self.door.run(self.answerer, shutdown).await;
        Ok(())
    }
}

impl fmt::Debug for PieceServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PieceServer").field("addr", &self.door.addr()).finish_non_exhaustive()
    }
}
