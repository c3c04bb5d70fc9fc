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
//! | `line` | a connection, watched |
//! | `tally` | what was served |

mod answer;
mod body;
mod line;
mod pace;
mod refusal;
mod route;
mod tally;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use leasehold_core::piece::{Cut, PieceMap};
use leasehold_core::{ArtifactId, Error, Kind, Result};
use leasehold_store::Host;
use leasehold_store::host::{End, Running};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::sign::{Present, Secret};
use answer::Answerer;
use line::{Line, Phase, Waits, Wire};
use pace::Pace;

pub(crate) use answer::{PIECE_BYTES, SIZE};
pub(crate) use route::Route;
pub use route::{ANSWER_BYTES_MAX, pieces_per_answer};
pub use tally::{Refused, Served, Tally};

/// Most bytes of a request's head, and of what hyper holds back of an answer: the longest head of ours has 400.
const HEAD_BYTES_MAX: usize = 16 * 1_024;

/// Most headers of a request; ours have four.
const HEADERS_MAX: usize = 32;

/// Pause after a connection could not be accepted, as when there are no file handles left: others may give some back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What one connection too many gets.
const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
    content-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n\r\ntoo many connections\n";

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
    listener: TcpListener,
    addr: SocketAddr,
    connections_max: usize,
    waits: Waits,
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
        let failure = |error: io::Error| {
            Error::new(Kind::Unavailable, format!("cannot listen on `{}`: {error}", options.addr))
                .because(error)
        };
        let listener = TcpListener::bind(options.addr).await.map_err(failure)?;
        let addr = listener.local_addr().map_err(failure)?;
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
        let waits = Waits { head: options.header_wait, idle: options.idle_wait };
        Ok(Self { listener, addr, connections_max: options.connections_max, waits, answerer })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Counts what is served, while it is.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.answerer.tally.clone()
    }

    /// Serves until it is stopped: draining finishes the answers that are on their way, aborting ends them.
    pub async fn run(self, shutdown: Shutdown) -> Result<()> {
        let mut lines = FuturesUnordered::new();
        let mut draining = std::pin::pin!(shutdown.reached(Stage::Drain));
        loop {
            tokio::select! {
                () = &mut draining => break,
                Some(end) = lines.next() => note(&end),
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) if lines.len() < self.connections_max => lines.push(self.welcome(stream, &shutdown)),
                    Ok((stream, _)) => self.turn_away(stream),
                    Err(error) => self.bear(&error).await,
                },
            }
        }
        // Nobody is to come any more; who is here leaves when its answer is out.
        drop(self.listener);
        tokio::select! {
            () = shutdown.reached(Stage::Abort) => {}
            () = async { while let Some(end) = lines.next().await { note(&end) } } => {}
        }
        Ok(())
    }

    fn welcome(&self, stream: TcpStream, shutdown: &Shutdown) -> Running {
        self.answerer.tally.count(|served| served.connections += 1);
        let host = &self.answerer.host;
        host.spawn(Box::pin(converse(stream, self.answerer.clone(), self.waits, shutdown.clone())))
    }

    /// Says no without waiting for anything. What has come is read first: a connection that is closed with unread bytes
    /// is reset, and the client might lose our answer.
    fn turn_away(&self, stream: TcpStream) {
        self.answerer.tally.count(|served| served.refused.connections += 1);
        if let Ok(mut stream) = stream.into_std() {
            // Whether it works is the client's concern: it is closed in any case.
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write(TURNED_AWAY);
        }
    }

    /// A connection that was gone before it was accepted is nothing; anything else may need time to pass.
    async fn bear(&self, error: &io::Error) {
        if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            tracing::warn!(%error, "a connection could not be accepted");
            self.answerer.host.sleep(ACCEPT_PAUSE).await;
        }
    }
}

impl fmt::Debug for PieceServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PieceServer").field("addr", &self.addr).finish_non_exhaustive()
    }
}

fn note(end: &End) {
    if let End::Panicked(words) = end {
        tracing::error!(words, "a connection's task panicked");
    }
}

/// One connection from its first byte to its last.
async fn converse(stream: TcpStream, answerer: Arc<Answerer>, waits: Waits, shutdown: Shutdown) {
    // Without this, head and body of an answer may be 40 ms apart.
    let _ = stream.set_nodelay(true);
    let line = Line::new();
    let service = service_fn(|request| answerer.clone().answer(line.clone(), request));
    let connection = http1::Builder::new()
        // It would be the wall clock's.
        .auto_date_header(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(Wire::new(stream, line.clone()), service);
    let mut connection = std::pin::pin!(connection);
    let mut kept_waiting = std::pin::pin!(line.kept_waiting(&*answerer.host, waits));
    let mut draining = std::pin::pin!(shutdown.reached(Stage::Drain));
    let mut is_draining = false;
    loop {
        tokio::select! {
            biased;
            end = &mut connection => return note_end(end, &answerer.tally),
            phase = &mut kept_waiting => return note_cut(phase, &answerer.tally),
            () = &mut draining, if !is_draining => {
                if !line.is_answering() {
                    return;
                }
                connection.as_mut().graceful_shutdown();
                is_draining = true;
            }
        }
    }
}

fn note_end(end: hyper::Result<()>, tally: &Tally) {
    if let Err(error) = end
        && error.is_parse()
    {
        tracing::debug!(%error, "a client sent something that is no request");
        tally.count(|served| served.refused.garbage += 1);
    }
}

/// A connection that is simply not used any more has done nothing wrong.
fn note_cut(phase: Phase, tally: &Tally) {
    tracing::debug!(?phase, "a client kept its connection waiting");
    if phase != Phase::Idle {
        tally.count(|served| served.refused.slow += 1);
    }
}
