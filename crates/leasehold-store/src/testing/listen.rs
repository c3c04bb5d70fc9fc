//! HTTP/1.1 listener on loopback that owns its connections.

#![expect(
    clippy::disallowed_methods,
    reason = "a test server; the task is owned by the listener, which aborts it"
)]

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Body of an answer; an error within it cuts the connection.
pub(super) type Body = BoxBody<Bytes, io::Error>;

/// Result of a handler that closes the connection without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the connection is closed on purpose")
    }
}

impl std::error::Error for Closed {}

/// Creates a body that is sent at once.
pub(super) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// Listener on a free loopback port; dropping it closes all its connections.
#[derive(Debug)]
pub(super) struct Listener {
    address: SocketAddr,
    accept: JoinHandle<()>,
}

impl Listener {
    /// Starts to listen; with `date`, answers without a `Date` get one.
    pub(super) async fn start<H, F>(date: bool, handler: H) -> io::Result<Self>
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Response<Body>, Closed>> + Send + 'static,
    {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = socket.local_addr()?;
        let accept = tokio::spawn(accept(socket, date, handler));
        Ok(Self { address, accept })
    }

    /// Address, as `http://127.0.0.1:PORT`.
    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops, and returns when port and connections are closed.
    pub(super) async fn stop(&mut self) {
        self.accept.abort();
        // The result only reports that the task was aborted.
        let _ = (&mut self.accept).await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

/// Owns the connections, so that aborting this one task aborts them all.
async fn accept<H, F>(socket: TcpListener, date: bool, handler: H)
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<Body>, Closed>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_connection(stream, date, handler.clone()));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // For example no file handles are left: ending fails the test, continuing would spin.
                Err(_) => return,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_connection<H, F>(stream: TcpStream, date: bool, handler: H)
where
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Result<Response<Body>, Closed>>,
{
    // Without this, head and body of an answer may be 40 ms apart.
    let _ = stream.set_nodelay(true);
    // The error means that the client disconnected, or that the handler closed the connection.
    let _ = http1::Builder::new()
        .auto_date_header(date)
        .preserve_header_case(true)
        .serve_connection(TokioIo::new(stream), service_fn(handler))
        .await;
}
