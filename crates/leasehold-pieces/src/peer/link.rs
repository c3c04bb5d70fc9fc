//! One connection to a peer, driven by whoever uses it.
//!
//! Nothing runs beside the caller: a connection moves while someone waits for its answer and stands still while it is
//! idle. That the peer has closed it meanwhile shows at the next use.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};

use bytes::Bytes;
use http::uri::Authority;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Trouble;

/// Most headers of an answer; a server of ours sends four.
const HEADERS_MAX: usize = 32;

type Wire = Connection<TokioIo<TcpStream>, Empty<Bytes>>;

/// A connection.
pub(super) struct Link {
    sender: SendRequest<Empty<Bytes>>,
    /// Nothing once it has ended.
    connection: Option<Pin<Box<Wire>>>,
}

impl Link {
    pub(super) async fn open(peer: &Authority) -> Result<Self, Trouble> {
        let failed =
            |error: &dyn std::fmt::Display| Trouble::Network(format!("cannot connect to `{peer}`: {error}"));
        let address = (peer.host().trim_matches(['[', ']']), peer.port_u16().unwrap_or(80));
        let stream = TcpStream::connect(address).await.map_err(|error| failed(&error))?;
        // Requests are small and go out at once.
        let _ = stream.set_nodelay(true);
        let handshake = Builder::new().max_headers(HEADERS_MAX).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| failed(&error))?;
        Ok(Self { sender, connection: Some(Box::pin(connection)) })
    }

    /// Lets the last answer come to its end; whether the next request may follow. A peer that closed the connection, or
    /// sent what nobody asked for, shows here.
    pub(super) async fn is_usable(&mut self) -> bool {
        let Self { sender, connection } = self;
        drive(connection, sender.ready()).await.is_ok() && connection.is_some()
    }

    /// Sends a request and waits for the head of the answer.
    pub(super) async fn send(
        &mut self,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, Trouble> {
        let Self { sender, connection } = self;
        let answer = sender.send_request(request);
        drive(connection, answer).await.map_err(|error| trouble(&error))
    }

    /// The next bytes of an answer; nothing at its end.
    pub(super) async fn next_bytes(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, Trouble> {
        loop {
            let Some(frame) = drive(&mut self.connection, body.frame()).await else { return Ok(None) };
            if let Ok(bytes) = frame.map_err(|error| trouble(&error))?.into_data() {
                return Ok(Some(bytes));
            }
        }
    }
}

/// Runs a connection along with what waits for it.
async fn drive<T>(connection: &mut Option<Pin<Box<Wire>>>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        // How it ended is told to the one who waits for an answer.
        if connection.as_mut().is_some_and(|connection| connection.as_mut().poll(context).is_ready()) {
            *connection = None;
        }
        work.as_mut().poll(context)
    })
    .await
}

/// What is no HTTP is the peer's fault; everything else may be the network's.
fn trouble(error: &hyper::Error) -> Trouble {
    if error.is_parse() {
        Trouble::Nonsense(format!("it does not speak HTTP: {error}"))
    } else {
        Trouble::Network(error.to_string())
    }
}
