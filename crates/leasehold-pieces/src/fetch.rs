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
use leasehold_core::piece::manager::{Cancelled, FailureKind, Outcome, PieceCompletion, PieceResult};
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

/// So many failures of the origin in a row, with nothing got meanwhile, and the fetch has failed.
const ORIGIN_FAILURES_MAX: u32 = 3;

/// A peer that does not even say what it has is left out after so many tries.
const SILENCE_MAX: u32 = 3;

/// How often a peer is asked what it has: often while it gets more, and seldom when it has nothing of this artifact.
const HAVE_EVERY_MIN: Duration = Duration::from_millis(200);
const HAVE_EVERY_MAX: Duration = Duration::from_secs(2);

/// How often to look how far transfers have come.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// How often to look for peers that have come.
const PEERS_EVERY: Duration = Duration::from_secs(10);

/// With neither origin nor peers that have what is missing, a fetch waits so long for one to come.
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
    so_far: Arc<AtomicU64>,
    /// None once the bytes are here.
    transfer: Option<AbortHandle>,
}

/// What is known of a peer besides its leases.
struct Known {
    source: Source,
    /// What it has; nothing if it neither has nor fetches this artifact.
    have: Option<PieceMap>,
    silences: u32,
    every: Duration,
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
    /// Those that were left out: not to be tried again.
    left_out: BTreeSet<PeerId>,
    /// All that serve anything, as the store says.
    announced: BTreeSet<PeerId>,
    events: FuturesUnordered<BoxFuture<'a, Event>>,
    flights: HashMap<PieceLeaseId, Flight>,
    started: Instant,
    /// When something was last got.
    got_at: Duration,
    peers_at: Option<Duration>,
    is_told_of_peers: bool,
    /// When the next byte may be asked for.
    paced_until: Duration,
    origin_failures: u32,
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
            left_out: BTreeSet::new(),
            announced: BTreeSet::new(),
            events: FuturesUnordered::new(),
            flights: HashMap::new(),
            got_at: Duration::ZERO,
            peers_at: None,
            is_told_of_peers: false,
            paced_until: Duration::ZERO,
            origin_failures: 0,
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
        if self.peers_at.is_none_or(|at| now >= at + PEERS_EVERY) {
            self.peers_at = Some(now);
            self.events.push(Box::pin(async move { Event::Peers(peers.live().await) }));
        }
    }

    /// Asks every source for as much as it may give.
    fn ask_all(&mut self) {
        self.note_progress();
        let peers: Vec<(PeerId, PieceMap)> =
            self.known.iter().filter_map(|(id, known)| Some((id.clone(), known.have.clone()?))).collect();
        for (peer, have) in peers {
            self.ask(peer, have, 0);
        }
        if self.origin.is_some() && self.may_ask_origin() {
            let allowed = self.allowed_of_origin();
            let run = if self.participants().is_empty() { self.run_bytes() } else { BLOCK_BYTES };
            self.ask(ORIGIN.into(), allowed, run);
        }
    }

    /// Before the first answer about peers nobody knows whose duty anything is.
    fn may_ask_origin(&self) -> bool {
        self.peers.is_none() || self.is_told_of_peers || self.now() >= self.options.patience
    }

    fn ask(&mut self, peer: PeerId, have: PieceMap, run_bytes_max: u64) {
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
        let request = LeaseRequest { peer, have, max_leases, run_bytes_max, order: PieceOrder::Rarest };
        let response = self.manager.request_lease(&request, now);
        self.give_up(&response.cancelled);
        for lease in response.granted {
            self.start(lease);
        }
    }

    fn start(&mut self, lease: PieceLease) {
        let manifest = self.assembly.manifest();
        let source = match &self.origin {
            Some(origin) if lease.peer.as_str() == ORIGIN => Source::Origin(origin.clone()),
            _ => match self.known.get(&lease.peer) {
                Some(known) => known.source.clone(),
                None => return,
            },
        };
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
        self.flights.insert(id, Flight { lease, bytes, so_far, transfer: Some(transfer) });
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
        if self.known.is_empty() || idle >= patience {
            return allowed;
        }
        let left = self.manager.left_to_origin();
        allowed.keep(&left);
        // What every peer that has it has failed to give: nobody else's duty will bring it.
        let mut failed = PieceMap::none(left.len());
        self.known.values().filter_map(|known| known.have.as_ref()).for_each(|have| failed.insert_all(have));
        failed.keep(&left);
        allowed.insert_all(&failed);
        allowed
    }

    /// The others among whom duties are divided.
    fn participants(&self) -> BTreeSet<PeerId> {
        let is_early = self.now() < self.options.patience;
        let fetches = |id: &PeerId| self.known.get(id).is_some_and(|known| known.have.is_some());
        let is_trusted = |id: &PeerId| !self.left_out.contains(id) && !self.manager.is_quarantined(id);
        self.announced.iter().filter(|id| is_trusted(id) && (is_early || fetches(id))).cloned().collect()
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
        if let Some(event) = event {
            self.happened(event)?;
        }
        self.check_for_hope()
    }

    /// How long nothing but an event can change anything.
    fn next_look(&self) -> Duration {
        let now = self.now();
        let patience = self.options.patience;
        // The next rank of duties falls to us.
        let idle = self.idle().as_millis() / patience.as_millis().max(1) + 1;
        let mut next = self.got_at + patience * u32::try_from(idle).unwrap_or(u32::MAX);
        if let Some(expiry) = self.manager.next_expiry() {
            next = next.min(expiry);
        }
        if self.paced_until > now {
            next = next.min(self.paced_until);
        }
        if !self.flights.is_empty() {
            // Bytes that have come postpone the expiry of their lease, but only before it.
            next = next.min(now + PROGRESS_EVERY);
        }
        if let Some(at) = self.peers_at {
            next = next.min(at + PEERS_EVERY);
        }
        next.saturating_sub(now).max(Duration::from_millis(1))
    }

    fn happened(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Landed(id, Ok(bytes)) => self.landed(id, bytes),
            Event::Landed(id, Err(failed)) => return self.failed(id, failed),
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
            if placed == Placed::Wrong {
                self.blame(&lease.peer, format!("piece {piece} is not what it should be"));
            }
            self.complete(lease, piece, result);
        }
        self.tell_progress();
    }

    fn got(&mut self, lease: &PieceLease, piece: u32, outcome: Outcome) {
        let bytes = u64::from(self.assembly.manifest().cut.len_of(piece));
        self.got_at = self.now();
        self.origin_failures = 0;
        let count = match outcome {
            Outcome::NotNeeded => &mut self.result.duplicate_bytes,
            Outcome::Accepted | Outcome::Late if lease.peer.as_str() == ORIGIN => {
                &mut self.result.origin_bytes
            }
            Outcome::Accepted | Outcome::Late => &mut self.result.peer_bytes,
        };
        *count += bytes;
    }

    fn failed(&mut self, id: PieceLeaseId, failed: Failed) -> Result<()> {
        let Some(flight) = self.flights.remove(&id) else { return Ok(()) };
        let lease = flight.lease;
        self.blame(&lease.peer, failed.error.to_string());
        for piece in lease.pieces.clone() {
            self.complete(&lease, piece, PieceResult::Failure(failed.kind));
        }
        if lease.peer.as_str() == ORIGIN {
            self.origin_failures += 1;
            let is_final = failed.error.kind() != Kind::Unavailable;
            if is_final || self.origin_failures >= ORIGIN_FAILURES_MAX {
                return self.without_origin(failed.error);
            }
        }
        Ok(())
    }

    /// Goes on with the peers if they have all that is missing, or fails.
    fn without_origin(&mut self, error: Error) -> Result<()> {
        let mut missing = PieceMap::all(self.assembly.manifest().cut.pieces());
        missing.remove_all(self.manager.verified());
        for known in self.known.values() {
            known.have.iter().for_each(|have| missing.remove_all(have));
        }
        if missing.count() > 0 {
            return Err(error);
        }
        self.origin = None;
        let ended = self.manager.remove_peer(&ORIGIN.into(), self.now());
        self.give_up(&ended);
        Ok(())
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

    /// Ends transfers whose leases have ended. Bytes that are here already are verified all the same.
    fn give_up(&mut self, cancelled: &[Cancelled]) {
        for cancelled in cancelled {
            if let Some(transfer) =
                self.flights.get(&cancelled.lease).and_then(|flight| flight.transfer.clone())
            {
                transfer.abort();
                self.flights.remove(&cancelled.lease);
            }
        }
    }

    fn note_progress(&mut self) {
        let now = self.now();
        for (id, flight) in &self.flights {
            let so_far = flight.so_far.load(Relaxed);
            if flight.transfer.is_some() && so_far > 0 {
                // One that has ended is given up with the next answer.
                let _ = self.manager.progress(*id, so_far, now);
            }
        }
    }

    // ── peers ───────────────────────────────────────────────────────────────────────────────────────────────────

    fn told_peers(&mut self, peers: Result<Vec<Peer>>) {
        self.is_told_of_peers = true;
        let peers = match peers {
            Ok(peers) => peers,
            Err(error) => return tracing::warn!("peers cannot be listed: {error}"),
        };
        self.announced = peers.iter().map(|peer| peer.id.clone()).collect();
        for peer in peers {
            if self.known.contains_key(&peer.id) || self.left_out.contains(&peer.id) {
                continue;
            }
            let source = Source::Peer(peer.client.clone());
            self.known
                .insert(peer.id.clone(), Known { source, have: None, silences: 0, every: HAVE_EVERY_MIN });
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
        self.known.remove(id);
        self.left_out.insert(id.clone());
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

    /// Fails when nobody has what is missing, and nobody has come for a while.
    fn check_for_hope(&self) -> Result<()> {
        let has_source = self.origin.is_some() || self.known.values().any(|known| known.have.is_some());
        if has_source || self.idle() < NOBODY_WAIT {
            return Ok(());
        }
        let artifact = &self.assembly.manifest().artifact;
        let message = format!("nobody has the missing pieces of artifact {artifact}");
        Err(Error::new(Kind::Unavailable, message).about(Matter::Missing))
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
