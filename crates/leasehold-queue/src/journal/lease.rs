//! Lease on the journal, `journal/0/lease.json`: its holder is the broker.
//!
//! It follows the rules of every [lease](crate::lease), and has more fields:
//!
//! | field | content |
//! | --- | --- |
//! | `snapshot` | position in the log after which replay begins: the end of the newest snapshot |
//! | `floor` | first commit that may not be deleted: a broker begins there or later (rule B7) |
//! | `trusted_until` | latest time at which an earlier holder may still trust its lease (rule C2) |
//! | `requires` | record kinds that a broker must understand |
//! | `host`, `pid` | holder, for messages to people |
//! | `address` | address at which the holder accepts requests of other processes |
//!
//! A takeover writes all of them together with the new epoch, in one conditional put. A corrupt lease is never replaced: the
//! deleted part of the log cannot be told without `snapshot`.

use leasehold_core::journal::{LogPosition, Seq};
use leasehold_core::limits::JOURNAL_LEASE_TTL;
use leasehold_core::{
    Error, HexName, Holder, Kind, Lease, Now, Reason, Result, StoreTime, WorkerId, WriteId, keys,
};
use leasehold_store::host::HostProcess;
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, HostExt, Log};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::time::Duration;

use super::damage::missing_lease;
use crate::lease::{HeldLease, Leases, Renewed, Taken, read_lease};
use leasehold_broker::BrokerAddress;

/// Field of the lease that outlives its holders (rule C2).
const TRUSTED_UNTIL: &str = "trusted_until";

/// Time limit of a release: a process that ends waits for it.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Record kinds that this program understands.
const KINDS: [&str; 15] = [
    "archive",
    "submit",
    "heard",
    "claim",
    "complete",
    "fail",
    "snooze",
    "release",
    "stop",
    "cancel",
    "reschedule",
    "retry",
    "timeout",
    "expire",
    "purge",
];

/// Fields of the lease on the journal beside those of every lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalFields {
    /// Position in the log after which replay begins.
    #[serde(default)]
    pub(crate) snapshot: LogPosition,
    /// First commit that may not be deleted.
    #[serde(default)]
    pub(crate) floor: Seq,
    /// Latest time at which an earlier holder may still trust its lease.
    pub(crate) trusted_until: StoreTime,
    /// Record kinds that a broker must understand.
    #[serde(default)]
    pub(crate) requires: BTreeSet<String>,
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// Address at which the broker accepts requests; none if the broker has no transport. Then it is written as null: a field
    /// that is left out keeps the value of the holder before.
    #[serde(default)]
    pub(crate) address: Option<BrokerAddress>,
}

impl JournalFields {
    /// Fields of a journal without commits.
    fn new(process: HostProcess) -> Self {
        let trusted_until = StoreTime::from_millis(0);
        let HostProcess { host, pid } = process;
        let (snapshot, floor, requires) = (LogPosition::START, Seq::NONE, BTreeSet::new());
        Self { snapshot, floor, trusted_until, requires, host, pid, address: None }
    }

    /// Reads the fields of a lease.
    pub(crate) fn read(lease: &Lease) -> Result<Self> {
        let corrupt = |why: String| Error::new(Kind::Corrupt, format!("`{}`: {why}", keys::JOURNAL_LEASE));
        let fields: Self = serde_json::from_value(Value::Object(lease.subject.clone()))
            .map_err(|error| corrupt(format!("not a lease on a journal: {error}")))?;
        match fields.requires.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
            Some(kind) => {
                Err(corrupt(format!("records of kind `{kind}` are not supported; upgrade leasehold")))
            }
            None => Ok(fields),
        }
    }

    /// Fields of the next holder after `found`.
    fn after(found: Option<&Lease>, process: HostProcess, address: Option<BrokerAddress>) -> Result<Self> {
        let Some(lease) = found else { return Ok(Self { address, ..Self::new(process) }) };
        let HostProcess { host, pid } = process;
        let before = Self::read(lease)?;
        // A holder that has released its lease does not trust it, and its expiry is long past.
        let carried = if breaks("trust-not-carried") { lease.expires_at } else { before.trusted_until };
        let trusted_until = carried.max(lease.expires_at);
        Ok(Self { trusted_until, host, pid, address, ..before })
    }

    fn write(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        }
    }

    /// Holder of the lease.
    pub(crate) fn holder(&self) -> HostProcess {
        HostProcess { host: self.host.clone(), pid: self.pid }
    }
}

/// Raises the time at which an earlier holder may still trust the lease. Does nothing if the field is missing: the lease is
/// corrupt then.
pub(crate) fn raise_trusted_until(lease: &mut Lease, expiry: StoreTime) {
    if let Some(field) = lease.subject.get_mut(TRUSTED_UNTIL)
        && let Ok(before) = serde_json::from_value::<StoreTime>(field.clone())
    {
        let raised = if breaks("broken-trust-not-kept") { before } else { before.max(expiry) };
        *field = Value::String(raised.to_string());
    }
}

/// The lease on the journal, held by this process.
#[derive(Debug, Clone)]
pub(crate) struct BrokerLease {
    leases: Leases,
    held: HeldLease,
    fields: JournalFields,
}

/// Outcome of an attempt to take the lease.
#[derive(Debug)]
pub(crate) enum TakenJournal {
    /// This process holds it.
    Ours(Box<BrokerLease>),
    /// Another process holds it.
    Others(Lease),
}

impl BrokerLease {
    /// Takes the lease if it is free, or if its holder is `ended`, as the kernel says on the same host.
    ///
    /// The lease of a new queue is created only if the log is empty: without its lease nothing tells where a log begins.
    ///
    /// Requests: 1 get, 1 put; for a new queue 2 gets, 1 list, 1 put. A log without a lease is listed and its lease read again before it is reported.
    pub(crate) async fn take(
        client: &Client,
        log: &Log,
        instance: &HexName,
        address: Option<&BrokerAddress>,
        ended: Option<&Lease>,
    ) -> Result<TakenJournal> {
        let holder = Holder {
            worker_id: WorkerId::checked("worker id", "broker")?,
            instance: instance.clone(),
            ttl: JOURNAL_LEASE_TTL,
        };
        let leases = Leases::new(client.clone(), holder.clone())?;
        let process = client.host().process();
        let decide = |found: Option<Lease>, now: Now, write_id: WriteId| {
            let subject = JournalFields::after(found.as_ref(), process.clone(), address.cloned())?.write();
            let has_ended = |found: &Lease| ended.is_some_and(|ended| ended.is_same_claim(found));
            let found = found
                .map(|found| if has_ended(&found) { found.released(now, write_id.clone()) } else { found });
            Ok(Lease::take(found, &subject, &holder, now, write_id))
        };
        let take_existing = || {
            leases.take_by(keys::JOURNAL_LEASE, |found, now, write_id| match found {
                None => Err(missing_lease().with_reason(Reason::Missing)),
                found => decide(found, now, write_id),
            })
        };
        let taken = match take_existing().await {
            Err(error) if error.reason() == Some(Reason::Missing) => {
                if log.is_empty().await? {
                    leases.take_by(keys::JOURNAL_LEASE, decide).await?
                } else {
                    // Another process may have created both meanwhile: the lease precedes the log, and is never deleted.
                    take_existing().await?
                }
            }
            taken => taken?,
        };
        Ok(match taken {
            Taken::Ours(held) => {
                let fields = JournalFields::read(&held.lease)?;
                TakenJournal::Ours(Box::new(Self { leases, held, fields }))
            }
            Taken::Others(lease) => TakenJournal::Others(lease),
        })
    }

    /// Epoch of this holder.
    pub(crate) fn epoch(&self) -> u64 {
        self.held.lease.epoch
    }

    /// The lease, as last confirmed.
    pub(crate) fn lease(&self) -> &Lease {
        &self.held.lease
    }

    /// Fields as last confirmed.
    pub(crate) fn fields(&self) -> &JournalFields {
        &self.fields
    }

    /// True if it is certainly still held.
    pub(crate) fn is_trusted(&self, now: Now) -> bool {
        now.is_before(self.held.lease.expires_at)
    }

    /// True if a lease that was read is this one, at any of its renewals.
    pub(crate) fn is_same_claim(&self, lease: &Lease) -> bool {
        self.held.lease.is_same_claim(lease)
    }

    /// Client of the store.
    pub(crate) fn client(&self) -> &Client {
        self.leases.client()
    }

    /// Renews the lease. Requests: 1 put.
    pub(crate) async fn renew(&mut self) -> Result<Renewed> {
        self.leases.renew(&mut self.held).await
    }

    /// Renews the lease with a new snapshot, and with the floor that follows from it: both are fixed together (rule B7); and
    /// with a kind of records that brokers must understand.
    pub(crate) async fn renew_with(
        &mut self,
        snapshot: Option<LogPosition>,
        required: Option<&str>,
    ) -> Result<Renewed> {
        let mut fields = self.fields.clone();
        if let Some(snapshot) = snapshot {
            (fields.snapshot, fields.floor) = (snapshot, snapshot.seq.next());
        }
        fields.requires.extend(required.map(str::to_owned));
        // Fields of newer programs are kept.
        let mut subject = self.held.lease.subject.clone();
        subject.extend(fields.write());
        let renewed = self.leases.renew_with(&mut self.held, &subject).await?;
        if renewed == Renewed::Kept {
            self.fields = fields;
        }
        Ok(renewed)
    }

    /// Releases the lease, so that another process can take it at once. Without an answer it is left to expire. Requests: 1
    /// put.
    pub(crate) async fn release(self) -> Result<()> {
        let client = self.leases.client().clone().with_timeout(RELEASE_TIMEOUT);
        Leases::new(client, self.leases.holder().clone())?.release(self.held).await
    }
}

/// Reads the lease. Requests: 1 get.
pub(crate) async fn read(client: &Client) -> Result<Option<Lease>> {
    read_lease(client, keys::JOURNAL_LEASE).await
}

/// Random id of this process as a holder.
pub(crate) fn new_instance(client: &Client) -> HexName {
    HexName::from_random(client.host().random_bits())
}
