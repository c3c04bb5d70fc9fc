//! One connection to a peer, driven by its caller.
//!
//! There is no background task: a connection makes progress while a caller waits for its response, and none while it is
//! idle. If the peer has closed it meanwhile, the next use fails.

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

use super::PeerError;

/// Most headers of a response; our server sends four.
const HEADERS_MAX: usize = 32;

type HttpConnection = Connection<TokioIo<TcpStream>, Empty<Bytes>>;

/// A connection to a peer.
pub(super) struct PeerConnection {
    sender: SendRequest<Empty<Bytes>>,
    /// `None` once it has ended.
    connection: Option<Pin<Box<HttpConnection>>>,
}

impl PeerConnection {
    pub(super) async fn open(peer: &Authority) -> Result<Self, PeerError> {
        let failed = |error: &dyn std::fmt::Display| {
            PeerError::Network(format!("cannot connect to `{peer}`: {error}"))
        };
        let address = (peer.host().trim_matches(['[', ']']), peer.port_u16().unwrap_or(80));
        let stream = TcpStream::connect(address).await.map_err(|error| failed(&error))?;
        // Requests are small and go out at once.
        let _ = stream.set_nodelay(true);
        let handshake = Builder::new().max_headers(HEADERS_MAX).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| failed(&error))?;
        Ok(Self { sender, connection: Some(Box::pin(connection)) })
    }

    /// Finishes the last response, and returns whether the next request may follow: false if the peer closed the
    /// connection, or sent bytes that were not requested.
    pub(super) async fn is_usable(&mut self) -> bool {
        let Self { sender, connection } = self;
        drive(connection, sender.ready()).await.is_ok() && connection.is_some()
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn send(
        &mut self,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, PeerError> {
        let Self { sender, connection } = self;
        let response = sender.send_request(request);
        drive(connection, response).await.map_err(|error| classify(&error))
    }

    /// Next bytes of a response; `None` at its end.
    pub(super) async fn next_bytes(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, PeerError> {
        loop {
            let Some(frame) = drive(&mut self.connection, body.frame()).await else { return Ok(None) };
            if let Ok(bytes) = frame.map_err(|error| classify(&error))?.into_data() {
                return Ok(Some(bytes));
            }
        }
    }
}

/// Polls a connection together with the future that waits for it.
async fn drive<T>(connection: &mut Option<Pin<Box<HttpConnection>>>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        // The future that waits for a response gets the error.
        if connection.as_mut().is_some_and(|connection| connection.as_mut().poll(context).is_ready()) {
            *connection = None;
        }
        work.as_mut().poll(context)
    })
    .await
}

/// Classifies an error: invalid HTTP is the peer's fault; everything else may be the network's.
fn classify(error: &hyper::Error) -> PeerError {
    if error.is_parse() {
        PeerError::InvalidResponse(format!("invalid HTTP response: {error}"))
    } else {
        PeerError::Network(error.to_string())
    }
}
