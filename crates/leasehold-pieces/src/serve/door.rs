//! Listener for HTTP connections, within limits that hold whatever the clients do.
//!
//! Clients of the piece server and of the dashboard may be slow, many or hostile, so both use this listener: a bounded
//! number of connections in all and from one address, request heads of bounded size that must arrive in time, and an orderly
//! shutdown. An implementation of [`Answers`] handles the requests.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use leasehold_core::{Error, Kind, Result};
use leasehold_store::Host;
use leasehold_store::host::{End, Running};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use tokio::net::{TcpListener, TcpStream};

pub use super::line::Connection;
use super::line::{ConnectionPhase, ConnectionTimeouts, Wire};

/// Most bytes of a request's head, and of a response that hyper buffers: our longest head has 400, and a browser's rarely
/// 2,000.
const HEAD_BYTES_MAX: usize = 16 * 1_024;

/// Most headers of a request; ours have four, those of browsers about fifteen.
const HEADERS_MAX: usize = 64;

/// Pause after a connection could not be accepted, as when there are no file handles left: some may be closed meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Response to a connection beyond the limit.
const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
    content-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n\r\ntoo many connections\n";

/// Handler of the requests of a listener.
pub trait Answers: Send + Sync + 'static {
    /// Body of a response.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static;

    /// Handles a request; a failure is a response, too. Calls [`Connection::asked`] at the start, and
    /// [`Connection::handed_over`] when the response body has been handed over.
    fn answer(
        self: Arc<Self>,
        line: Arc<Connection>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Called for events outside of requests, to count them.
    fn note(&self, _happened: Happened) {}
}

/// Event of a listener outside of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// A connection was accepted.
    Connected,
    /// A connection was refused, because there were too many.
    TurnedAway,
    /// A client sent an invalid request.
    Garbage,
    /// A client timed out within a request or response.
    Slow,
}

/// Limits of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Most connections at a time.
    pub connections_max: usize,
    /// Most connections from one address at a time, so that one client cannot lock out the others.
    pub per_address_max: usize,
    /// Longest wait for the head of a request.
    pub header_wait: Duration,
    /// Longest wait for the next request, and for a client to read 64 KiB of its response.
    pub idle_wait: Duration,
}

/// A bounded HTTP listener.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    addr: SocketAddr,
    bounds: Bounds,
    host: Arc<dyn Host>,
}

impl Door {
    /// Listens on an address; no request is answered before [`Door::run`].
    pub async fn open(addr: SocketAddr, bounds: Bounds, host: Arc<dyn Host>) -> Result<Self> {
        let failure = |error: io::Error| {
            Error::new(Kind::Unavailable, format!("cannot listen on `{addr}`: {error}")).because(error)
        };
        let listener = TcpListener::bind(addr).await.map_err(failure)?;
        let addr = listener.local_addr().map_err(failure)?;
        Ok(Self { listener, addr, bounds, host })
    }

    /// Address it listens on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Accepts connections until shutdown: drain finishes the responses in progress, abort ends them.
    pub async fn run(self, answers: Arc<impl Answers>, shutdown: Shutdown) {
        let mut lines = FuturesUnordered::new();
        let mut clients = Clients::default();
        let mut draining = std::pin::pin!(shutdown.reached(Stage::Drain));
        loop {
            tokio::select! {
                () = &mut draining => break,
                Some((client, end)) = lines.next() => {
                    clients.leave(client);
                    note(&end);
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, from)) => {
                        let client = client_of(from.ip());
                        let has_room = lines.len() < self.bounds.connections_max;
                        if has_room && clients.enter(client, self.bounds.per_address_max) {
                            let line = self.welcome(stream, &answers, &shutdown);
                            lines.push(line.map(move |end| (client, end)));
                        } else {
                            turn_away(stream, &*answers);
                        }
                    }
                    Err(error) => self.bear(&error).await,
                },
            }
        }
        // No new connections; open ones end when their response is sent.
        drop(self.listener);
        tokio::select! {
            () = shutdown.reached(Stage::Abort) => {}
            () = async { while let Some((_, end)) = lines.next().await { note(&end) } } => {}
        }
    }

    fn welcome(&self, stream: TcpStream, answers: &Arc<impl Answers>, shutdown: &Shutdown) -> Running {
        answers.note(Happened::Connected);
        let waits = ConnectionTimeouts { head: self.bounds.header_wait, idle: self.bounds.idle_wait };
        let conversation = converse(stream, answers.clone(), self.host.clone(), waits, shutdown.clone());
        self.host.spawn(Box::pin(conversation))
    }

    /// Pauses after a failed accept. A connection that was closed before it was accepted is no failure.
    async fn bear(&self, error: &io::Error) {
        if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            tracing::warn!(%error, "failed to accept connection, retrying");
            self.host.sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// Number of open connections per client.
#[derive(Debug, Default)]
struct Clients(HashMap<IpAddr, usize>);

impl Clients {
    /// Adds a connection of a client, unless it has `max` already.
    fn enter(&mut self, client: IpAddr, max: usize) -> bool {
        let count = self.0.get(&client).copied().unwrap_or(0);
        if count < max {
            self.0.insert(client, count + 1);
        }
        count < max
    }

    /// Removes a connection of a client, and the client with its last one.
    fn leave(&mut self, client: IpAddr) {
        if let Some(count) = self.0.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&client);
            }
        }
    }
}

/// Client that a connection counts for: an IPv4 address, or an IPv6 /64 network, whose addresses one machine may have.
fn client_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

/// Refuses a connection without waiting. Bytes that have arrived are read first: a connection that is closed with unread
/// bytes is reset, and the client might lose our response.
fn turn_away(stream: TcpStream, answers: &impl Answers) {
    answers.note(Happened::TurnedAway);
    if let Ok(mut stream) = stream.into_std() {
        // Errors are ignored: the connection is closed in any case.
        let _ = stream.read(&mut [0; 4_096]);
        let _ = stream.write(TURNED_AWAY);
    }
}

fn note(end: &End) {
    if let End::Panicked(words) = end {
        tracing::error!(panic = words, "connection task panicked");
    }
}

/// Serves one connection from its first byte to its last.
async fn converse(
    stream: TcpStream,
    answers: Arc<impl Answers>,
    host: Arc<dyn Host>,
    waits: ConnectionTimeouts,
    shutdown: Shutdown,
) {
    // Without this, head and body of a response may be 40 ms apart.
    let _ = stream.set_nodelay(true);
    let line = Connection::new();
    let service = service_fn(|request| {
        let answer = answers.clone().answer(line.clone(), request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        // It would be the wall clock's time.
        .auto_date_header(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(Wire::new(stream, line.clone()), service);
    let mut connection = std::pin::pin!(connection);
    let mut kept_waiting = std::pin::pin!(line.kept_waiting(&*host, waits));
    let mut draining = std::pin::pin!(shutdown.reached(Stage::Drain));
    let mut is_draining = false;
    loop {
        tokio::select! {
            biased;
            end = &mut connection => return note_end(end, &*answers),
            phase = &mut kept_waiting => return note_cut(phase, &*answers),
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

fn note_end(end: hyper::Result<()>, answers: &impl Answers) {
    if let Err(error) = end
        && error.is_parse()
    {
        tracing::debug!(%error, "client sent an invalid request");
        answers.note(Happened::Garbage);
    }
}

/// Counts a connection that timed out. An idle one does not count as slow.
fn note_cut(phase: ConnectionPhase, answers: &impl Answers) {
    tracing::debug!(?phase, "client connection timed out");
    if phase != ConnectionPhase::Idle {
        answers.note(Happened::Slow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_counts_by_its_address_or_its_network() {
        let client = |ip: &str| client_of(ip.parse().unwrap()).to_string();
        assert_eq!(client("192.0.2.7"), "192.0.2.7");
        assert_eq!(client("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(client("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }

    #[test]
    fn a_client_that_disconnects_has_room_again_and_is_forgotten() {
        let (mut clients, one) = (Clients::default(), client_of([192, 0, 2, 7].into()));
        assert!(clients.enter(one, 2) && clients.enter(one, 2) && !clients.enter(one, 2));
        assert!(clients.enter(client_of([192, 0, 2, 8].into()), 2));
        clients.leave(one);
        assert!(clients.enter(one, 2));
        clients.leave(one);
        clients.leave(one);
        assert_eq!(clients.0.len(), 1);
    }
}
