//! Raw HTTP, so that no client library corrects what a test sends.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Fails after a timeout instead of hanging. A passing test takes far less.
#[expect(clippy::disallowed_methods, reason = "a test that hangs has to end in real time")]
pub async fn within_timeout<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), work).await.expect("timed out")
}

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub struct RawResponse {
    /// Status code.
    pub status: u16,
    /// Status line and headers.
    pub head: String,
    /// Body, as long as its content-length.
    pub body: Vec<u8>,
}

/// A connection.
#[derive(Debug)]
pub struct RawConnection(pub TcpStream);

impl RawConnection {
    /// Connects to a server.
    pub async fn connect(addr: SocketAddr) -> Self {
        Self(TcpStream::connect(addr).await.unwrap())
    }

    /// Connects with a small receive buffer.
    pub async fn connect_narrow(addr: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 * 1_024).unwrap();
        Self(socket.connect(addr).await.unwrap())
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends a GET and reads the response; the connection stays open.
    pub async fn get(&mut self, path: &str) -> RawResponse {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
        self.response().await.unwrap()
    }

    /// Reads the head of a response.
    pub async fn head(&mut self) -> io::Result<(u16, String)> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(within_timeout(self.0.read_u8()).await?);
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap().parse().unwrap();
        Ok((status, head))
    }

    /// Reads a whole response, by its content-length.
    pub async fn response(&mut self) -> io::Result<RawResponse> {
        let (status, head) = self.head().await?;
        let mut body = vec![0; content_length(&head).unwrap_or(0)];
        within_timeout(self.0.read_exact(&mut body)).await?;
        Ok(RawResponse { status, head, body })
    }

    /// Reads until the other side closes or resets.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset ends it, too.
        let _ = within_timeout(self.0.read_to_end(&mut bytes)).await;
        bytes
    }
}

/// Content-length in the head of a response.
#[must_use]
pub fn content_length(head: &str) -> Option<usize> {
    head.lines().find_map(|line| line.strip_prefix("content-length: ")).map(|len| len.parse().unwrap())
}

/// Sends one request on a new connection and reads until its end.
pub async fn exchange(addr: SocketAddr, request: impl AsRef<[u8]>) -> Vec<u8> {
    let mut raw = RawConnection::connect(addr).await;
    // The server may refuse the request before it has read everything.
    let _ = raw.0.write_all(request.as_ref()).await;
    raw.rest().await
}

/// Status of a response; `None` if it is no HTTP.
#[must_use]
pub fn status_of(response: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(response.get(..12)?).into_owned();
    text.strip_prefix("HTTP/1.1 ")?.parse().ok()
}
