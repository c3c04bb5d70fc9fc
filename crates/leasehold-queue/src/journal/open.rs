//! Becoming the broker: takes the lease, replays the log, puts a fence, confirms the lease.
//!
//! ```text
//!   lease free, expired, or its holder has ended ─▶ take it, epoch + 1 ─▶ replay ─▶ fence ─▶ renew the lease ─▶ serve
//! ```
//!
//! In a folder the kernel shows at once whether the last broker has ended. In a bucket the lease tells: one that
//! is not renewed is waited for until it expires, or until a socket of this host has refused four connections.
//!
//! Requests: 1 get and 1 put for the lease, 1 get for the manifest of the snapshot and 1 per chunk, those of [`Log::take_over`],
//! 1 put to confirm the lease; in a bucket 1 get of the lease per second of waiting; in a new queue 1 more get and 1 list.

use futures::future::{Either, select};
use leasehold_core::journal::{Commit, Fence, JournalRecord, JournalState};
use leasehold_core::limits::{JOURNAL_LEASE_RENEW_INTERVAL, JOURNAL_LEASE_TTL};
use leasehold_core::{Error, HexName, Kind, Lease, Result, StoreTime};
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, FencedLog, Followed, Log, LogHolder, LogWriter, TakeOver};
use std::pin::pin;
use std::time::Duration;

use super::broker::maintenance::SnapshotLimits;
use super::broker::superseded;
use super::commit::Linger;
use super::damage::with_way_out;
use super::home::LogHome;
use super::lease::{self, BrokerLease, JournalFields, TakenJournal, new_instance};
use super::replay::Replayed;
use super::stage::StageSetter;
use crate::lease::Renewed;
use leasehold_broker::{BrokerAddress, BrokerListener, BrokerTransport, LineChannel};

/// Longest wait for the lease of a broker that may have crashed: by then it has expired, by any clock.
const WAIT_MAX: Duration = Duration::from_secs(JOURNAL_LEASE_TTL.as_secs() + 5);
/// Pause between two reads of a lease that is waited for.
const WAIT_PAUSE: Duration = Duration::from_secs(1);
/// Time after which a new holder has taken over the log, and with it the kernel lock that shows that it lives.
const LOCKED_WITHIN: Duration = Duration::from_secs(1);

/// Time for which a process that never becomes the broker waits for one: after a broker has ended, another process takes over.
const BROKER_WAIT: Duration = Duration::from_secs(5);

/// Maximum number of times that a takeover begins again because an earlier broker changes tasks that are evicted.
const REPLAYS_MAX: u32 = 10;

/// Pause after a refused connection.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// Refused connections in a row after which a broker on this host counts as ended.
const REFUSALS_MIN: u32 = 4;
/// Minimum age of a lease whose holder counts as ended because it refuses connections: it may be about to listen.
const REFUSED_LEASE_AGE_MIN: Duration = Duration::from_secs(10);

/// Everything that a broker begins with.
pub(super) struct OpenedJournal {
    pub(super) replayed: Replayed,
    pub(super) writer: LogWriter,
    pub(super) lease: BrokerLease,
    pub(super) linger: Linger,
    pub(super) snapshots: SnapshotLimits,
}

/// Way in which a process uses a queue.
pub(super) enum OpenedQueue {
    /// It is the broker.
    Broker(Box<OpenedJournal>, Option<BrokerListener>),
    /// It is connected to the broker.
    Client(LineChannel),
}

/// Connects to the broker, or becomes the broker if there is none. A broker that cannot be reached is an error of kind
/// unavailable that names it.
pub(super) async fn open(
    client: &Client,
    home: &LogHome,
    transport: Option<&dyn BrokerTransport>,
    stage: &StageSetter,
) -> Result<OpenedQueue> {
    let instance = new_instance(client);
    let prepared = transport.map(|transport| transport.prepare(client, &instance)).transpose()?;
    let address = prepared.as_ref().map(|prepared| &prepared.address);
    let candidate = Candidate { client, log: &home.log, transport, address, instance: &instance, stage };
    let mut lease = match candidate.take_lease().await? {
        TakenOrConnected::Taken(lease) => *lease,
        TakenOrConnected::Connected(channel) => return Ok(OpenedQueue::Client(channel)),
    };
    let opened = async {
        let listener = match prepared {
            // Clients that connect before the broker serves wait for it.
            Some(prepared) => match (prepared.listen)().await {
                Ok(listener) => Some(listener),
                Err(error) => {
                    tracing::warn!(%error, "failed to listen, the broker serves its own process only");
                    None
                }
            },
            None => None,
        };
        Ok((listener, take_over(home, &mut lease, instance).await?))
    };
    match opened.await {
        Ok((listener, (replayed, writer))) => {
            let LogHome { linger, snapshots, .. } = *home;
            let journal = OpenedJournal { replayed, writer, lease, linger, snapshots };
            Ok(OpenedQueue::Broker(Box::new(journal), listener))
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

/// Connects to the broker that the lease names; none if there is none, or it cannot be reached. Requests: 1 get.
pub(super) async fn connect(client: &Client, transport: &dyn BrokerTransport) -> Result<Option<LineChannel>> {
    let Some(lease) = lease::read(client).await? else { return Ok(None) };
    let Some(address) = JournalFields::read(&lease)?.address else { return Ok(None) };
    match transport.connect(client, &address, &lease.instance).await {
        Ok(channel) => Ok(Some(channel)),
        Err(error) => {
            tracing::debug!(holder = %holder(&lease), %error, "failed to connect to the broker");
            Ok(None)
        }
    }
}

/// Connects to the broker, for a process that never becomes the broker. Requests: 1 get, and 1 for every half of a second that
/// it waits.
pub(super) async fn connect_only(
    client: &Client,
    transport: Option<&dyn BrokerTransport>,
    stage: &StageSetter,
) -> Result<OpenedQueue> {
    let no_broker = || {
        Error::new(
            Kind::Unavailable,
            "no broker of this queue can be reached, and `broker.role` of this process is `never`; start `leasehold \
             broker`, or a worker that may become the broker",
        )
    };
    let transport = transport.ok_or_else(no_broker)?;
    let began = client.host().instant();
    loop {
        if let Some(channel) = connect(client, transport).await? {
            return Ok(OpenedQueue::Client(channel));
        }
        if client.host().instant().since(began) >= BROKER_WAIT {
            return Err(no_broker());
        }
        rest(client, REFUSED_PAUSE, stage).await?;
    }
}

/// Waits, unless the broker is no longer wanted, which is an error.
async fn rest(client: &Client, pause: Duration, stage: &StageSetter) -> Result<()> {
    match select(client.host().sleep(pause), pin!(stage.unwanted())).await {
        Either::Left(_) => Ok(()),
        Either::Right(_) => {
            Err(Error::new(Kind::Unavailable, "the queue was closed while this process waited for a broker"))
        }
    }
}

/// Process that is about to be the broker, or a client of it.
struct Candidate<'a> {
    client: &'a Client,
    log: &'a Log,
    transport: Option<&'a dyn BrokerTransport>,
    /// Address at which it is going to listen.
    address: Option<&'a BrokerAddress>,
    instance: &'a HexName,
    /// Tells when the broker is no longer wanted.
    stage: &'a StageSetter,
}

enum TakenOrConnected {
    Taken(Box<BrokerLease>),
    Connected(LineChannel),
}

/// Observations of a lease that another process holds.
struct HeldObservation {
    lease: Lease,
    /// Number of refused connections in a row.
    refusals: u32,
}

impl Candidate<'_> {
    async fn take_lease(&self) -> Result<TakenOrConnected> {
        let Self { client, log, address, instance, stage, .. } = *self;
        let began = client.host().instant();
        let mut before: Option<HeldObservation> = None;
        let mut ended = None;
        loop {
            let taken = BrokerLease::take(client, log, instance, address, ended.as_ref()).await;
            let held = match taken.map_err(with_way_out)? {
                TakenJournal::Ours(lease) => return Ok(TakenOrConnected::Taken(lease)),
                TakenJournal::Others(held) => held,
            };
            let refusals = match self.connect_to(&held).await {
                HolderConnection::Connected(channel) => return Ok(TakenOrConnected::Connected(channel)),
                HolderConnection::Refused => {
                    let earlier = before.as_ref().filter(|before| before.lease.is_same_claim(&held));
                    earlier.map_or(0, |before| before.refusals) + 1
                }
                HolderConnection::Unreachable => 0,
            };
            if self.has_ended(&held, refusals).await? {
                tracing::info!(holder = %holder(&held), "broker has ended, taking over");
                ended = Some(held);
                continue;
            }
            let waited = client.host().instant().since(began);
            let is_alive = log.holder_is_alive().await?;
            let is_renewed = before.as_ref().is_some_and(|before| before.lease.write_id != held.write_id);
            // A broker that has just taken the lease, or is closing, refuses connections for a moment.
            if refusals == 0 && (is_alive == Some(true) || is_renewed) || waited >= WAIT_MAX {
                return Err(held_by(&held));
            }
            if before.is_none() && refusals == 0 && is_alive.is_none() {
                let (holder, until) = (holder(&held), held.expires_at);
                tracing::warn!(%holder, %until, "waiting for the lease of another broker to expire");
            }
            let pause = if refusals > 0 { REFUSED_PAUSE } else { WAIT_PAUSE };
            before = Some(HeldObservation { lease: held, refusals });
            rest(client, pause, stage).await?;
        }
    }

    async fn connect_to(&self, held: &Lease) -> HolderConnection {
        let address = JournalFields::read(held).ok().and_then(|fields| fields.address);
        let Some((transport, address)) = self.transport.zip(address) else {
            return HolderConnection::Unreachable;
        };
        match transport.connect(self.client, &address, &held.instance).await {
            Ok(channel) => HolderConnection::Connected(channel),
            Err(error) if error.kind() == Kind::Lost => HolderConnection::Refused,
            Err(error) => {
                tracing::debug!(holder = %holder(held), %error, "failed to connect to the broker");
                HolderConnection::Unreachable
            }
        }
    }

    /// True if the holder of a lease has certainly stopped serving: by the kernel's lock on the log in a folder, and by
    /// refused connections in a bucket.
    async fn has_ended(&self, held: &Lease, refusals: u32) -> Result<bool> {
        let now = self.client.known_now()?;
        Ok(match self.log.holder_is_alive().await? {
            Some(true) => false,
            // A process that has just taken the lease is about to take over the log.
            Some(false) => now.is_past(held.updated_at.plus(LOCKED_WITHIN)),
            None => refusals >= REFUSALS_MIN && now.is_past(held.updated_at.plus(REFUSED_LEASE_AGE_MIN)),
        })
    }
}

/// Outcome of an attempt to connect to the holder of a lease.
enum HolderConnection {
    Connected(LineChannel),
    /// It is on this host, and does not listen.
    Refused,
    Unreachable,
}

/// Replays the log and puts the fence, while the lease is renewed beside it; then confirms the lease.
async fn take_over(
    home: &LogHome,
    lease: &mut BrokerLease,
    instance: HexName,
) -> Result<(Replayed, LogWriter)> {
    let mut replayed = Replayed::default();
    let is_early = breaks("lease-confirmed-early") && lease.renew().await? == Renewed::Kept;
    let fenced = fence(home, lease, instance, &mut replayed).await?;
    // Sent only now: an earlier renewal says nothing about the moment of the fence (rules B2 and B3).
    let confirmed =
        fenced.confirm(|| async { Ok(is_early || lease.renew().await? == Renewed::Kept) }).await?;
    Ok((replayed, confirmed.ok_or_else(superseded)?))
}

async fn fence(
    home: &LogHome,
    lease: &mut BrokerLease,
    instance: HexName,
    replayed: &mut Replayed,
) -> Result<FencedLog> {
    let client = lease.client().clone();
    let JournalFields { snapshot, trusted_until, .. } = *lease.fields();
    let holder = LogHolder { epoch: lease.epoch(), instance };
    let fence = || Ok(Fence { trusted_until, at: client.known_now()?.latest_known() });
    let taking = async {
        *replayed = Replayed::load(&client, snapshot, home.snapshots.resident_bytes).await?;
        replay(&client, &home.log, &holder, fence, replayed).await
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

/// Replays the log and puts the fence. A takeover reads without a pause, so a log that changes evicted tasks is read to its
/// current end before it; a commit of an earlier broker that changes one after that ends the takeover, which begins again.
async fn replay(
    client: &Client,
    log: &Log,
    holder: &LogHolder,
    fence: impl Fn() -> Result<Fence> + Send + Sync,
    replayed: &mut Replayed,
) -> Result<TakeOver> {
    for _ in 0..REPLAYS_MAX {
        if replayed.state.evicted() > 0 {
            let mut reader = log.reader(replayed.position);
            match replayed.read_on(client, &mut reader, Some(holder.epoch)).await? {
                Followed::Current => {}
                Followed::Mismatch(error) => return Ok(TakeOver::Mismatch(error)),
            }
        }
        let mut needs_chunk = false;
        let taken = log.take_over(holder, replayed.position, &fence, |commit| {
            if replayed.state.commit_needs(&commit.records).is_some() {
                needs_chunk = true;
                return Err(Error::new(Kind::Unavailable, "another broker writes to the journal; retry"));
            }
            replayed.apply(&commit)
        });
        match taken.await {
            Err(_) if needs_chunk => {}
            taken => return taken,
        }
    }
    Err(Error::new(Kind::Unavailable, "another broker writes to the journal; retry"))
}

/// Applies a commit to the state. Calls `on_record` with each record before it is applied.
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
