//! A loopback HTTP/1.1 listener that owns everything it starts.

#![expect(clippy::disallowed_methods, reason = "the task is owned by the listener, which aborts it")]

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

/// The body of an answer; an error within it cuts the connection.
pub(super) type Body = BoxBody<Bytes, io::Error>;

/// What a handler gives instead of an answer: the connection closes without another byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the connection is closed on purpose")
    }
}

impl std::error::Error for Closed {}

/// A body that is sent whole.
pub(super) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// A listener on a free loopback port; dropping it ends all its connections.
#[derive(Debug)]
pub(super) struct Listener {
    address: SocketAddr,
    accept: JoinHandle<()>,
}

impl Listener {
    /// Listens; `date` says whether answers without a `Date` get one.
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

    /// The address as `http://127.0.0.1:PORT`.
    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends and returns when port and connections are closed.
    pub(super) async fn stop(&mut self) {
        self.accept.abort();
        // The result only says that the task was aborted.
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
                    connections.spawn(converse(stream, date, handler.clone()));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // For example no file handles are left: to end shows in the test, to go on spins.
                Err(_) => return,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn converse<H, F>(stream: TcpStream, date: bool, handler: H)
where
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Result<Response<Body>, Closed>>,
{
    // Without this, head and body of an answer may be 40 ms apart.
    let _ = stream.set_nodelay(true);
    // The error is either the client's leaving or our own wish to close.
    let _ = http1::Builder::new()
        .auto_date_header(date)
        .preserve_header_case(true)
        .serve_connection(TokioIo::new(stream), service_fn(handler))
        .await;
}
