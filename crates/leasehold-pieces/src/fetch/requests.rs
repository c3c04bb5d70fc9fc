//! Requests of a fetch to its sources.

use futures::future::{AbortHandle, abortable};
use leasehold_core::limits::RANGE_BYTES_MAX;
use leasehold_core::piece::{LeaseRequest, PeerId, PieceLease, PieceMap, PieceOrder};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::options::ORIGIN_REQUESTS_MAX;
use super::origin_assignment::BLOCK_BYTES;
use super::peer_state::PeerState;
use super::source::Source;
use super::{Event, Fetch, ORIGIN, PEERS_INTERVAL, START_GRACE};
use crate::peers::Peers;

/// A transfer in progress, or whose bytes are being verified.
pub(super) struct Transfer {
    pub(super) lease: PieceLease,
    pub(super) bytes: u64,
    /// Pieces of the lease that are still needed.
    pub(super) wanted: BTreeSet<u32>,
    pub(super) so_far: Arc<AtomicU64>,
    /// Value of `so_far` at the last check.
    pub(super) seen: u64,
    /// `None` once the bytes have arrived.
    pub(super) abort: Option<AbortHandle>,
}

impl Fetch<'_> {
    pub(super) fn refresh_peers(&mut self) {
        let Some(peers) = self.peers else { return };
        let now = self.now();
        if !self.is_listing && self.peers_at.is_none_or(|at| now >= at + PEERS_INTERVAL) {
            self.peers_at = Some(now);
            self.is_listing = true;
            self.events.push(Box::pin(async move { Event::Peers(peers.live().await) }));
        }
    }

    /// Requests as many pieces from every source as its leases allow.
    pub(super) fn request_pieces(&mut self) {
        self.note_progress();
        let now = self.now();
        // Also when no source can be used now: expired leases must not be waited for.
        let expired = self.manager.expire(now);
        self.abort_unneeded(&expired);
        let usable = |(id, state): (&PeerId, &PeerState)| {
            let have = state.have.clone().filter(|_| state.backoff.is_over(now))?;
            Some((id.clone(), state.source.clone(), have))
        };
        for (peer, source, have) in self.peer_states.iter().filter_map(usable).collect::<Vec<_>>() {
            self.request_from(peer, &source, have, 0);
        }
        let Some(origin) = self.origin.clone().filter(|_| self.may_use_origin()) else { return };
        let allowed = self.allowed_from_origin();
        let run = if self.participants().is_empty() { self.run_bytes() } else { BLOCK_BYTES };
        self.request_from(ORIGIN.into(), &Source::Origin(origin), allowed, run.min(self.run_bytes_max));
    }

    /// Returns whether the origin may be used now. Blocks cannot be assigned before the first list of peers.
    fn may_use_origin(&self) -> bool {
        let now = self.now();
        let knows_peers = self.peers.is_none() || self.has_peer_list || now >= START_GRACE;
        knows_peers && self.origin_backoff.is_over(now)
    }

    fn request_from(&mut self, peer: PeerId, source: &Source, have: PieceMap, run_bytes_max: u64) {
        let now = self.now();
        if have.count() == 0 || now < self.paced_until {
            return;
        }
        let largest = run_bytes_max.max(u64::from(self.assembly.manifest().cut.piece_bytes()));
        let in_flight: u64 = self.transfers.values().map(|transfer| transfer.bytes).sum();
        let leases_left = self.options.memory_bytes_max.saturating_sub(in_flight) / largest;
        // With nothing in flight one lease is granted whatever its size: otherwise the fetch would never proceed.
        let max_leases =
            u32::try_from(leases_left).unwrap_or(u32::MAX).max(u32::from(self.transfers.is_empty()));
        let max_leases =
            if peer.as_str() == ORIGIN { max_leases.min(self.origin_requests_left()) } else { max_leases };
        if max_leases == 0 {
            return;
        }
        // Without peers, sequentially: no holes are left between runs, and the whole is hashed without reading anything back.
        let is_alone = self.peer_states.is_empty() && self.announced.is_empty();
        let order = if is_alone { PieceOrder::Sequential } else { PieceOrder::Rarest };
        let request = LeaseRequest { peer, have, max_leases, run_bytes_max, order };
        let response = self.manager.request_lease(&request, now);
        self.abort_unneeded(&response.cancelled);
        for lease in response.granted {
            self.start(lease, source);
        }
    }

    /// Number of requests to the origin that may be added. Runs that are being verified do not count, so that the next ones
    /// arrive meanwhile. Fewer with peers: pieces that a node has from the origin and has not passed on are lost with it.
    fn origin_requests_left(&self) -> u32 {
        let most = if self.participants().is_empty() { ORIGIN_REQUESTS_MAX } else { ORIGIN_REQUESTS_MAX / 2 };
        let is_under_way =
            |transfer: &&Transfer| transfer.lease.peer.as_str() == ORIGIN && transfer.abort.is_some();
        let under_way = self.transfers.values().filter(is_under_way).count();
        most.saturating_sub(u32::try_from(under_way).unwrap_or(u32::MAX))
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
        let (read, abort) = abortable(read);
        let id = lease.id;
        let wanted = lease.pieces.clone().collect();
        let transfer = Transfer { lease, bytes, wanted, so_far, seen: 0, abort: Some(abort) };
        self.transfers.insert(id, transfer);
        self.events.push(Box::pin(async move {
            read.await.map_or(Event::Cancelled, |result| Event::Received(id, result))
        }));
    }

    /// Pieces that may be requested from the origin now.
    fn allowed_from_origin(&mut self) -> PieceMap {
        let (idle, idle_timeout) = (self.idle(), self.options.idle_timeout);
        // First wait for the piece maps of the peers.
        let is_asking = self.peer_states.values().any(|state| !state.has_answered);
        if is_asking && self.now() < START_GRACE {
            return PieceMap::none(self.assembly.manifest().cut.pieces());
        }
        let nodes = self.participants();
        let me = self.peers.and_then(Peers::me).cloned();
        let mut allowed = self.assignment.allowed(me.as_ref(), nodes, idle, idle_timeout);
        if idle < idle_timeout {
            // Peers that fail are ignored, whatever they have.
            for (_, state) in self.peer_states.iter().filter(|(id, _)| self.is_trusted(id)) {
                state.have.iter().for_each(|have| allowed.difference_with(have));
            }
        }
        allowed
    }

    /// Other nodes among which the blocks are divided.
    pub(super) fn participants(&self) -> BTreeSet<PeerId> {
        let is_early = self.now() < START_GRACE;
        let fetches = |id: &PeerId| self.peer_states.get(id).is_some_and(|state| state.have.is_some());
        self.announced.iter().filter(|id| self.is_trusted(id) && (is_early || fetches(id))).cloned().collect()
    }

    /// True if the peer has neither sent corrupt data nor failed its last request.
    pub(super) fn is_trusted(&self, id: &PeerId) -> bool {
        let has_failed = self.peer_states.get(id).is_some_and(|state| state.backoff.failures > 0);
        !has_failed && !self.excluded.contains_key(id) && !self.manager.is_quarantined(id)
    }

    /// Length of a run without peers: as long as allowed, but short enough that every lease of the origin gets one at once.
    fn run_bytes(&self) -> u64 {
        let cut = self.assembly.manifest().cut;
        let share = cut.size() / u64::from(ORIGIN_REQUESTS_MAX) / 2;
        share.clamp(BLOCK_BYTES, RANGE_BYTES_MAX)
    }
}
