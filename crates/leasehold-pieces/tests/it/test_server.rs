//! A piece source that counts its calls and can block its readers, and a server on it.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use bytes::Bytes;
use leasehold_core::piece::{PieceCut, PieceMap};
use leasehold_core::{ArtifactId, Now, Result, StoreTime};
use leasehold_http::sign::{Secret, SignClock};
use leasehold_http::testing::within_timeout;
use leasehold_pieces::serve::{PieceServer, PieceSource, ServeOptions, ServerCounters};
use leasehold_store::{Host, SystemHost};
use leasehold_worker::Shutdown;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Store's time in these tests.
pub(crate) const NOW: StoreTime = StoreTime::from_millis(1_800_000_000_000);

pub(crate) fn present() -> SignClock {
    Arc::new(|| Some(Now::exactly(NOW)))
}

pub(crate) fn secret() -> Secret {
    Secret::new(b"a secret of peers").unwrap()
}

pub(crate) fn artifact() -> ArtifactId {
    ArtifactId::blake3([0xab; 32])
}

/// One artifact without the pieces that were removed.
pub(crate) struct TestSource {
    pub(crate) cut: PieceCut,
    pub(crate) bytes: Bytes,
    map: PieceMap,
    /// Number of calls.
    pub(crate) asked: AtomicU64,
    /// Number of reads.
    pub(crate) read: AtomicU64,
    gate: Gate,
}

/// Blocks readers while it is shut.
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    inside: watch::Sender<u64>,
    inside_max: AtomicU64,
}

impl TestSource {
    pub(crate) fn new(size: u64, piece_bytes: u32) -> Self {
        let cut = PieceCut::new(size, piece_bytes).unwrap();
        let bytes: Vec<u8> = (0..size).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect();
        let gate = Gate {
            is_shut: Mutex::new(false),
            opened: Condvar::new(),
            inside: watch::Sender::new(0),
            inside_max: AtomicU64::new(0),
        };
        let map = PieceMap::all(cut.pieces());
        Self { cut, bytes: bytes.into(), map, asked: AtomicU64::new(0), read: AtomicU64::new(0), gate }
    }

    pub(crate) fn without(mut self, piece: u32) -> Self {
        self.map.remove(piece);
        self
    }

    pub(crate) fn shut(self) -> Self {
        *self.gate.is_shut.lock().unwrap() = true;
        self
    }

    pub(crate) fn open(&self) {
        *self.gate.is_shut.lock().unwrap() = false;
        self.gate.opened.notify_all();
    }

    /// Waits until this many readers are blocked.
    pub(crate) async fn holds(&self, readers: u64) {
        within_timeout(self.gate.inside.subscribe().wait_for(|inside| *inside >= readers)).await.unwrap();
    }

    pub(crate) fn readers_max(&self) -> u64 {
        self.gate.inside_max.load(SeqCst)
    }

    pub(crate) fn run(&self, run: Range<u32>) -> Bytes {
        let span = self.cut.bytes_of_run(&run);
        self.bytes.slice(usize::try_from(span.start).unwrap()..usize::try_from(span.end).unwrap())
    }
}

impl PieceSource for TestSource {
    fn have(&self, asked: &ArtifactId) -> Option<(PieceCut, PieceMap)> {
        self.asked.fetch_add(1, SeqCst);
        (*asked == artifact()).then(|| (self.cut, self.map.clone()))
    }

    fn read(&self, _: &ArtifactId, pieces: Range<u32>) -> Result<Option<Bytes>> {
        self.asked.fetch_add(1, SeqCst);
        self.read.fetch_add(1, SeqCst);
        self.gate.inside.send_modify(|inside| {
            *inside += 1;
            self.gate.inside_max.fetch_max(*inside, SeqCst);
        });
        let is_shut = self.gate.is_shut.lock().unwrap();
        drop(self.gate.opened.wait_while(is_shut, |is_shut| *is_shut).unwrap());
        self.gate.inside.send_modify(|inside| *inside -= 1);
        Ok(Some(self.run(pieces)))
    }
}

/// A running server, with the source it reads from.
pub(crate) struct TestServer {
    pub(crate) addr: SocketAddr,
    pub(crate) source: Arc<TestSource>,
    pub(crate) counters: ServerCounters,
    pub(crate) shutdown: Shutdown,
    pub(crate) running: JoinHandle<Result<()>>,
    _open_on_drop: OpenOnDrop,
}

impl TestServer {
    pub(crate) async fn new(source: TestSource, options: ServeOptions) -> Self {
        Self::on(source, options, Arc::new(SystemHost)).await
    }

    pub(crate) async fn on(source: TestSource, options: ServeOptions, host: Arc<dyn Host>) -> Self {
        let (source, shutdown) = (Arc::new(source), Shutdown::default());
        let server = PieceServer::bind(source.clone(), options, host, present()).await.unwrap();
        let (addr, counters) = (server.addr(), server.counters());
        let running = tokio::spawn(server.run(shutdown.clone()));
        Self { addr, _open_on_drop: OpenOnDrop(source.clone()), source, counters, shutdown, running }
    }

    pub(crate) fn asked(&self) -> u64 {
        self.source.asked.load(SeqCst)
    }

    /// Shuts it down, and checks that it ends without error.
    pub(crate) async fn stop(self) {
        self.shutdown.drain();
        within_timeout(self.running).await.unwrap().unwrap();
    }
}

/// Unblocks readers at the end of a test, also of a failed one: they would keep the runtime from ending.
struct OpenOnDrop(Arc<TestSource>);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.open();
    }
}
