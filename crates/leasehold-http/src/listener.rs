//! Listener for HTTP connections, within limits that hold whatever the clients do: a bounded number of connections in all
//! and from one address, request heads of bounded size that must arrive in time, and an orderly shutdown. An implementation
//! of [`RequestHandler`] handles the requests.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use leasehold_core::Result;
use leasehold_store::Host;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::accept::{AcceptLimits, Acceptor, StreamHandler};
use crate::connection::{Connection, ConnectionPhase, ConnectionTimeouts, TrackedStream};

/// Most bytes of a request's head, and of a response that hyper buffers: our longest head has 400, and a browser's rarely
/// 2,000.
const HEAD_BYTES_MAX: usize = 16 * 1_024;

/// Most headers of a request; ours have four, those of browsers about fifteen.
const HEADERS_MAX: usize = 64;

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
    acceptor: Acceptor,
    timeouts: ConnectionTimeouts,
}

impl HttpListener {
    /// Listens on an address; no request is answered before [`HttpListener::run`].
    pub async fn bind(addr: SocketAddr, limits: ListenerLimits, host: Arc<dyn Host>) -> Result<Self> {
        let ListenerLimits { connections_max, per_address_max, header_wait: head, idle_wait: idle } = limits;
        let limits = AcceptLimits { connections_max, per_address_max };
        let acceptor = Acceptor::bind(addr, limits, host).await?;
        Ok(Self { acceptor, timeouts: ConnectionTimeouts { head, idle } })
    }

    /// Address of the listener.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.acceptor.addr()
    }

    /// Accepts connections until shutdown. When `drain` is ready, it accepts no new connections and finishes the
    /// responses in progress; when `abort` is ready, it ends them.
    pub async fn run(
        self,
        handler: Arc<impl RequestHandler>,
        drain: impl Future<Output = ()>,
        abort: impl Future<Output = ()>,
    ) {
        let Self { acceptor, timeouts } = self;
        let server = HttpServer { handler, host: acceptor.host().clone(), timeouts };
        acceptor.run(Arc::new(server), drain, abort).await;
    }
}

/// Serves HTTP on the streams of an acceptor.
struct HttpServer<H> {
    handler: Arc<H>,
    host: Arc<dyn Host>,
    timeouts: ConnectionTimeouts,
}

impl<H: RequestHandler> StreamHandler for HttpServer<H> {
    async fn serve(self: Arc<Self>, stream: TcpStream, is_draining: watch::Receiver<bool>) {
        self.handler.on_event(ListenerEvent::Connected);
        serve_connection(stream, self.handler.clone(), self.host.clone(), self.timeouts, is_draining).await;
    }

    /// Bytes that have arrived are read before the response: a connection that is closed with unread bytes is reset, and
    /// the client might lose our response.
    fn refuse(&self, stream: TcpStream) {
        self.handler.on_event(ListenerEvent::Refused);
        if let Ok(mut stream) = stream.into_std() {
            // Errors are ignored: the connection is closed in any case.
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write(TOO_MANY_CONNECTIONS);
        }
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
