//! Parameters of the piece lease manager.

use std::time::Duration;

use crate::error::{Error, Result};

/// Parameters of a [`PieceLeaseManager`](super::PieceLeaseManager). The defaults are documented in
/// `docs/protocol/pieces.md`; other values are validated.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagerConfig {
    /// Maximum number of leases of a peer.
    pub leases_per_peer: u32,
    /// Maximum number of leases of the origin; each is a run of pieces.
    pub leases_per_origin: u32,
    /// Minimum duration of a lease.
    pub lease_min: Duration,
    /// Maximum duration of a lease without progress.
    pub lease_max: Duration,
    /// Duration of a lease, as a multiple of the time that its bytes take at the measured rate.
    pub lease_factor: f64,
    /// Duration of a lease without a measured rate, plus [`lease_per_mib`](Self::lease_per_mib) for each MiB.
    pub lease_first: Duration,
    /// Addition to [`lease_first`](Self::lease_first) for each MiB.
    pub lease_per_mib: Duration,
    /// Time for verification, during which a fully received piece cannot expire.
    pub verifying: Duration,
    /// Score of an unknown peer, to which all scores decay with time.
    pub score_start: f64,
    /// Minimum score.
    pub score_floor: f64,
    /// Maximum score.
    pub score_ceiling: f64,
    /// Score below which a peer gets only probes. Exactly this score is enough for leases.
    pub score_needed: f64,
    /// Score added by a verified piece.
    pub reward: f64,
    /// Score lost by a failure.
    pub failure_penalty: f64,
    /// Score lost by an expiry.
    pub expiry_penalty: f64,
    /// Score lost by corrupt data.
    pub corrupt_penalty: f64,
    /// Share of the distance to [`score_start`](Self::score_start) that remains after an hour.
    pub decay_per_hour: f64,
    /// Wait of a peer with too low a score before its first probe; each failed probe doubles it.
    pub probe_min: Duration,
    /// Maximum wait for a probe.
    pub probe_max: Duration,
    /// Number of corrupt pieces from which a peer holds one lease at a time.
    pub parole_after: u32,
    /// Number of corrupt pieces from which a peer holds no leases.
    pub quarantine_after: u32,
    /// Number of first pieces that are picked at random.
    pub random_first: u32,
    /// Maximum number of outstanding pieces, all of them leased, at which the end game begins.
    pub endgame_pieces: u32,
    /// Factor by which a holder must be slower than an idle peer to lose its piece to it.
    pub slower_than_idle: f64,
    /// Factor by which a holder must be slower than any peer with free capacity to lose its piece to it.
    pub slower_than_any: f64,
    /// Weight of the newest measurement of a rate against all earlier ones.
    pub rate_weight: f64,
}

impl Default for ManagerConfig {
    fn default() -> Self {
        Self {
            leases_per_peer: 4,
            leases_per_origin: 4,
            lease_min: Duration::from_secs(10),
            lease_max: Duration::from_mins(5),
            lease_factor: 8.0,
            lease_first: Duration::from_secs(4),
            lease_per_mib: Duration::from_secs(4),
            verifying: Duration::from_mins(1),
            score_start: 1.0,
            score_floor: 0.1,
            score_ceiling: 10.0,
            score_needed: 0.2,
            reward: 0.5,
            failure_penalty: 1.0,
            expiry_penalty: 0.5,
            corrupt_penalty: 2.0,
            decay_per_hour: 0.95,
            probe_min: Duration::from_secs(30),
            probe_max: Duration::from_mins(10),
            parole_after: 1,
            quarantine_after: 3,
            random_first: 4,
            endgame_pieces: 4,
            slower_than_idle: 3.0,
            slower_than_any: 10.0,
            rate_weight: 0.3,
        }
    }
}

impl ManagerConfig {
    /// Rejects values that would stop a fetch or make scores meaningless.
    pub fn check(&self) -> Result<()> {
        self.check_counts()?;
        self.check_times()?;
        self.check_scores()?;
        self.check_rates()
    }

    fn check_counts(&self) -> Result<()> {
        need(self.leases_per_peer > 0, "leases_per_peer", "at least 1")?;
        need(self.leases_per_origin > 0, "leases_per_origin", "at least 1")?;
        need(self.parole_after > 0, "parole_after", "at least 1")?;
        need(self.quarantine_after >= self.parole_after, "quarantine_after", "at least parole_after")
    }

    fn check_times(&self) -> Result<()> {
        need(!self.lease_min.is_zero(), "lease_min", "above 0")?;
        need(self.lease_min <= self.lease_max, "lease_max", "at least lease_min")?;
        need(!self.probe_min.is_zero(), "probe_min", "above 0")?;
        need(self.probe_min <= self.probe_max, "probe_max", "at least probe_min")?;
        need(!self.verifying.is_zero(), "verifying", "above 0")
    }

    fn check_scores(&self) -> Result<()> {
        need(self.score_floor.is_finite() && self.score_floor > 0.0, "score_floor", "above 0")?;
        need(
            self.score_ceiling.is_finite() && self.score_ceiling >= self.score_floor,
            "score_ceiling",
            "at least score_floor",
        )?;
        let scores = self.score_floor..=self.score_ceiling;
        need(scores.contains(&self.score_start), "score_start", "between score_floor and score_ceiling")?;
        // Above the first score, every peer would begin with a probe.
        let needed = self.score_needed.is_finite() && self.score_needed <= self.score_start;
        need(needed, "score_needed", "at most score_start")?;
        for (change, name) in [
            (self.reward, "reward"),
            (self.failure_penalty, "failure_penalty"),
            (self.expiry_penalty, "expiry_penalty"),
            (self.corrupt_penalty, "corrupt_penalty"),
        ] {
            need(change.is_finite() && change >= 0.0, name, "at least 0")?;
        }
        need((0.0..=1.0).contains(&self.decay_per_hour), "decay_per_hour", "between 0 and 1")
    }

    fn check_rates(&self) -> Result<()> {
        need(self.lease_factor.is_finite() && self.lease_factor >= 1.0, "lease_factor", "at least 1")?;
        need(
            self.slower_than_idle.is_finite() && self.slower_than_idle >= 1.0,
            "slower_than_idle",
            "at least 1",
        )?;
        let any = self.slower_than_any.is_finite() && self.slower_than_any >= self.slower_than_idle;
        need(any, "slower_than_any", "at least slower_than_idle")?;
        need(self.rate_weight > 0.0 && self.rate_weight <= 1.0, "rate_weight", "above 0 and at most 1")
    }
}

fn need(holds: bool, what: &str, wanted: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::invalid(format!("{what} must be {wanted}"))) }
}
