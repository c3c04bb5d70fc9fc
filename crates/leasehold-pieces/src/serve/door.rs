//! The door of a server: connections over HTTP, within bounds that hold whatever the clients do.
//!
//! Pieces and the dashboard are both given to clients that may be slow, many or hostile, so both listen through this one
//! door: a bounded number of connections in all and from one address, heads of a bounded size that have to come in time,
//! and an orderly end. What is asked and answered is the business of whoever [`Answers`].

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

pub use super::line::Line;
use super::line::{Phase, Waits, Wire};

/// Most bytes of a request's head, and of what hyper holds back of an answer: the longest head of ours has 400, and one
/// of a browser rarely 2,000.
const HEAD_BYTES_MAX: usize = 16 * 1_024;

/// Most headers of a request; ours have four, those of browsers about fifteen.
const HEADERS_MAX: usize = 64;

/// Pause after a connection could not be accepted, as when there are no file handles left: others may give some back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What one connection too many gets.
const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
    content-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n\r\ntoo many connections\n";

/// Whoever answers what is asked at a door.
pub trait Answers: Send + Sync + 'static {
    /// What an answer carries.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static;

    /// Answers; a failure is an answer, too. Tells the line when it was asked, and when it has handed its answer over.
    fn answer(
        self: Arc<Self>,
        line: Arc<Line>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Hears what happens at the door, for counts.
    fn note(&self, _happened: Happened) {}
}

/// What happens at a door without anybody answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// A connection was taken.
    Connected,
    /// There were too many of them.
    TurnedAway,
    /// Something came that is no request.
    Garbage,
    /// A client kept its connection waiting in the middle of something.
    Slow,
}

/// What a door endures.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Most connections at a time.
    pub connections_max: usize,
    /// Most connections of one address at a time, so that one client cannot keep all others out.
    pub per_address_max: usize,
    /// Longest wait for the head of a request.
    pub header_wait: Duration,
    /// Longest wait for the next request, and for a client to take 64 KiB of its answer.
    pub idle_wait: Duration,
}

/// Listens.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    addr: SocketAddr,
    bounds: Bounds,
    host: Arc<dyn Host>,
}

impl Door {
    /// Listens at an address; nothing is answered before [`Door::run`].
    pub async fn open(addr: SocketAddr, bounds: Bounds, host: Arc<dyn Host>) -> Result<Self> {
        let failure = |error: io::Error| {
            Error::new(Kind::Unavailable, format!("cannot listen on `{addr}`: {error}")).because(error)
        };
        let listener = TcpListener::bind(addr).await.map_err(failure)?;
        let addr = listener.local_addr().map_err(failure)?;
        Ok(Self { listener, addr, bounds, host })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Lets clients in until it is stopped: draining finishes the answers that are on their way, aborting ends them.
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
        // Nobody is to come any more; who is here leaves when its answer is out.
        drop(self.listener);
        tokio::select! {
            () = shutdown.reached(Stage::Abort) => {}
            () = async { while let Some((_, end)) = lines.next().await { note(&end) } } => {}
        }
    }

    fn welcome(&self, stream: TcpStream, answers: &Arc<impl Answers>, shutdown: &Shutdown) -> Running {
        answers.note(Happened::Connected);
        let waits = Waits { head: self.bounds.header_wait, idle: self.bounds.idle_wait };
        let conversation = converse(stream, answers.clone(), self.host.clone(), waits, shutdown.clone());
        self.host.spawn(Box::pin(conversation))
    }

    /// A connection that was gone before it was accepted is nothing; anything else may need time to pass.
    async fn bear(&self, error: &io::Error) {
        if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            tracing::warn!(%error, "a connection could not be accepted");
            self.host.sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// Connections that are open, by whom they count for.
#[derive(Debug, Default)]
struct Clients(HashMap<IpAddr, usize>);

impl Clients {
    /// Counts one more for a client, unless it has so many already.
    fn enter(&mut self, client: IpAddr, max: usize) -> bool {
        let count = self.0.get(&client).copied().unwrap_or(0);
        if count < max {
            self.0.insert(client, count + 1);
        }
        count < max
    }

    /// Counts one less; a client that has none left is forgotten.
    fn leave(&mut self, client: IpAddr) {
        if let Some(count) = self.0.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&client);
            }
        }
    }
}

/// Whom a connection counts for: an address of IPv4, or a network of IPv6, whose 2⁶⁴ addresses one machine may have.
fn client_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

/// Says no without waiting for anything. What has come is read first: a connection that is closed with unread bytes
/// is reset, and the client might lose our answer.
fn turn_away(stream: TcpStream, answers: &impl Answers) {
    answers.note(Happened::TurnedAway);
    if let Ok(mut stream) = stream.into_std() {
        // Whether it works is the client's concern: it is closed in any case.
        let _ = stream.read(&mut [0; 4_096]);
        let _ = stream.write(TURNED_AWAY);
    }
}

fn note(end: &End) {
    if let End::Panicked(words) = end {
        tracing::error!(words, "a connection's task panicked");
    }
}

/// One connection from its first byte to its last.
async fn converse(
    stream: TcpStream,
    answers: Arc<impl Answers>,
    host: Arc<dyn Host>,
    waits: Waits,
    shutdown: Shutdown,
) {
    // Without this, head and body of an answer may be 40 ms apart.
    let _ = stream.set_nodelay(true);
    let line = Line::new();
    let service = service_fn(|request| {
        let answer = answers.clone().answer(line.clone(), request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        // It would be the wall clock's.
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
        tracing::debug!(%error, "a client sent something that is no request");
        answers.note(Happened::Garbage);
    }
}

/// A connection that is simply not used any more has done nothing wrong.
fn note_cut(phase: Phase, answers: &impl Answers) {
    tracing::debug!(?phase, "a client kept its connection waiting");
    if phase != Phase::Idle {
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
    fn who_has_left_has_room_again_and_is_forgotten() {
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
