//! Fetching an artifact: from the origin and from peers at the same time, every piece under a lease.
//!
//! One loop drives it all, and everything it waits for is a future that it owns: dropping a fetch ends it. The rules of who
//! fetches which piece are in [`leasehold_core::piece`]; here are the transfers, and the question of what to ask the origin
//! for:
//!
//! * With nobody else around, everything, in runs of neighbouring pieces.
//! * Otherwise each block of a few pieces has one node whose *duty* it is to get it from the origin, by rendezvous hashing
//!   over the nodes that fetch this artifact or have it; the others get it from that node. So a piece leaves the origin
//!   about once. Who joins at the same moment must not be overlooked: for the first while every node that serves at all
//!   counts.
//! * A fetch that has got nothing for a while (the *patience*) takes on the duties of others, one rank after the other, and
//!   what peers have but do not give.

use bytes::Bytes;
use futures::future::{AbortHandle, BoxFuture, Either, abortable, select};
use futures::stream::{FuturesUnordered, StreamExt};
use leasehold_core::limits::RANGE_BYTES_MAX;
use leasehold_core::piece::manager::{
    CancelReason, Cancelled, FailureKind, Outcome, PieceCompletion, PieceResult,
};
use leasehold_core::piece::{
    LeaseRequest, PeerId, PeerKind, PieceLease, PieceLeaseId, PieceLeaseManager, PieceMap, PieceOrder,
};
use leasehold_core::{Error, Kind, Matter, Result};
use leasehold_store::host::{Host, HostExt, Instant};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::assemble::{Assembly, Placed};
use crate::peer::PeerClient;
use crate::peers::{Peer, Peers};

mod duty;
mod origin;
mod source;
mod told;

use duty::{BLOCK_BYTES, Duties};
pub(crate) use origin::Origin;
use source::{Failed, Source};
pub use told::{FetchEvent, FetchOptions, Fetched};

/// The store under its name among the peers. No peer can be called so: names have no such sign.
const ORIGIN: &str = "(origin)";

/// So many failures of the origin in a row, with nothing got meanwhile, and it is not asked any more. Requests that fail
/// together count as one.
const ORIGIN_FAILURES_MAX: u32 = 3;

/// Without the origin, a peer is not hoped for any more after so many failures in a row: some ten seconds with the pauses.
const PEER_FAILURES_MAX: u32 = 8;

/// How long a source that has failed is left alone; each failure doubles it.
const FAILED_PAUSE_MIN: Duration = Duration::from_millis(100);
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(2);

/// A peer that does not even say what it has is left out after so many tries.
const SILENCE_MAX: u32 = 3;

/// How often a peer is asked what it has: often while it gets more, and seldom when it has nothing of this artifact.
const HAVE_EVERY_MIN: Duration = Duration::from_millis(200);
const HAVE_EVERY_MAX: Duration = Duration::from_secs(2);

/// How often to look how far transfers have come.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// How often to look for peers that have come.
const PEERS_EVERY: Duration = Duration::from_secs(10);

/// Without the origin, a fetch waits so long for the next byte from anyone.
const NOBODY_WAIT: Duration = Duration::from_secs(30);

/// Whom a fetch can ask.
pub(crate) struct Sources<'a> {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) origin: Option<Origin>,
    pub(crate) peers: Option<&'a Peers>,
}

/// Fetches what is missing.
pub(crate) async fn fetch(
    assembly: &Arc<Assembly>,
    sources: Sources<'_>,
    options: &FetchOptions,
    tell: &(dyn Fn(FetchEvent) + Send + Sync),
) -> Result<Fetched> {
    options.check()?;
    let mut fetch = Fetch::new(assembly, sources, options, tell)?;
    fetch.tell_progress();
    while !fetch.manager.is_done() {
        fetch.check_for_hope()?;
        fetch.look_for_peers();
        fetch.ask_all();
        fetch.wait().await?;
    }
    Ok(fetch.fetched())
}

/// What a fetch waits for.
enum Event {
    Landed(PieceLeaseId, Result<Bytes, Failed>),
    Placed(PieceLease, Result<Vec<(u32, Placed)>>),
    Have(PeerId, Result<Option<PieceMap>>),
    Peers(Result<Vec<Peer>>),
    /// A transfer was given up.
    Nothing,
}

/// A transfer that is under way, or whose bytes are being verified.
struct Flight {
    lease: PieceLease,
    bytes: u64,
    /// Those of its pieces that are still wanted from it.
    wanted: BTreeSet<u32>,
    so_far: Arc<AtomicU64>,
    /// How much of that was known at the last look.
    seen: u64,
    /// None once the bytes are here.
    transfer: Option<AbortHandle>,
}

/// What is known of a peer besides its leases.
struct Known {
    source: Source,
    /// What it has; nothing if it neither has nor fetches this artifact.
    have: Option<PieceMap>,
    /// Whether it has ever said what it has.
    has_answered: bool,
    silences: u32,
    every: Duration,
    rest: Rest,
}

/// How long a source is left alone after failures.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    until: Duration,
    /// Failures in a row; those that come together are one.
    failures: u32,
}

impl Rest {
    fn is_over(self, now: Duration) -> bool {
        now >= self.until
    }

    fn failed(&mut self, now: Duration) {
        if self.is_over(now) {
            let pause = FAILED_PAUSE_MIN.saturating_mul(1 << self.failures.min(16));
            self.until = now + pause.min(FAILED_PAUSE_MAX);
            self.failures += 1;
        }
    }
}

struct Fetch<'a> {
    assembly: &'a Arc<Assembly>,
    host: Arc<dyn Host>,
    peers: Option<&'a Peers>,
    options: &'a FetchOptions,
    tell: &'a (dyn Fn(FetchEvent) + Send + Sync),
    manager: PieceLeaseManager,
    duties: Duties,
    origin: Option<Arc<Origin>>,
    known: BTreeMap<PeerId, Known>,
    /// Those that were left out: not to be tried again, unless they announce themselves anew.
    left_out: BTreeMap<PeerId, Arc<PeerClient>>,
    /// All that serve anything, as the store says.
    announced: BTreeSet<PeerId>,
    events: FuturesUnordered<BoxFuture<'a, Event>>,
    flights: HashMap<PieceLeaseId, Flight>,
    started: Instant,
    /// When something was last got.
    got_at: Duration,
    /// When a byte of a piece was last heard of.
    heard_at: Duration,
    peers_at: Option<Duration>,
    is_listing: bool,
    is_told_of_peers: bool,
    /// When the next byte may be asked for.
    paced_until: Duration,
    origin_rest: Rest,
    /// The longest run to ask the origin for: shorter after one that did not come in time.
    run_bytes_max: u64,
    /// What the origin gave wrong once.
    wrong_of_origin: PieceMap,
    /// Why the origin is not asked any more.
    origin_error: Option<Error>,
    result: Fetched,
}

impl<'a> Fetch<'a> {
    fn new(
        assembly: &'a Arc<Assembly>,
        sources: Sources<'a>,
        options: &'a FetchOptions,
        tell: &'a (dyn Fn(FetchEvent) + Send + Sync),
    ) -> Result<Self> {
        let manifest = assembly.manifest();
        let cut = manifest.cut;
        let mut manager = PieceLeaseManager::new(cut, options.leases.clone(), sources.host.random())?;
        let verified = assembly.verified();
        for piece in verified.iter() {
            manager.note_verified(piece)?;
        }
        let resumed_bytes = told::bytes_of(&cut, &verified);
        if sources.origin.is_some() {
            manager.add_peer(ORIGIN.into(), PeerKind::Origin, PieceMap::all(cut.pieces()), Duration::ZERO)?;
        }
        Ok(Self {
            assembly,
            started: sources.host.instant(),
            host: sources.host,
            peers: sources.peers,
            options,
            tell,
            manager,
            duties: Duties::new(manifest.artifact.clone(), &cut),
            origin: sources.origin.map(Arc::new),
            known: BTreeMap::new(),
            left_out: BTreeMap::new(),
            announced: BTreeSet::new(),
            events: FuturesUnordered::new(),
            flights: HashMap::new(),
            got_at: Duration::ZERO,
            heard_at: Duration::ZERO,
            peers_at: None,
            is_listing: false,
            is_told_of_peers: false,
            paced_until: Duration::ZERO,
            origin_rest: Rest::default(),
            run_bytes_max: RANGE_BYTES_MAX,
            wrong_of_origin: PieceMap::none(cut.pieces()),
            origin_error: None,
            result: Fetched { resumed_bytes, ..Fetched::nothing() },
        })
    }

    fn now(&self) -> Duration {
        self.host.instant().since(self.started)
    }

    fn idle(&self) -> Duration {
        self.now().saturating_sub(self.got_at)
    }

    // ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────

    fn look_for_peers(&mut self) {
        let Some(peers) = self.peers else { return };
        let now = self.now();
        if !self.is_listing && self.peers_at.is_none_or(|at| now >= at + PEERS_EVERY) {
            self.peers_at = Some(now);
            self.is_listing = true;
            self.events.push(Box::pin(async move { Event::Peers(peers.live().await) }));
        }
    }

    /// Asks every source for as much as it may give.
    fn ask_all(&mut self) {
        self.note_progress();
        let now = self.now();
        // Also when nobody can be asked now: what is over must not be waited for.
        let expired = self.manager.expire(now);
        self.give_up(&expired);
        let asked = |(id, known): (&PeerId, &Known)| {
            let have = known.have.clone().filter(|_| known.rest.is_over(now))?;
            Some((id.clone(), known.source.clone(), have))
        };
        for (peer, source, have) in self.known.iter().filter_map(asked).collect::<Vec<_>>() {
            self.ask(peer, &source, have, 0);
        }
        let Some(origin) = self.origin.clone().filter(|_| self.may_ask_origin()) else { return };
        let allowed = self.allowed_of_origin();
        let run = if self.participants().is_empty() { self.run_bytes() } else { BLOCK_BYTES };
        self.ask(ORIGIN.into(), &Source::Origin(origin), allowed, run.min(self.run_bytes_max));
    }

    /// Before the first answer about peers nobody knows whose duty anything is.
    fn may_ask_origin(&self) -> bool {
        let now = self.now();
        let knows_peers = self.peers.is_none() || self.is_told_of_peers || now >= self.options.patience;
        knows_peers && self.origin_rest.is_over(now)
    }

    fn ask(&mut self, peer: PeerId, source: &Source, have: PieceMap, run_bytes_max: u64) {
        let now = self.now();
        if have.count() == 0 || now < self.paced_until {
            return;
        }
        let largest = run_bytes_max.max(u64::from(self.assembly.manifest().cut.piece_bytes()));
        let in_flight: u64 = self.flights.values().map(|flight| flight.bytes).sum();
        let room = self.options.memory_bytes_max.saturating_sub(in_flight) / largest;
        // With nothing under way one lease is granted whatever its size: or nothing would ever be.
        let max_leases = u32::try_from(room).unwrap_or(u32::MAX).max(u32::from(self.flights.is_empty()));
        if max_leases == 0 {
            return;
        }
        // With nobody to share with, from the beginning: no holes are left between runs, and the hash of the whole follows
        // without reading anything back.
        let is_alone = self.known.is_empty() && self.announced.is_empty();
        let order = if is_alone { PieceOrder::Sequential } else { PieceOrder::Rarest };
        let request = LeaseRequest { peer, have, max_leases, run_bytes_max, order };
        let response = self.manager.request_lease(&request, now);
        self.give_up(&response.cancelled);
        for lease in response.granted {
            self.start(lease, source);
        }
    }

    fn start(&mut self, lease: PieceLease, source: &Source) {
        let manifest = self.assembly.manifest();
        let range = manifest.cut.bytes_of_run(&lease.pieces);
        let bytes = range.end - range.start;
        if let Some(rate) = self.options.bytes_per_sec {
            let takes = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate);
            self.paced_until = self.paced_until.max(self.now()) + takes;
        }
        if matches!(source, Source::Origin(_)) {
            self.result.origin_requests += 1;
        }
        let so_far = Arc::new(AtomicU64::new(0));
        let read = source.read(&manifest.artifact, manifest.cut, &lease, so_far.clone());
        let (read, transfer) = abortable(read);
        let id = lease.id;
        let wanted = lease.pieces.clone().collect();
        let flight = Flight { lease, bytes, wanted, so_far, seen: 0, transfer: Some(transfer) };
        self.flights.insert(id, flight);
        self.events.push(Box::pin(async move {
            read.await.map_or(Event::Nothing, |landed| Event::Landed(id, landed))
        }));
    }

    /// What the origin may be asked for at this moment.
    fn allowed_of_origin(&mut self) -> PieceMap {
        let (idle, patience) = (self.idle(), self.options.patience);
        let nodes = self.participants();
        let me = self.peers.and_then(Peers::me).cloned();
        let mut allowed = self.duties.allowed(me.as_ref(), nodes, idle, patience);
        if idle < patience {
            // From those who fail nothing is to be hoped for, whatever they have.
            for (_, known) in self.known.iter().filter(|(id, _)| self.is_trusted(id)) {
                known.have.iter().for_each(|have| allowed.remove_all(have));
            }
        }
        allowed
    }

    /// The others among whom duties are divided.
    fn participants(&self) -> BTreeSet<PeerId> {
        let is_early = self.now() < self.options.patience;
        let fetches = |id: &PeerId| self.known.get(id).is_some_and(|known| known.have.is_some());
        self.announced.iter().filter(|id| self.is_trusted(id) && (is_early || fetches(id))).cloned().collect()
    }

    /// Whether it has neither lied nor failed when it was last asked.
    fn is_trusted(&self, id: &PeerId) -> bool {
        let has_failed = self.known.get(id).is_some_and(|known| known.rest.failures > 0);
        !has_failed && !self.left_out.contains_key(id) && !self.manager.is_quarantined(id)
    }

    /// Alone, runs are as long as they may be, but every lease of the origin has one from the beginning.
    fn run_bytes(&self) -> u64 {
        let cut = self.assembly.manifest().cut;
        let share = cut.size() / u64::from(self.options.leases.leases_per_origin) / 2;
        share.clamp(BLOCK_BYTES, RANGE_BYTES_MAX)
    }

    // ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────

    /// Waits for something to happen, or for the time at which something has to be done.
    async fn wait(&mut self) -> Result<()> {
        let late = self.host.sleep(self.next_look());
        let event = if self.events.is_empty() {
            late.await;
            None
        } else {
            match select(self.events.next(), late).await {
                Either::Left((event, _)) => event,
                Either::Right(_) => None,
            }
        };
        event.map_or(Ok(()), |event| self.happened(event))
    }

    /// How long nothing but an event can change anything.
    fn next_look(&self) -> Duration {
        let now = self.now();
        let patience = self.options.patience;
        let rests = self.known.values().map(|known| known.rest.until);
        let mut times: Vec<Duration> = rests.chain([self.paced_until, self.origin_rest.until]).collect();
        // Whoever only serves counts for this long.
        times.push(patience);
        if !patience.is_zero() {
            // The next rank of duties falls to us.
            let ranks = self.idle().as_millis() / patience.as_millis().max(1) + 1;
            times.push(self.got_at + patience * u32::try_from(ranks).unwrap_or(u32::MAX));
        }
        if !self.flights.is_empty() {
            // Bytes that have come postpone the expiry of their lease, but only before it.
            times.push(now + PROGRESS_EVERY);
        }
        if self.origin.is_none() {
            times.push(self.heard_at + NOBODY_WAIT);
        }
        times.extend(self.manager.next_expiry());
        times.extend(self.peers_at.filter(|_| !self.is_listing).map(|at| at + PEERS_EVERY));
        // What is past already was looked at before we came here.
        let next = times.into_iter().filter(|at| *at > now).min();
        next.map_or(PEERS_EVERY, |at| at.saturating_sub(now)).max(Duration::from_millis(1))
    }

    fn happened(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Landed(id, Ok(bytes)) => self.landed(id, bytes),
            Event::Landed(id, Err(failed)) => self.failed(id, failed),
            Event::Placed(lease, placed) => self.placed(&lease, placed?),
            Event::Have(peer, have) => self.told_have(&peer, have),
            Event::Peers(peers) => self.told_peers(peers),
            Event::Nothing => {}
        }
        Ok(())
    }

    /// The bytes are here: they are verified where that holds nobody up.
    fn landed(&mut self, id: PieceLeaseId, bytes: Bytes) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.transfer = None;
        let lease = flight.lease.clone();
        let now = self.now();
        for piece in lease.pieces.clone() {
            // One whose lease has ended meanwhile is verified all the same: it may be of use.
            let _ = self.manager.received(id, piece, now);
        }
        let assembly = self.assembly.clone();
        let pieces = lease.pieces.clone();
        let placing = self.host.blocking(move || place(&assembly, pieces, &bytes));
        self.events.push(Box::pin(async move { Event::Placed(lease, placing.await) }));
    }

    fn placed(&mut self, lease: &PieceLease, pieces: Vec<(u32, Placed)>) {
        self.flights.remove(&lease.id);
        for (piece, placed) in pieces {
            let result = match placed {
                Placed::Verified => PieceResult::Success,
                Placed::Wrong => PieceResult::Failure(FailureKind::VerificationFailed),
            };
            self.complete(lease, piece, result);
            if placed == Placed::Wrong {
                self.came_wrong(lease, piece);
            }
        }
        self.tell_progress();
    }

    /// A piece with another hash. The origin may get one wrong on the way, but not twice.
    fn came_wrong(&mut self, lease: &PieceLease, piece: u32) {
        let why = format!("piece {piece} is not what it should be");
        self.blame(&lease.peer, why);
        let now = self.now();
        if let Some(known) = self.known.get_mut(&lease.peer) {
            known.rest.failed(now);
        }
        if lease.peer.as_str() == ORIGIN && !self.wrong_of_origin.insert(piece) {
            let artifact = &self.assembly.manifest().artifact;
            let message = format!("the data of artifact {artifact} in the store is corrupt: piece {piece}");
            self.without_origin(Error::new(Kind::Corrupt, message));
        }
    }

    fn got(&mut self, lease: &PieceLease, piece: u32, outcome: Outcome) {
        let bytes = u64::from(self.assembly.manifest().cut.len_of(piece));
        self.got_at = self.now();
        self.heard_at = self.got_at;
        self.origin_rest = Rest::default();
        if let Some(known) = self.known.get_mut(&lease.peer) {
            known.rest = Rest::default();
        }
        let count = match outcome {
            Outcome::NotNeeded => &mut self.result.duplicate_bytes,
            Outcome::Accepted | Outcome::Late if lease.peer.as_str() == ORIGIN => {
                &mut self.result.origin_bytes
            }
            Outcome::Accepted | Outcome::Late => &mut self.result.peer_bytes,
        };
        *count += bytes;
    }

    fn failed(&mut self, id: PieceLeaseId, failed: Failed) {
        let Some(flight) = self.flights.remove(&id) else { return };
        let (lease, now) = (flight.lease, self.now());
        self.blame(&lease.peer, failed.error.to_string());
        for piece in lease.pieces.clone() {
            self.complete(&lease, piece, PieceResult::Failure(failed.kind));
        }
        if lease.peer.as_str() == ORIGIN {
            self.origin_failed(failed.error);
        } else if let Some(known) = self.known.get_mut(&lease.peer) {
            known.rest.failed(now);
        }
    }

    /// Asks the origin for less, later, or not any more.
    fn origin_failed(&mut self, error: Error) {
        let piece_bytes = u64::from(self.assembly.manifest().cut.piece_bytes());
        self.run_bytes_max = (self.run_bytes_max / 2).max(piece_bytes);
        self.origin_rest.failed(self.now());
        let is_final = error.kind() != Kind::Unavailable;
        if is_final || self.origin_rest.failures >= ORIGIN_FAILURES_MAX {
            self.without_origin(error);
        }
    }

    /// Goes on with the peers, if they can do it.
    fn without_origin(&mut self, error: Error) {
        self.origin = None;
        self.origin_error = Some(error);
        // They have as long as if the fetch began now.
        self.heard_at = self.now();
        let ended = self.manager.remove_peer(&ORIGIN.into(), self.now());
        self.give_up(&ended);
    }

    fn complete(&mut self, lease: &PieceLease, piece: u32, result: PieceResult) {
        let completion = PieceCompletion { lease: lease.id, piece, peer: lease.peer.clone(), result };
        match self.manager.complete_piece(&completion, self.now()) {
            Ok(completed) => {
                if result == PieceResult::Success {
                    self.got(lease, piece, completed.outcome);
                }
                self.give_up(&completed.cancelled);
            }
            // It ran out, or was taken away, while it was under way: nothing has changed.
            Err(error) => tracing::debug!("piece {piece} from {}: {error}", lease.peer),
        }
    }

    /// Ends transfers of which nothing is wanted any more. Bytes that are here already are verified all the same.
    fn give_up(&mut self, cancelled: &[Cancelled]) {
        for cancelled in cancelled {
            let Some(flight) = self.flights.get_mut(&cancelled.lease) else { continue };
            // Others of its pieces may go on: a run has one transfer.
            flight.wanted.retain(|piece| !cancelled.pieces.contains(piece));
            if let Some(transfer) = flight.transfer.clone().filter(|_| flight.wanted.is_empty()) {
                transfer.abort();
                self.flights.remove(&cancelled.lease);
            }
            if cancelled.why == CancelReason::Expired {
                self.blame(&cancelled.peer, "it did not give what it was asked for in time".to_owned());
                if cancelled.peer.as_str() == ORIGIN {
                    self.origin_failed(Error::new(Kind::Unavailable, "the store does not answer in time"));
                }
            }
        }
    }

    fn note_progress(&mut self) {
        let now = self.now();
        for (id, flight) in &mut self.flights {
            let so_far = flight.so_far.load(Relaxed);
            if flight.transfer.is_some() && so_far > flight.seen {
                flight.seen = so_far;
                self.heard_at = now;
                // One that has ended is given up with the next answer.
                let _ = self.manager.progress(*id, so_far, now);
            }
        }
    }

    // ── peers ───────────────────────────────────────────────────────────────────────────────────────────────────

    fn told_peers(&mut self, peers: Result<Vec<Peer>>) {
        self.is_told_of_peers = true;
        self.is_listing = false;
        let peers = match peers {
            Ok(peers) => peers,
            Err(error) => return tracing::warn!("peers cannot be listed: {error}"),
        };
        self.announced = peers.iter().map(|peer| peer.id.clone()).collect();
        for peer in peers {
            let is_same = |left: &Arc<PeerClient>| Arc::ptr_eq(left, &peer.client);
            if self.known.contains_key(&peer.id) || self.left_out.get(&peer.id).is_some_and(is_same) {
                continue;
            }
            self.left_out.remove(&peer.id);
            let known = Known {
                source: Source::Peer(peer.client.clone()),
                have: None,
                has_answered: false,
                silences: 0,
                every: HAVE_EVERY_MIN,
                rest: Rest::default(),
            };
            self.known.insert(peer.id.clone(), known);
            self.ask_what_it_has(peer.id, Duration::ZERO);
        }
    }

    fn ask_what_it_has(&mut self, id: PeerId, after: Duration) {
        let Some(Known { source: Source::Peer(peer), .. }) = self.known.get(&id) else { return };
        let (peer, pause) = (peer.clone(), self.host.sleep(after));
        let (artifact, cut) = (self.assembly.manifest().artifact.clone(), self.assembly.manifest().cut);
        self.events.push(Box::pin(async move {
            pause.await;
            let have = peer.have(&artifact, &cut).await;
            Event::Have(id, have)
        }));
    }

    fn told_have(&mut self, id: &PeerId, have: Result<Option<PieceMap>>) {
        let now = self.now();
        let Some(known) = self.known.get_mut(id) else { return };
        let have = match have {
            Ok(have) => have,
            Err(error) => {
                known.silences += 1;
                let (silences, every) = (known.silences, known.every);
                self.blame(id, error.to_string());
                if silences >= SILENCE_MAX {
                    return self.leave_out(id);
                }
                return self.ask_what_it_has(id.clone(), every);
            }
        };
        known.silences = 0;
        known.has_answered = true;
        // One that has removed what it had has nothing of it now.
        let have = have.or_else(|| known.have.as_ref().map(|before| PieceMap::none(before.len())));
        let is_new = have.is_some() && have != known.have;
        known.every = if is_new { HAVE_EVERY_MIN } else { (known.every * 2).min(HAVE_EVERY_MAX) };
        let every = known.every;
        let told = match have.clone().filter(|_| is_new) {
            None => Ok(()),
            Some(map) if known.have.is_none() => self.manager.add_peer(id.clone(), PeerKind::Peer, map, now),
            Some(map) => self.manager.update_have(id, map, now),
        };
        if let Err(error) = told {
            self.blame(id, error.to_string());
            return self.leave_out(id);
        }
        let is_complete = have.as_ref().is_some_and(PieceMap::is_full);
        if let Some(known) = self.known.get_mut(id).filter(|_| have.is_some()) {
            known.have = have;
        }
        if !is_complete {
            self.ask_what_it_has(id.clone(), every);
        }
    }

    fn leave_out(&mut self, id: &PeerId) {
        if let Some(Known { source: Source::Peer(client), .. }) = self.known.remove(id) {
            self.left_out.insert(id.clone(), client);
        }
        let ended = self.manager.remove_peer(id, self.now());
        self.give_up(&ended);
    }

    // ── telling ─────────────────────────────────────────────────────────────────────────────────────────────────

    fn blame(&self, peer: &PeerId, why: String) {
        tracing::debug!("{peer}: {why}");
        (self.tell)(FetchEvent::Blamed { peer: peer.to_string(), why });
    }

    fn tell_progress(&self) {
        let (cut, verified) = (self.assembly.manifest().cut, self.manager.verified());
        (self.tell)(FetchEvent::Progress {
            pieces: verified.count(),
            pieces_total: cut.pieces(),
            bytes: told::bytes_of(&cut, verified),
            bytes_total: cut.size(),
        });
    }

    /// Without the origin: fails when nobody has what is missing, or those who have it do not give it.
    fn check_for_hope(&mut self) -> Result<()> {
        if self.origin.is_some() {
            return Ok(());
        }
        let is_asking = self.is_listing
            || (self.peers.is_some() && !self.is_told_of_peers)
            || self.known.values().any(|known| !known.has_answered);
        let may_give = |(id, known): (&PeerId, &Known)| {
            let is_bad = self.manager.is_quarantined(id) || known.rest.failures >= PEER_FAILURES_MAX;
            known.have.is_some() && !is_bad
        };
        let may_come = is_asking || self.known.iter().any(may_give);
        if may_come && self.now().saturating_sub(self.heard_at) < NOBODY_WAIT {
            return Ok(());
        }
        let artifact = &self.assembly.manifest().artifact;
        let message = format!("nobody gives the missing pieces of artifact {artifact}");
        let nobody = || Error::new(Kind::Unavailable, message).about(Matter::Missing);
        Err(self.origin_error.take().unwrap_or_else(nobody))
    }

    fn fetched(mut self) -> Fetched {
        self.result.leases = Some(self.manager.stats(self.now()));
        self.result
    }
}

fn place(assembly: &Assembly, pieces: std::ops::Range<u32>, bytes: &Bytes) -> Result<Vec<(u32, Placed)>> {
    let piece_bytes = assembly.manifest().cut.piece_bytes() as usize;
    pieces
        .zip(bytes.chunks(piece_bytes))
        .map(|(piece, bytes)| Ok((piece, assembly.place(piece, bytes)?)))
        .collect()
}
