//! After `kill -9` no verified piece is fetched again, and no unverified piece is trusted.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use bytes::Bytes;
use leasehold_core::piece::{PieceCut, PieceMap};
use leasehold_core::{ArtifactId, Name, Result, keys};
use leasehold_pieces::serve::PieceSource;
use leasehold_pieces::{
    Announcement, ArtifactStore, Cache, Fetched, Peers, PieceServer, PublishOptions, ServeOptions,
};
use leasehold_store::{Client, OpenOptions, Purpose, SystemHost};
use leasehold_worker::Shutdown;
use tempfile::TempDir;

use crate::process::{Process, number_in};
use crate::support::contents;

const PIECE_BYTES: u64 = 64 * 1_024;
const PIECES: u64 = 65;
/// The last piece is short.
const SIZE: u64 = (PIECES - 1) * PIECE_BYTES + 1_000;
/// Lengths of a journal's header and of a note.
const HEAD_BYTES: u64 = 24;
const NOTE_BYTES: u64 = 8;
/// Most leases of one peer, and so most pieces in flight when a fetch is killed.
const IN_FLIGHT: u64 = 4;

/// Serves a limited number of pieces, and blocks until more are allowed. Counts the pieces it served.
struct LimitedSource {
    cache: Cache,
    left: Mutex<u64>,
    more: Condvar,
    given: AtomicU64,
}

impl LimitedSource {
    fn allow(&self, pieces: u64) {
        *self.left.lock().unwrap() = pieces;
        self.more.notify_all();
    }
}

impl PieceSource for LimitedSource {
    fn have(&self, artifact: &ArtifactId) -> Option<(PieceCut, PieceMap)> {
        self.cache.have(artifact)
    }

    fn read(&self, artifact: &ArtifactId, pieces: Range<u32>) -> Result<Option<Bytes>> {
        let mut left = self.more.wait_while(self.left.lock().unwrap(), |left| *left == 0).unwrap();
        *left -= 1;
        drop(left);
        let read = self.cache.read(artifact, pieces)?;
        self.given.fetch_add(read.as_ref().map_or(0, Bytes::len) as u64, SeqCst);
        Ok(read)
    }
}

/// A store in a folder that has lost the data of its artifact, and a peer that has it.
struct Scene {
    directory: TempDir,
    artifact: ArtifactId,
    bytes: Vec<u8>,
    source: Arc<LimitedSource>,
    shutdown: Shutdown,
    serving: tokio::task::JoinHandle<Result<()>>,
}

impl Scene {
    async fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let client = client(&directory.path().join("store"));
        let bytes: Vec<u8> = (0..SIZE).map(|at| u8::try_from((at * at / 7 + at) % 251).unwrap()).collect();
        let path = directory.path().join("file");
        fs::write(&path, &bytes).unwrap();
        let cache = Cache::open(directory.path().join("peer"), None).unwrap();
        let node = ArtifactStore::new(client.clone(), cache.clone());
        let options = PublishOptions {
            piece_bytes: Some(PIECE_BYTES.try_into().unwrap()),
            ..PublishOptions::default()
        };
        let artifact = node.publish(&path, &options).await.unwrap().manifest.artifact;
        node.fetch(&artifact, &|_| ()).await.unwrap();
        client.delete(Purpose::Fetch, &keys::artifact_data(&artifact)).await.unwrap();

        let source = Arc::new(LimitedSource {
            cache,
            left: Mutex::new(0),
            more: Condvar::new(),
            given: AtomicU64::new(0),
        });
        let clock = client.clone();
        let present = Arc::new(move || clock.now());
        let host = Arc::new(SystemHost);
        let server = PieceServer::bind(source.clone(), ServeOptions::default(), host, present).await.unwrap();
        let name = Name::checked("peer id", "peer").unwrap();
        Announcement::claim(&client, &name, server.addr()).await.unwrap();
        let shutdown = Shutdown::default();
        let serving = tokio::spawn(server.run(shutdown.clone()));
        Self { directory, artifact, bytes, source, shutdown, serving }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start(&self, cache: &str) -> Process {
        Process::start(&self.path("store"), &self.path(cache), self.artifact.as_str(), &["peers"])
    }

    /// A file in the directory of the artifact in a cache.
    fn in_cache(&self, cache: &str, file: &str) -> PathBuf {
        self.path(cache).join(self.artifact.as_str()).join(file)
    }

    /// Pieces in the journal, in order.
    fn notes(&self, cache: &str) -> Vec<u32> {
        let journal = fs::read(self.in_cache(cache, "journal")).unwrap();
        let notes = journal[usize::try_from(HEAD_BYTES).unwrap()..].chunks_exact(8);
        notes.map(|note| u32::from_le_bytes(note[..4].try_into().unwrap())).collect()
    }

    /// Starts a fetch in a process, and kills it when this many pieces are verified.
    fn killed_at(&self, cache: &str, pieces: u64) {
        self.source.allow(pieces + 2);
        let mut process = self.start(cache);
        process.progress((pieces - 1) * PIECE_BYTES + 1);
        process.kill();
    }

    /// Resumes the fetch in this process, and checks the result.
    async fn resume(&self, cache: &str) -> Fetched {
        self.source.allow(u64::MAX);
        let client = client(&self.path("store"));
        let node = ArtifactStore::new(client.clone(), Cache::open(self.path(cache), None).unwrap())
            .with_peers(Peers::new(client, None, None));
        let (cached, fetched) = node.fetch(&self.artifact, &|_| ()).await.unwrap();
        assert!(contents(cached.path()) == self.bytes);
        fetched
    }

    fn copy(&self, from: &str, to: &str) {
        fs::create_dir_all(self.path(to).join(self.artifact.as_str())).unwrap();
        for file in ["manifest.json", "part", "journal"] {
            fs::copy(self.in_cache(from, file), self.in_cache(to, file)).unwrap();
        }
    }

    async fn stop(self) {
        self.source.allow(u64::MAX);
        self.shutdown.drain();
        self.serving.await.unwrap().unwrap();
    }
}

fn client(store: &Path) -> Client {
    Client::open(store.to_str().unwrap(), &OpenOptions::default()).unwrap()
}

fn bytes_of(pieces: &[u32]) -> u64 {
    pieces.iter().map(|piece| if u64::from(*piece) == PIECES - 1 { 1_000 } else { PIECE_BYTES }).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_verified_before_a_kill_are_not_fetched_again() {
    let scene = Scene::new().await;
    for pieces in [1, 9, 24, 40, 60] {
        let cache = format!("killed-at-{pieces}");
        scene.source.given.store(0, SeqCst);
        scene.killed_at(&cache, pieces);
        let noted = bytes_of(&scene.notes(&cache));
        scene.source.allow(u64::MAX);
        let outcome = scene.start(&cache).outcome();
        assert!(outcome.starts_with("fetched "), "{outcome}");
        assert!(contents(&scene.in_cache(&cache, "data")) == scene.bytes);
        assert_eq!(number_in(&outcome, "resumed"), noted, "{outcome}");
        assert_eq!(number_in(&outcome, "peers"), SIZE - noted, "{outcome}");
        let given = scene.source.given.load(SeqCst);
        assert!(given <= SIZE + IN_FLIGHT * PIECE_BYTES, "{given} bytes were given for {SIZE}");
        assert!(!scene.in_cache(&cache, "journal").exists() && !scene.in_cache(&cache, "part").exists());
    }
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_noted_piece_that_is_not_right_on_the_disk_is_fetched_again() {
    let scene = Scene::new().await;
    scene.killed_at("killed", 20);
    let notes = scene.notes("killed");
    let mut part = fs::read(scene.in_cache("killed", "part")).unwrap();
    part[usize::try_from(u64::from(notes[3]) * PIECE_BYTES + 5).unwrap()] ^= 0x10;
    fs::write(scene.in_cache("killed", "part"), part).unwrap();
    let fetched = scene.resume("killed").await;
    assert_eq!(fetched.resumed_bytes, bytes_of(&notes) - bytes_of(&notes[3..4]));
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_was_torn_anywhere_in_its_last_note_loses_only_that() {
    let scene = Scene::new().await;
    scene.killed_at("killed", 12);
    let (notes, len) =
        (scene.notes("killed"), fs::metadata(scene.in_cache("killed", "journal")).unwrap().len());
    let whole = HEAD_BYTES + notes.len() as u64 * NOTE_BYTES;
    for cut in 1..=NOTE_BYTES {
        let cache = format!("torn-by-{cut}");
        scene.copy("killed", &cache);
        let journal = fs::File::options().write(true).open(scene.in_cache(&cache, "journal")).unwrap();
        journal.set_len(whole.min(len) - cut).unwrap();
        drop(journal);
        let fetched = scene.resume(&cache).await;
        assert_eq!(fetched.resumed_bytes, bytes_of(&notes[..notes.len() - 1]), "torn by {cut}");
    }
    // An empty journal, and one with a torn header: the fetch starts from the beginning.
    for cut in [HEAD_BYTES, HEAD_BYTES - 1, 0] {
        let cache = format!("headless-{cut}");
        scene.copy("killed", &cache);
        let journal = fs::File::options().write(true).open(scene.in_cache(&cache, "journal")).unwrap();
        journal.set_len(cut).unwrap();
        drop(journal);
        assert_eq!(scene.resume(&cache).await.resumed_bytes, 0, "{cut}");
    }
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_note_that_was_garbled_or_a_part_that_is_gone_is_not_trusted() {
    let scene = Scene::new().await;
    scene.killed_at("killed", 12);
    let notes = scene.notes("killed");
    scene.copy("killed", "garbled");
    let mut journal = fs::read(scene.in_cache("garbled", "journal")).unwrap();
    let last = usize::try_from(HEAD_BYTES).unwrap() + (notes.len() - 1) * 8;
    journal[last..last + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    fs::write(scene.in_cache("garbled", "journal"), journal).unwrap();
    assert_eq!(scene.resume("garbled").await.resumed_bytes, bytes_of(&notes[..notes.len() - 1]));

    scene.copy("killed", "partless");
    fs::remove_file(scene.in_cache("partless", "part")).unwrap();
    assert_eq!(scene.resume("partless").await.resumed_bytes, 0);
    scene.stop().await;
}
