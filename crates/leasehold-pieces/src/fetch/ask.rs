//! Whom a fetch asks for what.

use futures::future::{AbortHandle, abortable};
use leasehold_core::limits::RANGE_BYTES_MAX;
use leasehold_core::piece::{LeaseRequest, PeerId, PieceLease, PieceMap, PieceOrder};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::duty::BLOCK_BYTES;
use super::know::Known;
use super::source::Source;
use super::told::ORIGIN_REQUESTS_MAX;
use super::{Event, Fetch, GRACE, ORIGIN, PEERS_EVERY};
use crate::peers::Peers;

/// A transfer that is under way, or whose bytes are being verified.
pub(super) struct Flight {
    pub(super) lease: PieceLease,
    pub(super) bytes: u64,
    /// Those of its pieces that are still wanted from it.
    pub(super) wanted: BTreeSet<u32>,
    pub(super) so_far: Arc<AtomicU64>,
    /// How much of that was known at the last look.
    pub(super) seen: u64,
    /// None once the bytes are here.
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

    /// Asks every source for as much as it may give.
    pub(super) fn ask_all(&mut self) {
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
        // With nothing under way one lease is granted whatever its size: or nothing would ever be.
        let max_leases = u32::try_from(room).unwrap_or(u32::MAX).max(u32::from(self.flights.is_empty()));
        let max_leases =
            if peer.as_str() == ORIGIN { max_leases.min(self.origin_room()) } else { max_leases };
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

    /// How many more requests to the origin may be under way. Runs that are being verified do not count: meanwhile the next
    /// ones come. Among peers they are fewer: what a node has from the origin and has not passed on is lost with it.
    fn origin_room(&self) -> u32 {
        let most = if self.participants().is_empty() { ORIGIN_REQUESTS_MAX } else { ORIGIN_REQUESTS_MAX / 2 };
        let is_under_way =
            |flight: &&Flight| flight.lease.peer.as_str() == ORIGIN && flight.transfer.is_some();
        let under_way = self.flights.values().filter(is_under_way).count();
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
        // First those who may have it say what they have.
        let is_asking = self.known.values().any(|known| !known.has_answered);
        if is_asking && self.now() < GRACE {
            return PieceMap::none(self.assembly.manifest().cut.pieces());
        }
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
    pub(super) fn participants(&self) -> BTreeSet<PeerId> {
        let is_early = self.now() < GRACE;
        let fetches = |id: &PeerId| self.known.get(id).is_some_and(|known| known.have.is_some());
        self.announced.iter().filter(|id| self.is_trusted(id) && (is_early || fetches(id))).cloned().collect()
    }

    /// Whether it has neither lied nor failed when it was last asked.
    pub(super) fn is_trusted(&self, id: &PeerId) -> bool {
        let has_failed = self.known.get(id).is_some_and(|known| known.rest.failures > 0);
        !has_failed && !self.left_out.contains_key(id) && !self.manager.is_quarantined(id)
    }

    /// Alone, runs are as long as they may be, but every lease of the origin has one from the beginning.
    fn run_bytes(&self) -> u64 {
        let cut = self.assembly.manifest().cut;
        let share = cut.size() / u64::from(ORIGIN_REQUESTS_MAX) / 2;
        share.clamp(BLOCK_BYTES, RANGE_BYTES_MAX)
    }
}
