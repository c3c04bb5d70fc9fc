//! Misbehaving peers, each beside four good ones: the file is correct, the misbehaving peer is named, and causes no delay.
//!
//! The delay is measured by counts, not by clocks: leases last a minute here, and no lease expires; the origin is used only
//! after half a minute, and has no data.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_core::piece::manager::{ManagerStats, PeerStats};
use leasehold_core::piece::{PieceCut, PieceMap};
use leasehold_core::{ArtifactId, Kind, Name, keys};
use leasehold_pieces::serve::PieceSource;
use leasehold_pieces::{
    Announcement, ArtifactStore, FetchEvent, FetchOptions, Fetched, Peers, PublishOptions,
};
use leasehold_store::store::{Answer, Cause, Failure, Ranged};
use leasehold_store::{Purpose, Store};

use crate::misbehaving_peer::{Gate, Gated, MisbehavingPeer, Misbehaviour};
use crate::support::{Serving, TestCluster, contents};

const SIZE: u64 = 16 * 1_024 * 1_024 + 77;
const PIECE_BYTES: u32 = 256 * 1_024;
const GOOD: [&str; 4] = ["good-1", "good-2", "good-3", "good-4"];
const BAD: &str = "bad";

/// An artifact, and four good peers that have it and wait for the gate.
pub(crate) struct Scene {
    pub(crate) cluster: TestCluster,
    pub(crate) artifact: ArtifactId,
    pub(crate) bytes: Vec<u8>,
    pub(crate) gate: Arc<Gate>,
    good: Vec<Serving>,
}

impl Scene {
    pub(crate) async fn new(good: &[&str]) -> Self {
        Self::of_size(SIZE, good).await
    }

    pub(crate) async fn of_size(size: u64, good: &[&str]) -> Self {
        let cluster = TestCluster::new();
        let (path, bytes) = cluster.file(size);
        let options = PublishOptions { piece_bytes: Some(PIECE_BYTES), ..PublishOptions::default() };
        let published = cluster.node("publisher").publish(&path, &options).await.unwrap();
        let artifact = published.manifest.artifact;
        let mut scene = Self { cluster, artifact, bytes, gate: Arc::new(Gate::default()), good: Vec::new() };
        for name in good {
            let node = scene.cluster.node(name);
            node.fetch(&scene.artifact, &|_| ()).await.unwrap();
            let source = Gated {
                source: scene.cluster.cache(name),
                gate: scene.gate.clone(),
                given: AtomicU64::new(0),
            };
            scene.good.push(scene.cluster.serve_source(name, Arc::new(source)).await);
        }
        scene
    }

    /// Adds a peer that misbehaves, under this name.
    pub(crate) async fn add_bad_peer(&self, name: &str, kind: Misbehaviour) -> MisbehavingPeer {
        let manifest = self.cluster.node("publisher").manifest(&self.artifact).await.unwrap();
        let bad_peer =
            MisbehavingPeer::start(kind, manifest.cut, self.bytes.clone(), self.gate.clone()).await;
        let name = Name::checked("peer id", name).unwrap();
        Announcement::claim(&self.cluster.client(), &name, bad_peer.addr).await.unwrap();
        bad_peer
    }

    /// Fetches with the options of these tests, and returns the peers that were blamed.
    pub(crate) async fn fetch(&self, reader: &str) -> (leasehold_core::Result<Fetched>, Vec<String>) {
        self.fetch_with(self.cluster.node_with_peers(reader).with_fetch_options(unhurried())).await
    }

    pub(crate) async fn fetch_with(
        &self,
        node: ArtifactStore,
    ) -> (leasehold_core::Result<Fetched>, Vec<String>) {
        let blamed = Mutex::new(Vec::new());
        let on_event = |event| match event {
            FetchEvent::PeerFailed { peer, reason } => {
                blamed.lock().unwrap().push(format!("{peer}: {reason}"));
            }
            FetchEvent::Progress { pieces, pieces_total, bytes, bytes_total } => {
                assert!(pieces <= pieces_total && bytes <= bytes_total);
            }
        };
        let fetched = node.fetch(&self.artifact, &on_event).await.map(|(cached, fetched)| {
            assert!(contents(cached.path()) == self.bytes, "the file is wrong");
            fetched
        });
        (fetched, blamed.into_inner().unwrap())
    }

    async fn stop(self) {
        for good in self.good {
            good.stop().await;
        }
    }
}

/// Options with timeouts that no test reaches.
fn unhurried() -> FetchOptions {
    let mut options = FetchOptions { idle_timeout: Duration::from_secs(30), ..FetchOptions::default() };
    options.leases.lease_min = Duration::from_mins(1);
    options
}

fn of<'a>(stats: &'a ManagerStats, name: &str) -> Option<&'a PeerStats> {
    stats.peers.iter().find(|peer| peer.peer.as_str() == name)
}

/// Fetches beside a peer that misbehaves, and makes the assertions that all cases share.
async fn fetch_beside(kind: Misbehaviour) -> (Fetched, Vec<String>) {
    let scene = Scene::new(&GOOD).await;
    scene.gate.open();
    let begun = Instant::now();
    let (alone, blamed) = scene.fetch("reader-alone").await;
    let alone_took = begun.elapsed();
    assert_eq!((alone.unwrap().peer_bytes, blamed), (SIZE, Vec::<String>::new()));
    scene.stop().await;

    let scene = Scene::new(&GOOD).await;
    let bad_peer = scene.add_bad_peer(BAD, kind).await;
    let begun = Instant::now();
    let (fetched, blamed) = scene.fetch("reader").await;
    print(&format!("{kind:?}: {:?} with four good ones alone, {:?} beside it", alone_took, begun.elapsed()));
    let fetched = fetched.unwrap();
    assert_eq!((fetched.origin_bytes, fetched.peer_bytes), (0, SIZE));
    assert!(blamed.iter().all(|who| who.starts_with("bad: ")), "{blamed:?}");
    let stats = fetched.leases.as_ref().unwrap();
    for name in GOOD {
        let good = of(stats, name).unwrap();
        assert_eq!(
            good.counters.corrupt + good.counters.network_errors + good.counters.timeouts,
            0,
            "{good:?}"
        );
        assert_eq!(good.counters.invalid_data + good.counters.expiries, 0, "{good:?}");
    }
    assert_eq!(stats.peers.iter().map(|peer| peer.counters.expiries).sum::<u32>(), 0, "{stats:?}");
    drop(bad_peer);
    scene.stop().await;
    (fetched, blamed)
}

/// Prints to standard error, shown with `--nocapture`.
#[expect(clippy::print_stderr, reason = "figures for information, beside what is asserted")]
fn print(words: &str) {
    eprintln!("{words}");
}

fn bad(fetched: &Fetched) -> &PeerStats {
    of(fetched.leases.as_ref().unwrap(), BAD).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_flips_a_bit_in_every_piece_is_quarantined() {
    let (fetched, blamed) = fetch_beside(Misbehaviour::FlipsABit).await;
    let bad = bad(&fetched);
    assert!((1..=4).contains(&bad.counters.corrupt), "{bad:?}");
    assert!(bad.counters.pieces == 0 && bad.is_on_parole);
    assert!(blamed.iter().all(|why| why.ends_with("does not match its hash")), "{blamed:?}");
    // Pieces that arrived after its quarantine are not counted.
    assert!((bad.counters.corrupt as usize..=4).contains(&blamed.len()), "{blamed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_stalls_loses_its_pieces_to_the_others_at_the_end() {
    let (fetched, _) = fetch_beside(Misbehaviour::Stalls).await;
    assert_eq!(bad(&fetched).counters.pieces, 0);
    let stats = fetched.leases.as_ref().unwrap();
    assert!(stats.duplicates + stats.overtaken >= 1, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_sends_too_few_bytes_is_blamed_and_not_asked_again() {
    let (fetched, blamed) = fetch_beside(Misbehaviour::SendsTooFew).await;
    assert!((1..=4).contains(&bad(&fetched).counters.invalid_data), "{fetched:?}");
    assert!(blamed.iter().all(|why| why.contains("bytes instead of")), "{blamed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_sends_too_many_bytes_is_blamed_and_not_asked_again() {
    let (fetched, blamed) = fetch_beside(Misbehaviour::SendsTooMany).await;
    assert!((1..=4).contains(&bad(&fetched).counters.invalid_data), "{fetched:?}");
    assert!(blamed.iter().all(|why| why.contains("bytes instead of")), "{blamed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_claims_missing_pieces_is_blamed_and_not_asked_again() {
    let (fetched, blamed) = fetch_beside(Misbehaviour::ClaimsMissingPieces).await;
    assert!((1..=4).contains(&bad(&fetched).counters.invalid_data), "{fetched:?}");
    assert!(blamed.iter().all(|why| why.contains("requested pieces not found")), "{blamed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_whose_map_has_the_wrong_length_is_excluded() {
    let (fetched, blamed) = fetch_beside(Misbehaviour::SendsAMapOfWrongLength).await;
    assert!(
        blamed.len() >= 2 && blamed.iter().all(|why| why.contains("map does not match the manifest")),
        "{blamed:?}"
    );
    assert!(of(fetched.leases.as_ref().unwrap(), BAD).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_disconnects_in_the_middle_is_blamed_and_not_asked_again() {
    let (fetched, blamed) = fetch_beside(Misbehaviour::Disconnects).await;
    let counters = bad(&fetched).counters;
    assert!((1..=4).contains(&counters.network_errors) && counters.pieces == 0, "{counters:?}");
    assert!(!blamed.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_is_much_slower_loses_its_pieces_and_is_not_blamed() {
    let (fetched, blamed) = fetch_beside(Misbehaviour::IsSlow(Duration::from_millis(200))).await;
    assert_eq!(blamed, Vec::<String>::new());
    let stats = fetched.leases.as_ref().unwrap();
    assert!(bad(&fetched).counters.pieces <= 4, "{stats:?}");
    assert!(stats.duplicates + stats.overtaken >= 1, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_peers_are_bad_the_store_sends_everything() {
    let scene = Scene::new(&[]).await;
    let mut bad_peers = Vec::new();
    for (name, kind) in [
        ("a", Misbehaviour::FlipsABit),
        ("b", Misbehaviour::ClaimsMissingPieces),
        ("c", Misbehaviour::Disconnects),
        ("d", Misbehaviour::SendsTooFew),
    ] {
        bad_peers.push(scene.add_bad_peer(name, kind).await);
    }
    // Not because of the idle timeout: a peer that fails is not waited for, not even once for every few runs.
    let options = FetchOptions { idle_timeout: Duration::from_hours(1), ..FetchOptions::default() };
    let (fetched, blamed) =
        scene.fetch_with(scene.cluster.node_with_peers("reader").with_fetch_options(options)).await;
    let fetched = fetched.unwrap();
    assert_eq!((fetched.origin_bytes, fetched.peer_bytes), (SIZE, 0));
    assert!(blamed.iter().all(|who| !who.starts_with("(origin)")), "{blamed:?}");
}

async fn remove_data(scene: &Scene) {
    scene.cluster.client().delete(Purpose::Fetch, &keys::artifact_data(&scene.artifact)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_that_the_store_has_lost_are_fetched_from_peers() {
    let scene = Scene::new(&["good-1"]).await;
    scene.gate.open();
    remove_data(&scene).await;
    // Also for a node with assigned blocks, which reads from the store before it has the maps of the peers.
    let client = scene.cluster.client();
    let me = Name::checked("peer id", "me").unwrap();
    let peers = Peers::new(client.clone(), None, Some(&me));
    let node = ArtifactStore::new(client, scene.cluster.cache("reader")).with_peers(peers);
    let (fetched, _) = scene.fetch_with(node).await;
    assert_eq!(fetched.unwrap().peer_bytes, SIZE);
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_that_no_source_has_fail_the_fetch_at_once() {
    let scene = Scene::new(&[]).await;
    remove_data(&scene).await;
    let alone = scene.fetch_with(scene.cluster.node("alone")).await.0.unwrap_err();
    assert!(alone.kind() == Kind::Corrupt && alone.to_string().contains("is missing"), "{alone}");
    // There is a peer, but it has none of the pieces.
    let other = scene.cluster.serve("other").await;
    let options = FetchOptions { idle_timeout: Duration::from_millis(200), ..FetchOptions::default() };
    let reader = scene.cluster.node_with_peers("reader").with_fetch_options(options);
    let error = scene.fetch_with(reader).await.0.unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains("is missing"), "{error}");
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_fails_when_the_only_peers_with_the_pieces_never_send_them() {
    let refused = |kind| async move {
        let scene = Scene::new(&[]).await;
        remove_data(&scene).await;
        let _bad_peer = scene.add_bad_peer(BAD, kind).await;
        let options = FetchOptions { idle_timeout: Duration::from_millis(200), ..FetchOptions::default() };
        let reader = scene.cluster.node_with_peers("reader").with_fetch_options(options);
        let (fetched, blamed) = scene.fetch_with(reader).await;
        assert!(fetched.unwrap_err().to_string().contains("is missing"));
        // At most eight rounds of four leases, and the store.
        assert!(blamed.len() <= 33, "{}", blamed.len());
    };
    tokio::join!(
        refused(Misbehaviour::ClaimsMissingPieces),
        refused(Misbehaviour::Disconnects),
        refused(Misbehaviour::SendsTooFew),
        refused(Misbehaviour::FlipsABit),
    );
}

/// A store whose ranged reads fail from some moment on.
#[derive(Debug)]
pub(crate) struct Failing {
    inner: Arc<dyn Store>,
    reads: AtomicU64,
    good: u64,
}

impl leasehold_store::DelegatingStore for Failing {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: std::ops::Range<u64>,
        unchanged: Option<&'a leasehold_store::Version>,
    ) -> Answer<'a, Ranged> {
        if self.reads.fetch_add(1, SeqCst) < self.good {
            return self.inner.get_range(key, range, unchanged);
        }
        Box::pin(async { Err(Failure::transient(Cause::Unreached, "the store is down")) })
    }
}

impl Scene {
    fn failing_node(&self, name: &str, good: u64) -> ArtifactStore {
        let store = Arc::new(Failing { inner: self.cluster.store.clone(), reads: AtomicU64::new(0), good });
        let client = leasehold_store::Client::new(store, Arc::new(leasehold_store::SystemHost))
            .with_timeout(Duration::from_millis(100));
        let peers = Peers::new(client.clone(), None, None);
        let options = FetchOptions { idle_timeout: Duration::from_millis(200), ..FetchOptions::default() };
        ArtifactStore::new(client, self.cluster.cache(name)).with_peers(peers).with_fetch_options(options)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_goes_down_in_the_middle_is_an_error_that_says_so() {
    let scene = Scene::new(&[]).await;
    let (fetched, blamed) = scene.fetch_with(scene.failing_node("reader", 2)).await;
    assert_eq!(fetched.unwrap_err().kind(), Kind::Unavailable);
    assert!(blamed.iter().all(|who| who.starts_with("(origin)")), "{blamed:?}");
    // Pieces that it sent before are kept.
    let (fetched, _) = scene.fetch("reader").await;
    assert!(fetched.unwrap().resumed_bytes >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_continues_with_peers_when_the_store_goes_down() {
    let scene = Scene::new(&["good-1"]).await;
    // The peer sends nothing at first, so the fetch reads from the store, which sends a little and fails.
    let gate = scene.gate.clone();
    let opener = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        gate.open();
    });
    let (fetched, _) = scene.fetch_with(scene.failing_node("reader", 1)).await;
    let fetched = fetched.unwrap();
    assert_eq!(fetched.origin_bytes + fetched.peer_bytes, SIZE);
    assert!(fetched.peer_bytes > 0);
    opener.await.unwrap();
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_peer_that_makes_progress_keeps_its_lease() {
    let scene = Scene::of_size(200_000, &[]).await;
    remove_data(&scene).await;
    // Four seconds for one piece, in twenty parts, under a lease of two and a half.
    let _bad_peer = scene.add_bad_peer("slow", Misbehaviour::IsSlow(Duration::from_millis(200))).await;
    let mut options = FetchOptions { idle_timeout: Duration::from_millis(200), ..FetchOptions::default() };
    options.leases.lease_min = Duration::from_millis(2_500);
    options.leases.lease_first = Duration::ZERO;
    options.leases.lease_per_mib = Duration::ZERO;
    let (fetched, blamed) =
        scene.fetch_with(scene.cluster.node_with_peers("reader").with_fetch_options(options)).await;
    assert_eq!(fetched.unwrap().peer_bytes, 200_000, "{blamed:?}");
    assert!(blamed.iter().all(|who| who.starts_with("(origin)")), "{blamed:?}");
}

/// A store that blocks reads of artifact data.
#[derive(Debug)]
struct Held {
    inner: Arc<dyn Store>,
    asked: Arc<tokio::sync::watch::Sender<bool>>,
    opened: Arc<tokio::sync::watch::Sender<bool>>,
}

impl leasehold_store::DelegatingStore for Held {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: std::ops::Range<u64>,
        unchanged: Option<&'a leasehold_store::Version>,
    ) -> Answer<'a, Ranged> {
        self.asked.send_replace(true);
        let mut opened = self.opened.subscribe();
        Box::pin(async move {
            opened.wait_for(|is_open| *is_open).await.unwrap();
            self.inner.get_range(key, range, unchanged).await
        })
    }
}

/// Has the first piece, and the second after the first read from the store.
struct Growing {
    cache: leasehold_pieces::Cache,
    asked: Arc<tokio::sync::watch::Sender<bool>>,
}

impl PieceSource for Growing {
    fn have(&self, artifact: &ArtifactId) -> Option<(PieceCut, PieceMap)> {
        let (cut, _) = self.cache.have(artifact)?;
        let mut map = PieceMap::none(cut.pieces());
        map.insert(0);
        if *self.asked.borrow() {
            map.insert(1);
        }
        Some((cut, map))
    }

    fn read(
        &self,
        artifact: &ArtifactId,
        pieces: std::ops::Range<u32>,
    ) -> leasehold_core::Result<Option<bytes::Bytes>> {
        self.cache.read(artifact, pieces)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_continues_when_a_peer_sends_one_of_its_pieces() {
    let scene = Scene::of_size(4 * u64::from(PIECE_BYTES), &[]).await;
    scene.cluster.node("peer").fetch(&scene.artifact, &|_| ()).await.unwrap();
    let (asked, opened) =
        (Arc::new(tokio::sync::watch::Sender::new(false)), Arc::new(tokio::sync::watch::Sender::new(false)));
    let source = Growing { cache: scene.cluster.cache("peer"), asked: asked.clone() };
    let serving = scene.cluster.serve_source("peer", Arc::new(source)).await;
    let store = Arc::new(Held { inner: scene.cluster.store.clone(), asked, opened: opened.clone() });
    let client = leasehold_store::Client::new(store, Arc::new(leasehold_store::SystemHost));
    let options = FetchOptions { idle_timeout: Duration::from_millis(200), ..unhurried() };
    let node = ArtifactStore::new(client.clone(), scene.cluster.cache("reader"))
        .with_peers(Peers::new(client, None, None))
        .with_fetch_options(options);
    let on_event = |event| {
        if matches!(event, FetchEvent::Progress { pieces: 2, .. }) {
            opened.send_replace(true);
        }
    };
    let (cached, fetched) = node.fetch(&scene.artifact, &on_event).await.unwrap();
    assert!(contents(cached.path()) == scene.bytes);
    assert_eq!(fetched.origin_requests, 1, "{fetched:?}");
    serving.stop().await;
}
