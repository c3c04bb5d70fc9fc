//! Raw HTTP, so that no client library corrects what a test sends.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Fails after a timeout instead of hanging. A passing test takes far less.
pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), work).await.expect("timed out")
}

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// A connection.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        Self(TcpStream::connect(addr).await.unwrap())
    }

    /// A connection with a small receive buffer.
    pub(crate) async fn connect_narrow(addr: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 * 1_024).unwrap();
        Self(socket.connect(addr).await.unwrap())
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends a GET and reads the response; the connection stays open.
    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
        self.answer().await.unwrap()
    }

    /// Reads the head of a response.
    pub(crate) async fn head(&mut self) -> io::Result<(u16, String)> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(soon(self.0.read_u8()).await?);
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap().parse().unwrap();
        Ok((status, head))
    }

    /// Reads a whole response, by its content-length.
    pub(crate) async fn answer(&mut self) -> io::Result<Answer> {
        let (status, head) = self.head().await?;
        let mut body = vec![0; content_length(&head).unwrap_or(0)];
        soon(self.0.read_exact(&mut body)).await?;
        Ok(Answer { status, head, body })
    }

    /// Reads until the other side closes or resets.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset ends it, too.
        let _ = soon(self.0.read_to_end(&mut bytes)).await;
        bytes
    }
}

pub(crate) fn content_length(head: &str) -> Option<usize> {
    head.lines().find_map(|line| line.strip_prefix("content-length: ")).map(|len| len.parse().unwrap())
}

/// Sends one request on a new connection and reads until its end.
pub(crate) async fn exchange(addr: SocketAddr, request: impl AsRef<[u8]>) -> Vec<u8> {
    let mut raw = Raw::connect(addr).await;
    // The server may refuse the request before it has read everything.
    let _ = raw.0.write_all(request.as_ref()).await;
    raw.rest().await
}

/// Status of a response; `None` if it is no HTTP.
pub(crate) fn status_of(answer: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(answer.get(..12)?).into_owned();
    text.strip_prefix("HTTP/1.1 ")?.parse().ok()
}
