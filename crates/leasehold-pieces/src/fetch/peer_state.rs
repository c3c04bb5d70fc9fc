//! State of the peers of a fetch.

use leasehold_core::Result;
use leasehold_core::piece::{PeerId, PeerKind, PieceMap};
use std::sync::Arc;
use std::time::Duration;

use super::source::Source;
use super::{Event, Fetch};
use crate::peer::PeerClient;
use crate::peers::Peer;

/// Back-off after a failure of a source; each failure doubles it.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Failed requests for its piece map after which a peer is excluded.
const MAP_FAILURES_MAX: u32 = 3;

/// Pause between two requests for a peer's piece map: short while the map grows, long when it does not change.
const MAP_INTERVAL_MIN: Duration = Duration::from_millis(200);
const MAP_INTERVAL_MAX: Duration = Duration::from_secs(2);

/// State of a peer besides its leases.
pub(super) struct PeerState {
    pub(super) source: Source,
    /// Pieces that it has; `None` if it neither has nor fetches this artifact.
    pub(super) have: Option<PieceMap>,
    /// True once it has answered a request for its piece map.
    pub(super) has_answered: bool,
    pub(super) map_failures: u32,
    pub(super) map_interval: Duration,
    pub(super) backoff: Backoff,
}

/// Back-off of a source after failures.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Backoff {
    pub(super) until: Duration,
    /// Failures in a row; concurrent failures count as one.
    pub(super) failures: u32,
}

impl Backoff {
    pub(super) fn is_over(self, now: Duration) -> bool {
        now >= self.until
    }

    pub(super) fn failed(&mut self, now: Duration) {
        if self.is_over(now) {
            let pause = BACKOFF_MIN.saturating_mul(1 << self.failures.min(16));
            self.until = now + pause.min(BACKOFF_MAX);
            self.failures += 1;
        }
    }
}

impl Fetch<'_> {
    pub(super) fn on_peers(&mut self, peers: Result<Vec<Peer>>) {
        self.has_peer_list = true;
        self.is_listing = false;
        let peers = match peers {
            Ok(peers) => peers,
            Err(error) => return tracing::warn!(%error, "failed to list peers, retrying"),
        };
        self.announced = peers.iter().map(|peer| peer.id.clone()).collect();
        for peer in peers {
            let is_same = |left: &Arc<PeerClient>| Arc::ptr_eq(left, &peer.client);
            if self.peer_states.contains_key(&peer.id) || self.excluded.get(&peer.id).is_some_and(is_same) {
                continue;
            }
            self.excluded.remove(&peer.id);
            let state = PeerState {
                source: Source::Peer(peer.client.clone()),
                have: None,
                has_answered: false,
                map_failures: 0,
                map_interval: MAP_INTERVAL_MIN,
                backoff: Backoff::default(),
            };
            self.peer_states.insert(peer.id.clone(), state);
            self.request_piece_map(peer.id, Duration::ZERO);
        }
    }

    fn request_piece_map(&mut self, id: PeerId, after: Duration) {
        let Some(PeerState { source: Source::Peer(peer), .. }) = self.peer_states.get(&id) else { return };
        let (peer, pause) = (peer.clone(), self.host.sleep(after));
        let (artifact, cut) = (self.assembly.manifest().artifact.clone(), self.assembly.manifest().cut);
        self.events.push(Box::pin(async move {
            pause.await;
            let have = peer.have(&artifact, &cut).await;
            Event::Have(id, have)
        }));
    }

    pub(super) fn on_piece_map(&mut self, id: &PeerId, have: Result<Option<PieceMap>>) {
        let now = self.now();
        let Some(state) = self.peer_states.get_mut(id) else { return };
        let have = match have {
            Ok(have) => have,
            Err(error) => {
                state.map_failures += 1;
                let (map_failures, map_interval) = (state.map_failures, state.map_interval);
                self.report_failure(id, error.to_string());
                if map_failures >= MAP_FAILURES_MAX {
                    return self.exclude(id);
                }
                return self.request_piece_map(id.clone(), map_interval);
            }
        };
        state.map_failures = 0;
        state.has_answered = true;
        // A peer that has removed the artifact has none of its pieces.
        let have = have.or_else(|| state.have.as_ref().map(|before| PieceMap::none(before.len())));
        let is_new = have.is_some() && have != state.have;
        state.map_interval =
            if is_new { MAP_INTERVAL_MIN } else { (state.map_interval * 2).min(MAP_INTERVAL_MAX) };
        let map_interval = state.map_interval;
        let updated = match have.clone().filter(|_| is_new) {
            None => Ok(()),
            Some(map) if state.have.is_none() => self.manager.add_peer(id.clone(), PeerKind::Peer, map, now),
            Some(map) => self.manager.update_have(id, map, now),
        };
        if let Err(error) = updated {
            self.report_failure(id, error.to_string());
            return self.exclude(id);
        }
        let is_complete = have.as_ref().is_some_and(PieceMap::is_full);
        if let Some(state) = self.peer_states.get_mut(id).filter(|_| have.is_some()) {
            state.have = have;
        }
        if !is_complete {
            self.request_piece_map(id.clone(), map_interval);
        }
    }

    fn exclude(&mut self, id: &PeerId) {
        if let Some(PeerState { source: Source::Peer(client), .. }) = self.peer_states.remove(id) {
            self.excluded.insert(id.clone(), client);
        }
        let ended = self.manager.remove_peer(id, self.now());
        self.abort_unneeded(&ended);
    }
}
