//! The numbers by which leases on pieces are given.

use std::time::Duration;

use crate::error::{Error, Result};

/// How a [`PieceLeaseManager`](super::PieceLeaseManager) decides. The defaults are the ones documented in
/// `docs/protocol/pieces.md`; whoever changes them is checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagerConfig {
    /// Most leases that a peer holds at once.
    pub leases_per_peer: u32,
    /// Most leases, which are runs, that the origin holds at once.
    pub leases_per_origin: u32,
    /// Shortest lease.
    pub lease_min: Duration,
    /// Longest lease without progress.
    pub lease_max: Duration,
    /// A lease lasts so many times what its bytes should take at the measured rate.
    pub lease_factor: f64,
    /// Without a measured rate: so long, and [`lease_per_mib`](Self::lease_per_mib) for each MiB.
    pub lease_first: Duration,
    /// See [`lease_first`](Self::lease_first).
    pub lease_per_mib: Duration,
    /// A piece whose bytes are all here cannot expire for so long.
    pub verifying: Duration,
    /// The score of a peer of which nothing is known, and towards which all scores go with time.
    pub score_start: f64,
    /// No score is below this.
    pub score_floor: f64,
    /// No score is above this.
    pub score_ceiling: f64,
    /// A peer with less gets no leases but probes. Exactly this much is enough.
    pub score_needed: f64,
    /// What a verified piece adds.
    pub reward: f64,
    /// What a failure takes.
    pub failure_penalty: f64,
    /// What an expiry takes.
    pub expiry_penalty: f64,
    /// What corrupt data takes.
    pub corrupt_penalty: f64,
    /// What is left of the distance to [`score_start`](Self::score_start) after an hour.
    pub decay_per_hour: f64,
    /// How long a peer with too low a score waits for its first probe; each probe that fails doubles it.
    pub probe_min: Duration,
    /// Longest wait for a probe.
    pub probe_max: Duration,
    /// From so many corrupt pieces on, a peer holds one lease at a time.
    pub parole_after: u32,
    /// From so many corrupt pieces on, a peer holds none.
    pub quarantine_after: u32,
    /// So many of the first pieces are picked by chance.
    pub random_first: u32,
    /// The end game begins when no more pieces than this are outstanding, all of them leased.
    pub endgame_pieces: u32,
    /// A holder that is more than so many times slower than an idle peer loses its piece to it.
    pub slower_than_idle: f64,
    /// A holder that is more than so many times slower than any peer with room loses its piece to it.
    pub slower_than_any: f64,
    /// How much the newest measurement of a rate counts against all before it.
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
    /// Refuses numbers that would stop a fetch or make scores meaningless.
    pub fn check(&self) -> Result<()> {
        self.check_counts()?;
        self.check_times()?;
        self.check_scores()?;
        self.check_rates()
    }

    fn check_counts(&self) -> Result<()> {
        need(self.leases_per_peer > 0, "leases per peer", "at least 1")?;
        need(self.leases_per_origin > 0, "leases of the origin", "at least 1")?;
        need(self.parole_after > 0, "corrupt pieces until parole", "at least 1")?;
        need(
            self.quarantine_after >= self.parole_after,
            "corrupt pieces until quarantine",
            "not before parole",
        )
    }

    fn check_times(&self) -> Result<()> {
        need(!self.lease_min.is_zero(), "the shortest lease", "longer than nothing")?;
        need(self.lease_min <= self.lease_max, "the longest lease", "at least the shortest")?;
        need(!self.probe_min.is_zero(), "the first wait for a probe", "longer than nothing")?;
        need(self.probe_min <= self.probe_max, "the longest wait for a probe", "at least the first")?;
        need(!self.verifying.is_zero(), "the time to verify", "longer than nothing")
    }

    fn check_scores(&self) -> Result<()> {
        need(self.score_floor.is_finite() && self.score_floor > 0.0, "the lowest score", "above 0")?;
        need(
            self.score_ceiling.is_finite() && self.score_ceiling >= self.score_floor,
            "the highest score",
            "at least the lowest",
        )?;
        let scores = self.score_floor..=self.score_ceiling;
        need(scores.contains(&self.score_start), "the first score", "between lowest and highest")?;
        // Were it above the first score, every peer would begin with a probe.
        let needed = self.score_needed.is_finite() && self.score_needed <= self.score_start;
        need(needed, "the score needed", "at most the first one")?;
        for (change, name) in [
            (self.reward, "the reward"),
            (self.failure_penalty, "the penalty of a failure"),
            (self.expiry_penalty, "the penalty of an expiry"),
            (self.corrupt_penalty, "the penalty of corrupt data"),
        ] {
            need(change.is_finite() && change >= 0.0, name, "a number from 0 on")?;
        }
        need((0.0..=1.0).contains(&self.decay_per_hour), "the decay per hour", "between 0 and 1")
    }

    fn check_rates(&self) -> Result<()> {
        need(
            self.lease_factor.is_finite() && self.lease_factor >= 1.0,
            "the factor of a lease",
            "at least 1",
        )?;
        need(
            self.slower_than_idle.is_finite() && self.slower_than_idle >= 1.0,
            "slower than idle",
            "at least 1",
        )?;
        let any = self.slower_than_any.is_finite() && self.slower_than_any >= self.slower_than_idle;
        need(any, "slower than any", "at least slower than idle")?;
        need(self.rate_weight > 0.0 && self.rate_weight <= 1.0, "the weight of a rate", "above 0, at most 1")
    }
}

fn need(holds: bool, what: &str, wanted: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::invalid(format!("{what} must be {wanted}"))) }
}
