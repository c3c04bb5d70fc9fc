//! Test support: a client that sends arbitrary lines, and a fake broker.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

use crate::tls::TlsIdentity;

/// Connection of a client with a key pair of its own, after the TLS handshake.
#[derive(Debug)]
pub struct TlsProbe {
    /// Fingerprint of its public key.
    pub fingerprint: String,
    stream: TlsStream<TcpStream>,
}

impl TlsProbe {
    /// Connects to the broker that has this fingerprint.
    pub async fn connect(addr: SocketAddr, broker: &str) -> io::Result<Self> {
        let identity = TlsIdentity::new().unwrap();
        let tls = TlsConnector::from(Arc::new(identity.client(broker).unwrap()));
        let name = ServerName::IpAddress(IpAddr::from(Ipv4Addr::LOCALHOST).into());
        let stream = tls.connect(name, TcpStream::connect(addr).await?).await?;
        Ok(Self { fingerprint: identity.fingerprint().to_owned(), stream })
    }

    /// Sends text.
    pub async fn send(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes()).await?;
        self.stream.flush().await
    }

    /// Receives the next line that is not empty, without its end; none at the end of the connection.
    pub async fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        loop {
            match self.stream.read_u8().await {
                Ok(b'\n') if line.is_empty() => {}
                Ok(b'\n') => return Some(String::from_utf8(line).unwrap()),
                Ok(byte) => line.push(byte),
                Err(_) => return None,
            }
        }
    }
}

/// Process that listens at the address of a broker, and does not have its key.
#[derive(Debug)]
pub struct Impostor {
    identity: TlsIdentity,
}

impl Impostor {
    /// Makes a key pair.
    #[must_use]
    pub fn new() -> Self {
        Self { identity: TlsIdentity::new().unwrap() }
    }

    /// Fingerprint of its public key.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        self.identity.fingerprint()
    }

    /// Accepts a connection and returns the first line that a client sends.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<String> {
        let tls = TlsAcceptor::from(Arc::new(self.identity.server().unwrap()));
        let mut stream = tls.accept(stream).await?;
        let mut line = String::new();
        while !line.ends_with('\n') {
            line.push(char::from(stream.read_u8().await?));
        }
        Ok(line)
    }
}

impl Default for Impostor {
    fn default() -> Self {
        Self::new()
    }
}

/// Connects from an address of the loopback network, as another host does.
pub async fn connect_from(from: [u8; 4], addr: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(addr).await
}
