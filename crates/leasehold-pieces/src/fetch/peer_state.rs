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
const FAILED_PAUSE_MIN: Duration = Duration::from_millis(100);
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Failed requests for its piece map after which a peer is excluded.
const SILENCE_MAX: u32 = 3;

/// Pause between two requests for a peer's piece map: short while the map grows, long when it does not change.
const HAVE_EVERY_MIN: Duration = Duration::from_millis(200);
const HAVE_EVERY_MAX: Duration = Duration::from_secs(2);

/// State of a peer besides its leases.
pub(super) struct PeerState {
    pub(super) source: Source,
    /// Pieces that it has; `None` if it neither has nor fetches this artifact.
    pub(super) have: Option<PieceMap>,
    /// True once it has answered a request for its piece map.
    pub(super) has_answered: bool,
    pub(super) silences: u32,
    pub(super) every: Duration,
    pub(super) rest: Rest,
}

/// Back-off of a source after failures.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rest {
    pub(super) until: Duration,
    /// Failures in a row; concurrent failures count as one.
    pub(super) failures: u32,
}

impl Rest {
    pub(super) fn is_over(self, now: Duration) -> bool {
        now >= self.until
    }

    pub(super) fn failed(&mut self, now: Duration) {
        if self.is_over(now) {
            let pause = FAILED_PAUSE_MIN.saturating_mul(1 << self.failures.min(16));
            self.until = now + pause.min(FAILED_PAUSE_MAX);
            self.failures += 1;
        }
    }
}

impl Fetch<'_> {
    pub(super) fn told_peers(&mut self, peers: Result<Vec<Peer>>) {
        self.is_told_of_peers = true;
        self.is_listing = false;
        let peers = match peers {
            Ok(peers) => peers,
            Err(error) => return tracing::warn!(%error, "failed to list peers, retrying"),
        };
        self.announced = peers.iter().map(|peer| peer.id.clone()).collect();
        for peer in peers {
            let is_same = |left: &Arc<PeerClient>| Arc::ptr_eq(left, &peer.client);
            if self.known.contains_key(&peer.id) || self.left_out.get(&peer.id).is_some_and(is_same) {
                continue;
            }
            self.left_out.remove(&peer.id);
            let known = PeerState {
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
        let Some(PeerState { source: Source::Peer(peer), .. }) = self.known.get(&id) else { return };
        let (peer, pause) = (peer.clone(), self.host.sleep(after));
        let (artifact, cut) = (self.assembly.manifest().artifact.clone(), self.assembly.manifest().cut);
        self.events.push(Box::pin(async move {
            pause.await;
            let have = peer.have(&artifact, &cut).await;
            Event::Have(id, have)
        }));
    }

    pub(super) fn told_have(&mut self, id: &PeerId, have: Result<Option<PieceMap>>) {
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
        // A peer that has removed the artifact has none of its pieces.
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
        if let Some(PeerState { source: Source::Peer(client), .. }) = self.known.remove(id) {
            self.left_out.insert(id.clone(), client);
        }
        let ended = self.manager.remove_peer(id, self.now());
        self.give_up(&ended);
    }
}
