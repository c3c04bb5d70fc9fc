//! A misbehaving peer with hand-written HTTP, and good peers that wait until it has received requests.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use leasehold_core::piece::{PieceCut, PieceMap};
use leasehold_core::{ArtifactId, Result};
use leasehold_pieces::serve::PieceSource;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Kind of misbehaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misbehaviour {
    FlipsABit,
    Stalls,
    SendsTooFew,
    SendsTooMany,
    ClaimsMissingPieces,
    SendsAMapOfWrongLength,
    Disconnects,
    /// Sends a response in twenty parts, with a pause before each.
    IsSlow(Duration),
}

/// A gate that opens once and stays open.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        drop(self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
    }
}

/// A good source that blocks reads until the gate is open.
pub(crate) struct Gated<S> {
    pub(crate) source: S,
    pub(crate) gate: Arc<Gate>,
    /// Bytes that were read.
    pub(crate) given: AtomicU64,
}

impl<S: PieceSource> PieceSource for Gated<S> {
    fn have(&self, artifact: &ArtifactId) -> Option<(PieceCut, PieceMap)> {
        self.source.have(artifact)
    }

    fn read(&self, artifact: &ArtifactId, pieces: Range<u32>) -> Result<Option<Bytes>> {
        self.gate.pass();
        let read = self.source.read(artifact, pieces)?;
        self.given.fetch_add(read.as_ref().map_or(0, Bytes::len) as u64, SeqCst);
        Ok(read)
    }
}

/// A server that misbehaves; it ends when it is dropped.
pub(crate) struct MisbehavingPeer {
    pub(crate) addr: SocketAddr,
    _serving: JoinSet<()>,
}

struct PeerScript {
    kind: Misbehaviour,
    cut: PieceCut,
    bytes: Vec<u8>,
    asked: Arc<Gate>,
    have_asked: AtomicU64,
}

impl MisbehavingPeer {
    /// Opens the gate when it has received as many requests as it ever will.
    pub(crate) async fn start(kind: Misbehaviour, cut: PieceCut, bytes: Vec<u8>, asked: Arc<Gate>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let script = Arc::new(PeerScript { kind, cut, bytes, asked, have_asked: AtomicU64::new(0) });
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let script = script.clone();
                connections.spawn(async move { while script.answer(&mut stream).await.is_ok() {} });
            }
        });
        Self { addr, _serving: serving }
    }
}

impl PeerScript {
    /// Answers one request; an error ends the connection.
    async fn answer(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap();
        let path = head.split(' ').nth(1).unwrap();
        match path.rsplit_once("/pieces/") {
            None => self.have(stream).await,
            Some((_, piece)) => {
                let piece: u32 = piece.split('-').next().unwrap().parse().unwrap();
                self.asked.open();
                let bytes = self.cut.bytes_of(piece);
                let at = |at: u64| usize::try_from(at).unwrap();
                self.piece(stream, self.bytes[at(bytes.start)..at(bytes.end)].to_vec()).await
            }
        }
    }

    async fn have(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut map = PieceMap::all(self.cut.pieces()).to_bytes();
        if self.kind == Misbehaviour::SendsAMapOfWrongLength {
            map.push(0);
            if self.have_asked.fetch_add(1, SeqCst) == 2 {
                self.asked.open();
            }
        }
        let (size, piece_bytes, len) = (self.cut.size(), self.cut.piece_bytes(), map.len());
        let head = format!(
            "HTTP/1.1 200 OK\r\nx-leasehold-size: {size}\r\nx-leasehold-piece-bytes: {piece_bytes}\r\n\
             content-length: {len}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&map).await
    }

    async fn piece(&self, stream: &mut TcpStream, mut bytes: Vec<u8>) -> std::io::Result<()> {
        let head = |len: usize| format!("HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n\r\n");
        let right = head(bytes.len());
        match self.kind {
            Misbehaviour::FlipsABit => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                stream.write_all(right.as_bytes()).await?;
                stream.write_all(&bytes).await
            }
            Misbehaviour::Stalls => std::future::pending().await,
            Misbehaviour::SendsTooFew => {
                bytes.pop();
                stream.write_all(head(bytes.len()).as_bytes()).await?;
                stream.write_all(&bytes).await
            }
            Misbehaviour::SendsTooMany => {
                bytes.push(0);
                stream.write_all(head(bytes.len()).as_bytes()).await?;
                stream.write_all(&bytes).await
            }
            Misbehaviour::ClaimsMissingPieces | Misbehaviour::SendsAMapOfWrongLength => {
                stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await
            }
            Misbehaviour::Disconnects => {
                stream.write_all(right.as_bytes()).await?;
                stream.write_all(&bytes[..bytes.len() / 2]).await?;
                stream.shutdown().await?;
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            Misbehaviour::IsSlow(pause) => {
                stream.write_all(right.as_bytes()).await?;
                for part in bytes.chunks(bytes.len().div_ceil(20)) {
                    tokio::time::sleep(pause).await;
                    stream.write_all(part).await?;
                }
                Ok(())
            }
        }
    }
}
