//! Becoming the broker: takes the lease, replays the log, puts a fence, confirms the lease.
//!
//! ```text
//!   lease free, expired, or its holder has ended ─▶ take it, epoch + 1 ─▶ replay ─▶ fence ─▶ renew the lease ─▶ serve
//! ```
//!
//! In a folder the kernel shows at once whether the last broker has ended. In a bucket only the lease can tell: one that is
//! not renewed is waited for until it expires.
//!
//! Requests: 1 get and 1 put for the lease, those of [`Log::take_over`], 1 put to confirm the lease.

use futures::future::{Either, select};
use leasehold_core::journal::{Commit, Fence, JournalRecord, JournalState, LogPosition};
use leasehold_core::limits::{JOURNAL_LEASE_RENEW_INTERVAL, JOURNAL_LEASE_TTL};
use leasehold_core::{Error, HexName, Kind, Lease, Result, StoreTime};
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, FencedLog, Log, LogHolder, LogWriter, TakeOver};
use std::pin::pin;
use std::time::Duration;

use super::broker::maintenance::{CommitsSince, SnapshotLimits};
use super::broker::superseded;
use super::commit::Linger;
use super::damage::with_way_out;
use super::home::LogHome;
use super::lease::{self, BrokerLease, JournalFields, TakenJournal, new_instance};
use super::snapshot::{ChunkTable, load};
use crate::lease::Renewed;

/// Longest wait for the lease of a broker that may have crashed: by then it has expired, by any clock.
const WAIT_MAX: Duration = Duration::from_secs(JOURNAL_LEASE_TTL.as_secs() + 5);
/// Pause between two reads of a lease that is waited for.
const WAIT_PAUSE: Duration = Duration::from_secs(1);
/// Time after which a new holder has taken over the log, and with it the kernel lock that shows that it lives.
const LOCKED_WITHIN: Duration = Duration::from_secs(1);

/// Everything that a broker begins with.
pub(super) struct OpenedJournal {
    pub(super) state: JournalState,
    /// Chunks of the snapshot, and those that have changed since.
    pub(super) table: ChunkTable,
    /// Commits since the snapshot.
    pub(super) since: CommitsSince,
    pub(super) writer: LogWriter,
    pub(super) lease: BrokerLease,
    pub(super) linger: Linger,
    pub(super) snapshots: SnapshotLimits,
}

/// Becomes the broker. If another process is the broker, this is an error of kind unavailable that names it.
pub(super) async fn open(client: &Client, home: &LogHome) -> Result<OpenedJournal> {
    let instance = new_instance(client);
    let mut lease = take_lease(client, &home.log, &instance).await?;
    match take_over(&home.log, &mut lease, instance).await {
        Ok((Replayed { state, table, since }, writer)) => {
            let LogHome { linger, snapshots, .. } = *home;
            Ok(OpenedJournal { state, table, since, writer, lease, linger, snapshots })
        }
        Err(error) => {
            // So that the next process need not wait for it.
            if let Err(error) = lease.release().await {
                tracing::debug!(%error, "failed to release the lease on the journal");
            }
            Err(error)
        }
    }
}

async fn take_lease(client: &Client, log: &Log, instance: &HexName) -> Result<BrokerLease> {
    let began = client.host().instant();
    let mut waited_for: Option<Lease> = None;
    let mut ended = None;
    loop {
        let held =
            match BrokerLease::take(client, log, instance, ended.as_ref()).await.map_err(with_way_out)? {
                TakenJournal::Ours(lease) => return Ok(*lease),
                TakenJournal::Others(held) => held,
            };
        let waited = client.host().instant().since(began);
        match log.holder_is_alive().await? {
            Some(true) => return Err(held_by(&held)),
            // A process that has just taken the lease is about to take over the log.
            Some(false) if client.known_now()?.is_past(held.updated_at.plus(LOCKED_WITHIN)) => {
                tracing::info!(holder = %holder(&held), "broker has ended, taking over");
                ended = Some(held);
                continue;
            }
            Some(false) => {}
            None => match &waited_for {
                None => {
                    let (holder, until) = (holder(&held), held.expires_at);
                    tracing::warn!(%holder, %until, "waiting for the lease of another broker to expire");
                }
                // It was renewed, or another process has it: its holder lives.
                Some(before) if before.write_id != held.write_id => return Err(held_by(&held)),
                Some(_) => {}
            },
        }
        if waited >= WAIT_MAX {
            return Err(held_by(&held));
        }
        waited_for = Some(held);
        client.host().sleep(WAIT_PAUSE).await;
    }
}

/// State that is replayed.
#[derive(Default)]
struct Replayed {
    state: JournalState,
    table: ChunkTable,
    since: CommitsSince,
}

impl Replayed {
    fn apply(&mut self, commit: &Commit) -> Result<()> {
        self.since.add(commit.records.len());
        let table = &mut self.table;
        apply(&mut self.state, commit, |record| table.record(record))?;
        if commit.header.fence.is_some() {
            self.table.fence(commit.header.seq, &self.state);
        }
        Ok(())
    }
}

/// Replays the log and puts the fence, while the lease is renewed beside it; then confirms the lease.
async fn take_over(log: &Log, lease: &mut BrokerLease, instance: HexName) -> Result<(Replayed, LogWriter)> {
    let mut replayed = Replayed::default();
    let is_early = breaks("lease-confirmed-early") && lease.renew().await? == Renewed::Kept;
    let fenced = fence(log, lease, instance, &mut replayed).await?;
    // Sent only now: an earlier renewal says nothing about the moment of the fence (rules B2 and B3).
    let confirmed =
        fenced.confirm(|| async { Ok(is_early || lease.renew().await? == Renewed::Kept) }).await?;
    Ok((replayed, confirmed.ok_or_else(superseded)?))
}

async fn fence(
    log: &Log,
    lease: &mut BrokerLease,
    instance: HexName,
    replayed: &mut Replayed,
) -> Result<FencedLog> {
    let client = lease.client().clone();
    let JournalFields { snapshot, trusted_until, .. } = *lease.fields();
    let holder = LogHolder { epoch: lease.epoch(), instance };
    let fence = || Ok(Fence { trusted_until, at: client.known_now()?.latest_known() });
    let taking = async {
        if snapshot != LogPosition::START {
            replayed.table = ChunkTable::new(load(&client, snapshot, &mut replayed.state).await?);
        }
        log.take_over(&holder, snapshot, fence, |commit| replayed.apply(&commit)).await
    };
    let taking = pin!(taking);
    let taken = match select(taking, pin!(keep_renewed(lease))).await {
        Either::Left((taken, _)) => taken,
        Either::Right((error, _)) => Err(error),
    };
    match taken {
        Ok(TakeOver::Fenced(fenced)) => Ok(fenced),
        Ok(TakeOver::Superseded) => Err(superseded()),
        Ok(TakeOver::Mismatch(error)) => Err(judge(lease, error).await),
        // A part of the snapshot may be missing because later holders have replaced it.
        Err(error) if error.kind() == Kind::Corrupt => Err(judge(lease, error).await),
        Err(error) => Err(error),
    }
}

/// Applies a commit to the state, and shows its records before.
pub(super) fn apply(
    state: &mut JournalState,
    commit: &Commit,
    mut on_record: impl FnMut(&JournalRecord),
) -> Result<()> {
    if let Some(Fence { trusted_until, at }) = commit.header.fence {
        if breaks("unrenewed-extended") {
            hear_all(state, at)?;
        }
        state.fence(at, trusted_until);
        return Ok(());
    }
    let lines = commit.records.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut records = lines.map(|line| {
        let record = JournalRecord::read(line)?;
        on_record(&record);
        state.apply(record)
    });
    let seq = commit.header.seq;
    records.try_for_each(|applied| applied).map_err(|error: Error| {
        Error::new(error.kind(), format!("commit {seq} of the journal: {error}")).because(error)
    })
}

/// Marks every claim as renewed: for a mutant of rule C5.
fn hear_all(state: &mut JournalState, at: StoreTime) -> Result<()> {
    let workers: Vec<_> =
        state.workers().map(|(by, tasks)| (by.clone(), tasks.iter().copied().collect())).collect();
    workers.into_iter().try_for_each(|(by, tasks)| state.apply(JournalRecord::Heard { at, by, tasks }))
}

/// Renews the lease until it is lost, and returns the error for that. A replay may take longer than the lease lasts.
async fn keep_renewed(lease: &mut BrokerLease) -> Error {
    let host = lease.client().host().clone();
    loop {
        host.sleep(JOURNAL_LEASE_RENEW_INTERVAL).await;
        match lease.renew().await {
            Ok(Renewed::Kept) => {}
            Ok(Renewed::Lost) => return superseded(),
            Err(error) => tracing::warn!(%error, "failed to renew the lease on the journal, retrying"),
        }
    }
}

/// Judges a log that does not continue the history: it is corrupt only if the lease, read afterwards, is still held (rule
/// B12).
pub(super) async fn judge(lease: &BrokerLease, mismatch: Error) -> Error {
    match lease::read(lease.client()).await {
        Ok(Some(found)) if lease.is_same_claim(&found) => with_way_out(mismatch),
        Ok(_) => superseded(),
        Err(error) => error,
    }
}

fn holder(lease: &Lease) -> String {
    match JournalFields::read(lease) {
        Ok(fields) => fields.holder().to_string(),
        Err(_) => "unknown".to_owned(),
    }
}

fn held_by(lease: &Lease) -> Error {
    let (holder, until) = (holder(lease), lease.expires_at);
    let message = format!(
        "the broker of this queue is {holder}, which holds the lease on the journal until {until}; retry when it has ended"
    );
    Error::new(Kind::Unavailable, message)
}
