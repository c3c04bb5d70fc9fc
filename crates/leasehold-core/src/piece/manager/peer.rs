//! State of a peer.

use std::time::Duration;

use super::messages::{FailureKind, PeerKind};
use crate::piece::config::ManagerConfig;
use crate::piece::map::PieceMap;
use crate::piece::score::Score;

/// Peer that is connected.
#[derive(Debug)]
pub(super) struct ConnectedPeer {
    pub(super) kind: PeerKind,
    pub(super) have: PieceMap,
    /// Pieces with which it failed, and for which other peers are preferred.
    pub(super) failed_pieces: PieceMap,
    /// Leases that it holds.
    pub(super) live: u32,
    /// True if one of them is a probe.
    pub(super) is_probed: bool,
    pub(super) record: PeerRecord,
}

/// Record of a peer, kept after it leaves: reconnecting does not reset it.
#[derive(Debug, Clone)]
pub(super) struct PeerRecord {
    pub(super) score: Score,
    probe: Option<Probe>,
    /// Bytes per second under one lease.
    pub(super) rate: Option<f64>,
    pub(super) counters: PeerCounters,
}

/// Next probe of a peer with too low a score.
#[derive(Debug, Clone, Copy)]
struct Probe {
    due: Duration,
    pause: Duration,
}

/// Counters of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerCounters {
    /// Verified pieces, including late ones.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Pieces with the wrong hash: corrupt data.
    pub corrupt: u32,
    /// Failed connections.
    pub network_errors: u32,
    /// Answers that did not come.
    pub timeouts: u32,
    /// Invalid answers.
    pub invalid_data: u32,
    /// Leases that expired.
    pub expiries: u32,
}

/// Fault of a peer.
#[derive(Debug, Clone, Copy)]
pub(super) enum PeerFault {
    Failed(FailureKind),
    Expired,
}

impl PeerFault {
    /// True if another peer should try the piece next. A broken connection does not concern the piece.
    pub(super) fn is_about_the_piece(self) -> bool {
        !matches!(self, PeerFault::Failed(FailureKind::NetworkError))
    }

    fn penalty(self, config: &ManagerConfig) -> f64 {
        match self {
            PeerFault::Failed(FailureKind::VerificationFailed) => config.corrupt_penalty,
            PeerFault::Failed(_) => config.failure_penalty,
            PeerFault::Expired => config.expiry_penalty,
        }
    }
}

impl PeerRecord {
    pub(super) fn first(config: &ManagerConfig, now: Duration) -> Self {
        Self { score: Score::first(config, now), probe: None, rate: None, counters: PeerCounters::default() }
    }

    /// Adds a measurement of the rate.
    #[expect(clippy::cast_precision_loss, reason = "a rate is an estimate, and far below 2^52")]
    pub(super) fn measure(&mut self, bytes: u64, took: Duration, config: &ManagerConfig) {
        // Two calls with the same time must not give an infinite rate.
        let sample = bytes as f64 / took.max(Duration::from_millis(1)).as_secs_f64();
        let rate = self.rate.unwrap_or(sample);
        self.rate = Some(rate + config.rate_weight * (sample - rate));
    }

    fn count(&mut self, fault: PeerFault) {
        let counters = &mut self.counters;
        let count = match fault {
            PeerFault::Failed(FailureKind::VerificationFailed) => &mut counters.corrupt,
            PeerFault::Failed(FailureKind::NetworkError) => &mut counters.network_errors,
            PeerFault::Failed(FailureKind::Timeout) => &mut counters.timeouts,
            PeerFault::Failed(FailureKind::InvalidData) => &mut counters.invalid_data,
            PeerFault::Expired => &mut counters.expiries,
        };
        *count = count.saturating_add(1);
    }

    /// Sets the next probe after a fault, if the score is too low now. Each failed probe doubles the wait. Leases that
    /// fail together, as in a short network outage, are not probes and count as one.
    fn wait(&mut self, was_probe: bool, config: &ManagerConfig, now: Duration) {
        let pause = match self.probe {
            Some(probe) if was_probe => probe.pause.saturating_mul(2).min(config.probe_max),
            Some(probe) => probe.pause,
            None => config.probe_min,
        };
        let is_low = self.score.at(config, now) < config.score_needed;
        self.probe = is_low.then(|| Probe { due: now.saturating_add(pause), pause });
    }
}

impl ConnectedPeer {
    pub(super) fn new(kind: PeerKind, have: PieceMap, record: PeerRecord) -> Self {
        let failed_pieces = PieceMap::none(have.len());
        Self { kind, have, failed_pieces, live: 0, is_probed: false, record }
    }

    pub(super) fn is_ranked(&self) -> bool {
        self.kind == PeerKind::Peer
    }

    pub(super) fn is_on_parole(&self, config: &ManagerConfig) -> bool {
        self.is_ranked() && self.record.counters.corrupt >= config.parole_after
    }

    pub(super) fn is_quarantined(&self, config: &ManagerConfig) -> bool {
        self.is_ranked() && self.record.counters.corrupt >= config.quarantine_after
    }

    pub(super) fn is_ranked_too_low(&self, config: &ManagerConfig, now: Duration) -> bool {
        self.is_ranked() && self.record.score.at(config, now) < config.score_needed
    }

    pub(super) fn capacity(&self, config: &ManagerConfig) -> u32 {
        match self.kind {
            PeerKind::Origin => config.leases_per_origin,
            PeerKind::Peer if self.is_on_parole(config) => 1,
            PeerKind::Peer => config.leases_per_peer,
        }
    }

    /// Time of the next probe, if the peer waits for one.
    pub(super) fn probe_due(&self, config: &ManagerConfig, now: Duration) -> Option<Duration> {
        let waits = !self.is_probed && !self.is_quarantined(config) && self.is_ranked_too_low(config, now);
        self.record.probe.filter(|_| waits).map(|probe| probe.due)
    }

    pub(super) fn reward(&mut self, config: &ManagerConfig, now: Duration) {
        if self.is_ranked() {
            self.record.score.change(config.reward, config, now);
            if !self.is_ranked_too_low(config, now) {
                self.record.probe = None;
            }
        }
    }

    pub(super) fn penalize(
        &mut self,
        fault: PeerFault,
        was_probe: bool,
        config: &ManagerConfig,
        now: Duration,
    ) {
        self.record.count(fault);
        if self.is_ranked() {
            self.record.score.change(-fault.penalty(config), config, now);
            self.record.wait(was_probe, config, now);
        }
    }
}
