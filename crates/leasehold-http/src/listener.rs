//! Listener for HTTP connections, within limits that hold whatever the clients do: a bounded number of connections in all
//! and from one address, request heads of bounded size that must arrive in time, and an orderly shutdown. An implementation
//! of [`RequestHandler`] handles the requests.

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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::connection::{Connection, ConnectionPhase, ConnectionTimeouts, TrackedStream};

/// Most bytes of a request's head, and of a response that hyper buffers: our longest head has 400, and a browser's rarely
/// 2,000.
const HEAD_BYTES_MAX: usize = 16 * 1_024;

/// Most headers of a request; ours have four, those of browsers about fifteen.
const HEADERS_MAX: usize = 64;

/// Pause after a connection could not be accepted, as when there are no file handles left: some may be closed meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Response to a connection beyond the limit.
const TOO_MANY_CONNECTIONS: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
    content-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n\r\ntoo many connections\n";

/// Handler of the requests of a listener.
pub trait RequestHandler: Send + Sync + 'static {
    /// Body of a response.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static;

    /// Handles a request; a failure is a response, too. Calls [`Connection::request_received`] at the start,
    /// and [`Connection::body_handed_over`] when the response body has been handed over.
    fn handle(
        self: Arc<Self>,
        connection: Arc<Connection>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Called for events outside of requests, to count them.
    fn on_event(&self, _event: ListenerEvent) {}
}

/// Event of a listener outside of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerEvent {
    /// A connection was accepted.
    Connected,
    /// A connection was refused, because there were too many.
    Refused,
    /// A client sent an invalid request.
    InvalidRequest,
    /// A client timed out within a request or response.
    TimedOut,
}

/// Limits of a listener.
#[derive(Debug, Clone, Copy)]
pub struct ListenerLimits {
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
pub struct HttpListener {
    listener: TcpListener,
    addr: SocketAddr,
    limits: ListenerLimits,
    host: Arc<dyn Host>,
}

impl HttpListener {
    /// Listens on an address; no request is answered before [`HttpListener::run`].
    #[expect(clippy::disallowed_methods, reason = "this is the one listener")]
    pub async fn bind(addr: SocketAddr, limits: ListenerLimits, host: Arc<dyn Host>) -> Result<Self> {
        let failure = |error: io::Error| {
            Error::new(Kind::Unavailable, format!("cannot listen on `{addr}`: {error}")).because(error)
        };
        let listener = TcpListener::bind(addr).await.map_err(failure)?;
        let addr = listener.local_addr().map_err(failure)?;
        Ok(Self { listener, addr, limits, host })
    }

    /// Address of the listener.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Accepts connections until shutdown. When `drain` is ready, it accepts no new connections and finishes the
    /// responses in progress; when `abort` is ready, it ends them. Two futures, so that a server needs no more of its
    /// owner than the moments to stop.
    pub async fn run(
        self,
        handler: Arc<impl RequestHandler>,
        drain: impl Future<Output = ()>,
        abort: impl Future<Output = ()>,
    ) {
        let mut connections = FuturesUnordered::new();
        let mut clients = Clients::default();
        let is_draining = watch::Sender::new(false);
        let (mut drain, mut abort) = (std::pin::pin!(drain), std::pin::pin!(abort));
        loop {
            tokio::select! {
                () = &mut abort => return,
                () = &mut drain => break,
                Some((client, end)) = connections.next() => {
                    clients.remove(client);
                    log_panic(&end);
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, from)) => {
                        let client = client_of(from.ip());
                        let has_room = connections.len() < self.limits.connections_max;
                        if has_room && clients.add(client, self.limits.per_address_max) {
                            let serving = self.spawn_connection(stream, &handler, is_draining.subscribe());
                            connections.push(serving.map(move |end| (client, end)));
                        } else {
                            refuse(stream, &*handler);
                        }
                    }
                    Err(error) => self.pause_after_error(&error).await,
                },
            }
        }
        // No new connections; open ones end when their response is sent.
        drop(self.listener);
        is_draining.send_replace(true);
        tokio::select! {
            () = abort => {}
            () = async { while let Some((_, end)) = connections.next().await { log_panic(&end) } } => {}
        }
    }

    fn spawn_connection(
        &self,
        stream: TcpStream,
        handler: &Arc<impl RequestHandler>,
        is_draining: watch::Receiver<bool>,
    ) -> Running {
        handler.on_event(ListenerEvent::Connected);
        let timeouts = ConnectionTimeouts { head: self.limits.header_wait, idle: self.limits.idle_wait };
        let serving = serve_connection(stream, handler.clone(), self.host.clone(), timeouts, is_draining);
        self.host.spawn(Box::pin(serving))
    }

    /// Pauses after a failed accept. A connection that was closed before it was accepted is no failure.
    async fn pause_after_error(&self, error: &io::Error) {
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
    fn add(&mut self, client: IpAddr, max: usize) -> bool {
        let count = self.0.get(&client).copied().unwrap_or(0);
        if count < max {
            self.0.insert(client, count + 1);
        }
        count < max
    }

    /// Removes a connection of a client, and the client with its last one.
    fn remove(&mut self, client: IpAddr) {
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
fn refuse(stream: TcpStream, handler: &impl RequestHandler) {
    handler.on_event(ListenerEvent::Refused);
    if let Ok(mut stream) = stream.into_std() {
        // Errors are ignored: the connection is closed in any case.
        let _ = stream.read(&mut [0; 4_096]);
        let _ = stream.write(TOO_MANY_CONNECTIONS);
    }
}

fn log_panic(end: &End) {
    if let End::Panicked(message) = end {
        tracing::error!(panic = message, "connection task panicked");
    }
}

/// Serves one connection from its first byte to its last.
async fn serve_connection(
    stream: TcpStream,
    handler: Arc<impl RequestHandler>,
    host: Arc<dyn Host>,
    timeouts: ConnectionTimeouts,
    mut is_draining: watch::Receiver<bool>,
) {
    // Without this, head and body of a response may be 40 ms apart.
    let _ = stream.set_nodelay(true);
    let connection = Connection::new();
    let service = service_fn(|request| {
        let response = handler.clone().handle(connection.clone(), request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let http_connection = http1::Builder::new()
        // It would be the wall clock's time.
        .auto_date_header(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TrackedStream::new(stream, connection.clone()), service);
    let mut http_connection = std::pin::pin!(http_connection);
    let mut timed_out = std::pin::pin!(connection.timed_out(&*host, timeouts));
    let mut draining = std::pin::pin!(async { drop(is_draining.wait_for(|is_draining| *is_draining).await) });
    let mut is_last_response = false;
    loop {
        tokio::select! {
            biased;
            end = &mut http_connection => return record_end(end, &*handler),
            phase = &mut timed_out => return record_timeout(phase, &*handler),
            () = &mut draining, if !is_last_response => {
                if !connection.is_responding() {
                    return;
                }
                http_connection.as_mut().graceful_shutdown();
                is_last_response = true;
            }
        }
    }
}

fn record_end(end: hyper::Result<()>, handler: &impl RequestHandler) {
    if let Err(error) = end
        && error.is_parse()
    {
        tracing::debug!(%error, "client sent an invalid request");
        handler.on_event(ListenerEvent::InvalidRequest);
    }
}

/// Counts a connection that timed out. An idle one does not count as slow.
fn record_timeout(phase: ConnectionPhase, handler: &impl RequestHandler) {
    tracing::debug!(?phase, "client connection timed out");
    if phase != ConnectionPhase::Idle {
        handler.on_event(ListenerEvent::TimedOut);
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
    fn a_disconnected_client_no_longer_counts() {
        let (mut clients, one) = (Clients::default(), client_of([192, 0, 2, 7].into()));
        assert!(clients.add(one, 2) && clients.add(one, 2) && !clients.add(one, 2));
        assert!(clients.add(client_of([192, 0, 2, 8].into()), 2));
        clients.remove(one);
        assert!(clients.add(one, 2));
        clients.remove(one);
        clients.remove(one);
        assert_eq!(clients.0.len(), 1);
    }
}
