//! Handwritten HTTP, so that no client library corrects what a test sends.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Default source address of connections.
const HERE: [u8; 4] = [127, 0, 0, 1];

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|part| part == b"\r\n\r\n")?;
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        Some(Self { status, head, body: bytes[end + 4..].to_vec() })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(": "));
        headers.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Returns the error text.
    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }
}

/// Sends one request on a new connection and reads the response; `None` if there is none.
pub(crate) async fn exchange(addr: SocketAddr, request: impl AsRef<[u8]>) -> Option<Answer> {
    exchange_from(HERE, addr, request).await
}

/// Connects from another address of this machine: all in 127.0.0.0/8 are.
pub(crate) async fn connect_from(source: [u8; 4], addr: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    socket.connect(addr).await.unwrap()
}

/// Sends one request from another address of this machine.
pub(crate) async fn exchange_from(
    source: [u8; 4],
    addr: SocketAddr,
    request: impl AsRef<[u8]>,
) -> Option<Answer> {
    let mut stream = connect_from(source, addr).await;
    // The server may reject the request before it has read all of it.
    let _ = stream.write_all(request.as_ref()).await;
    let mut bytes = Vec::new();
    // A reset ends the response, too.
    let _ = stream.read_to_end(&mut bytes).await;
    Answer::read(&bytes)
}
