//! Requests of a fetch to its sources.

use futures::future::{AbortHandle, abortable};
use leasehold_core::limits::RANGE_BYTES_MAX;
use leasehold_core::piece::{LeaseRequest, PeerId, PieceMap, PieceOrder, PieceRequest};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::options::ORIGIN_REQUESTS_MAX;
use super::origin_assignment::BLOCK_BYTES;
use super::peer_state::PeerState;
use super::source::Source;
use super::{Event, Fetch, GRACE, ORIGIN, PEERS_EVERY};
use crate::peers::Peers;

/// A transfer in progress, or whose bytes are being verified.
pub(super) struct Flight {
    pub(super) lease: PieceRequest,
    pub(super) bytes: u64,
    /// Pieces of the lease that are still needed.
    pub(super) wanted: BTreeSet<u32>,
    pub(super) so_far: Arc<AtomicU64>,
    /// Value of `so_far` at the last check.
    pub(super) seen: u64,
    /// `None` once the bytes have arrived.
    pub(super) transfer: Option<AbortHandle>,
}

impl Fetch<'_> {
    pub(super) fn look_for_peers(&mut self) {
        let Some(peers) = self.peers else { return };
        let now = self.now();
        if !self.is_listing && self.peers_at.is_none_or(|at| now >= at + PEERS_EVERY) {
            self.peers_at = Some(now);
            self.is_listing = true;
            self.events.push(Box::pin(async move { Event::Peers(peers.live().await) }));
        }
    }

    /// Requests as many pieces from every source as its leases allow.
    pub(super) fn ask_all(&mut self) {
        self.note_progress();
        let now = self.now();
        // Also when no source can be used now: expired leases must not be waited for.
        let expired = self.manager.expire(now);
        self.give_up(&expired);
        let asked = |(id, known): (&PeerId, &PeerState)| {
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

    /// Returns whether the origin may be used now. Blocks cannot be assigned before the first list of peers.
    fn may_ask_origin(&self) -> bool {
        let now = self.now();
        let knows_peers = self.peers.is_none() || self.is_told_of_peers || now >= GRACE;
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
        // With nothing in flight one lease is granted whatever its size: otherwise the fetch would never proceed.
        let max_leases = u32::try_from(room).unwrap_or(u32::MAX).max(u32::from(self.flights.is_empty()));
        let max_leases =
            if peer.as_str() == ORIGIN { max_leases.min(self.origin_room()) } else { max_leases };
        if max_leases == 0 {
            return;
        }
        // Without peers, sequentially: no holes are left between runs, and the whole is hashed without reading anything back.
        let is_alone = self.known.is_empty() && self.announced.is_empty();
        let order = if is_alone { PieceOrder::Sequential } else { PieceOrder::Rarest };
        let request = LeaseRequest { peer, have, max_leases, run_bytes_max, order };
        let response = self.manager.request_lease(&request, now);
        self.give_up(&response.cancelled);
        for lease in response.granted {
            self.start(lease, source);
        }
    }

    /// Number of requests to the origin that may be added. Runs that are being verified do not count, so that the next ones
    /// arrive meanwhile. Fewer with peers: pieces that a node has from the origin and has not passed on are lost with it.
    fn origin_room(&self) -> u32 {
        let most = if self.participants().is_empty() { ORIGIN_REQUESTS_MAX } else { ORIGIN_REQUESTS_MAX / 2 };
        let is_under_way =
            |flight: &&Flight| flight.lease.peer.as_str() == ORIGIN && flight.transfer.is_some();
        let under_way = self.flights.values().filter(is_under_way).count();
        most.saturating_sub(u32::try_from(under_way).unwrap_or(u32::MAX))
    }

    fn start(&mut self, lease: PieceRequest, source: &Source) {
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

    /// Pieces that may be requested from the origin now.
    fn allowed_of_origin(&mut self) -> PieceMap {
        let (idle, patience) = (self.idle(), self.options.patience);
        // First wait for the piece maps of the peers.
        let is_asking = self.known.values().any(|known| !known.has_answered);
        if is_asking && self.now() < GRACE {
            return PieceMap::none(self.assembly.manifest().cut.pieces());
        }
        let nodes = self.participants();
        let me = self.peers.and_then(Peers::me).cloned();
        let mut allowed = self.duties.allowed(me.as_ref(), nodes, idle, patience);
        if idle < patience {
            // Peers that fail are ignored, whatever they have.
            for (_, known) in self.known.iter().filter(|(id, _)| self.is_trusted(id)) {
                known.have.iter().for_each(|have| allowed.remove_all(have));
            }
        }
        allowed
    }

    /// Other nodes among which the blocks are divided.
    pub(super) fn participants(&self) -> BTreeSet<PeerId> {
        let is_early = self.now() < GRACE;
        let fetches = |id: &PeerId| self.known.get(id).is_some_and(|known| known.have.is_some());
        self.announced.iter().filter(|id| self.is_trusted(id) && (is_early || fetches(id))).cloned().collect()
    }

    /// True if the peer has neither sent corrupt data nor failed its last request.
    pub(super) fn is_trusted(&self, id: &PeerId) -> bool {
        let has_failed = self.known.get(id).is_some_and(|known| known.rest.failures > 0);
        !has_failed && !self.left_out.contains_key(id) && !self.manager.is_quarantined(id)
    }

    /// Length of a run without peers: as long as allowed, but short enough that every lease of the origin gets one at once.
    fn run_bytes(&self) -> u64 {
        let cut = self.assembly.manifest().cut;
        let share = cut.size() / u64::from(ORIGIN_REQUESTS_MAX) / 2;
        share.clamp(BLOCK_BYTES, RANGE_BYTES_MAX)
    }
}
