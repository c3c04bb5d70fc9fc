//! The command `manager`: cost of assigning pieces to peers, over whole transfers in simulated time.
//!
//! Every peer has a random three quarters of the pieces, and one in fifty pieces fails; the origin has all
//! pieces. Peers ask as soon as they have capacity, and a second later if they got nothing. Only the
//! manager's answers are timed: nothing is fetched.

use anyhow::ensure;
use leasehold_core::piece::manager::{
    FailureKind, LeaseRequest, PeerId, PeerKind, PieceCompletion, PieceLease, PieceLeaseManager, PieceResult,
};
use leasehold_core::piece::{ManagerConfig, PieceCut, PieceMap, PieceOrder};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use crate::args;
use crate::histogram::Histogram;
use crate::memory;
use crate::report::BenchReport;
use crate::round::cpu_time;

const PIECE_BYTES: u32 = 1_024 * 1_024;
const RUN_BYTES_MAX: u64 = 16 * 1_024 * 1_024;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Measurements over all transfers.
#[derive(Default)]
pub(crate) struct TransferMeasurement {
    pub(crate) requests: Histogram,
    pub(crate) completions: Histogram,
    pub(crate) request_max: Duration,
    /// Maximum processor time of a request: on a busy machine the longest wait says more about the machine.
    pub(crate) request_cpu_max: Duration,
    pub(crate) request_count: u64,
    pub(crate) rejected: u64,
    pub(crate) scanned: u64,
    pub(crate) duplicates: u64,
    pub(crate) overtaken: u64,
    pub(crate) seconds: f64,
    /// Memory before the first manager was created; the peak follows.
    pub(crate) memory_before: u64,
    pub(crate) memory_peak: u64,
}

pub(crate) fn run(args: &args::ManagerArgs) -> anyhow::Result<()> {
    let mut measured =
        TransferMeasurement { memory_before: memory::peak()?, ..TransferMeasurement::default() };
    let began = Instant::now();
    for seed in 1..=u64::from(args.rounds) {
        Transfer::new(args, seed)?.run(&mut measured)?;
    }
    measured.seconds = began.elapsed().as_secs_f64();
    measured.memory_peak = memory::peak()?;
    BenchReport::manager(args, &measured);
    Ok(())
}

/// Event of a participant at a time: it asks, or a piece of its lease ends.
type TransferEvent = Reverse<(Duration, usize, Option<(u64, u32)>)>;

/// One transfer.
struct Transfer {
    manager: PieceLeaseManager,
    haves: Vec<(PeerId, PieceMap)>,
    random_state: u64,
    events: BinaryHeap<TransferEvent>,
    leases: Vec<PieceLease>,
}

impl Transfer {
    fn new(args: &args::ManagerArgs, seed: u64) -> anyhow::Result<Self> {
        let cut = PieceCut::new(u64::from(args.pieces) * u64::from(PIECE_BYTES), PIECE_BYTES)?;
        let manager = PieceLeaseManager::new(cut, ManagerConfig::default(), seed)?;
        let (haves, leases) = (Vec::new(), Vec::new());
        let mut transfer = Self { manager, haves, random_state: seed, events: BinaryHeap::new(), leases };
        transfer.join("bucket".into(), PeerKind::Origin, PieceMap::all(args.pieces))?;
        for number in 0..args.peers {
            let mut have = PieceMap::all(args.pieces);
            for piece in 0..args.pieces {
                if transfer.one_in(4) {
                    have.remove(piece);
                }
            }
            transfer.join(format!("peer-{number}"), PeerKind::Peer, have)?;
        }
        Ok(transfer)
    }

    fn join(&mut self, name: String, kind: PeerKind, have: PieceMap) -> anyhow::Result<()> {
        let id = PeerId::from(name);
        self.manager.add_peer(id.clone(), kind, have.clone(), Duration::ZERO)?;
        self.events.push(Reverse((Duration::ZERO, self.haves.len(), None)));
        self.haves.push((id, have));
        Ok(())
    }

    fn run(mut self, measured: &mut TransferMeasurement) -> anyhow::Result<()> {
        while !self.manager.is_done() {
            let Some(Reverse((now, who, ending))) = self.events.pop() else { break };
            if let Some((lease, piece)) = ending {
                self.complete(lease, piece, now, measured);
            }
            self.request(who, ending.is_none(), now, measured);
        }
        ensure!(self.manager.is_done(), "the transfer did not end");
        let stats = self.manager.stats(Duration::ZERO);
        measured.scanned += stats.examined;
        measured.duplicates += stats.duplicates;
        measured.overtaken += stats.overtaken;
        Ok(())
    }

    fn request(&mut self, who: usize, is_asking: bool, now: Duration, measured: &mut TransferMeasurement) {
        let (peer, have) = self.haves[who].clone();
        let order = PieceOrder::Rarest;
        let request = LeaseRequest { peer, have, max_leases: 4, run_bytes_max: RUN_BYTES_MAX, order };
        let (cpu, began) = (cpu_time(), Instant::now());
        let response = self.manager.request_lease(&request, now);
        let (took, cpu) = (began.elapsed(), cpu_time().saturating_sub(cpu));
        measured.requests.add(took);
        measured.request_max = measured.request_max.max(took);
        measured.request_cpu_max = measured.request_cpu_max.max(cpu);
        measured.request_count += 1;
        measured.rejected += u64::from(response.rejected.is_some());
        // At most one request per participant is queued: those with leases ask again when one ends.
        if is_asking && response.granted.is_empty() {
            self.events.push(Reverse((now + RETRY_AFTER, who, None)));
        }
        for lease in response.granted {
            self.fetch(who, lease, now);
        }
    }

    /// Peers are up to five times slower than the fastest.
    fn fetch(&mut self, who: usize, lease: PieceLease, now: Duration) {
        let pause = Duration::from_millis(400 * (1 + who as u64 % 5) + self.draw() % 400);
        let mut at = now;
        for piece in lease.pieces.clone() {
            at += pause;
            self.events.push(Reverse((at, who, Some((self.leases.len() as u64, piece)))));
        }
        self.leases.push(lease);
    }

    fn complete(&mut self, lease: u64, piece: u32, now: Duration, measured: &mut TransferMeasurement) {
        let failed = PieceResult::Failure(FailureKind::NetworkError);
        let result = if self.one_in(50) { failed } else { PieceResult::Success };
        let lease = &self.leases[usize::try_from(lease).expect("an index")];
        let completion = PieceCompletion { lease: lease.id, piece, peer: lease.peer.clone(), result };
        let began = Instant::now();
        // A lease cancelled meanwhile is refused or not needed; its fetch simply ends.
        let _ = self.manager.complete_piece(&completion, now);
        measured.completions.add(began.elapsed());
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.draw().is_multiple_of(many)
    }

    /// `SplitMix64`: a round is the same in every run.
    fn draw(&mut self) -> u64 {
        self.random_state = self.random_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random_state ^ (self.random_state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_of_any_size_end() {
        for (pieces, peers) in [(1, 1), (30, 3), (200, 20)] {
            let args = args::ManagerArgs { pieces, peers, rounds: 1, json: true };
            let mut measured = TransferMeasurement::default();
            Transfer::new(&args, 1).unwrap().run(&mut measured).unwrap();
            assert!(measured.request_count > 0 && !measured.requests.is_empty());
        }
    }
}
