//! Reading without the lease: the log is replayed into a state of this process, and followed with every read.
//!
//! A process that only reads does not become the broker. A commit that was acknowledged before a read began is in the log,
//! so that the read shows it.
//!
//! Requests: 1 get per commit since the last read, 1 beyond the end, and 1 of the lease; the first time 1 more of the lease, 1
//! of the manifest, 1 per chunk, and 1 list of the log.

use leasehold_core::journal::LogPosition;
use leasehold_core::{Error, Kind, Result};
use leasehold_store::{Client, Followed, Log, LogReader};

use super::broker::maintenance::most_resident;
use super::changes::ChangeFeed;
use super::damage::{missing_lease, with_way_out};
use super::home::LogHome;
use super::lease::{self, JournalFields};
use super::replay::Replayed;

/// Maximum number of times that a read starts over.
const STARTS_MAX: u32 = 3;

/// State that follows the log.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) replayed: Replayed,
    reader: LogReader,
    /// Snapshot at which it began.
    from: LogPosition,
    /// Bytes of encoded tasks to keep in memory.
    bytes_max: u64,
}

impl Follower {
    /// Position in the log that its state reflects.
    pub(super) fn position(&self) -> LogPosition {
        self.reader.position()
    }

    /// Begins at a snapshot, and reads the log to its current end.
    async fn new(client: &Client, home: &LogHome, from: LogPosition) -> Result<Self> {
        let bytes_max = home.snapshots.resident_bytes;
        let mut replayed = Replayed::load(client, from, bytes_max).await?;
        // One that begins at the same place reads the same changes.
        replayed.changes = ChangeFeed::new(format!("the log after commit {}", from.seq));
        let mut follower = Self { replayed, reader: home.log.reader(from), from, bytes_max };
        follower.read(client).await?;
        Ok(follower)
    }

    /// Reads the log to its current end. Starts over if the part that it needs next may have been deleted.
    pub(super) async fn follow(known: Option<Self>, client: &Client, home: &LogHome) -> Result<Self> {
        let log = &home.log;
        let (mut from, mut outcome) = match known {
            Some(mut follower) => (follower.from, follower.read(client).await.map(|()| follower)),
            None => Self::start(client, home, fields(client, log).await?.as_ref()).await,
        };
        for _ in 0..=STARTS_MAX {
            // Read after the log: commits are deleted only after the lease has a floor above them, so that a slot that was
            // absent before is the end.
            let fields = fields(client, log).await?;
            match outcome {
                Ok(follower) if follower.is_complete(fields.as_ref()) => return Ok(follower),
                Err(error) if error.kind() != Kind::Corrupt => return Err(error),
                // Rule B12: if the lease names another snapshot, what was read may have been deleted, or belong to a process
                // that lost its lease.
                Err(error) if from == snapshot(fields.as_ref()) => return Err(with_way_out(error)),
                _ => (from, outcome) = Self::start(client, home, fields.as_ref()).await,
            }
        }
        Err(Error::new(Kind::Unavailable, "commits are deleted before they can be read; retry"))
    }

    /// Begins at the snapshot that the lease names. Returns it with the outcome.
    async fn start(
        client: &Client,
        home: &LogHome,
        fields: Option<&JournalFields>,
    ) -> (LogPosition, Result<Self>) {
        let from = snapshot(fields);
        (from, Self::new(client, home, from).await)
    }

    /// True if the next commit was not deleted when it was found absent, and no newer snapshot would take less memory.
    fn is_complete(&self, fields: Option<&JournalFields>) -> bool {
        let is_large = self.replayed.state.resident_bytes() > most_resident(self.bytes_max);
        fields.is_none_or(|fields| {
            self.position().seq.next() >= fields.floor && !(is_large && fields.snapshot.seq > self.from.seq)
        })
    }

    async fn read(&mut self, client: &Client) -> Result<()> {
        match self.replayed.read_on(client, &mut self.reader, None).await? {
            Followed::Current => Ok(()),
            Followed::Mismatch(error) => Err(Error::new(Kind::Corrupt, error.to_string()).because(error)),
        }
    }
}

/// Snapshot that the lease names.
fn snapshot(fields: Option<&JournalFields>) -> LogPosition {
    fields.map_or(LogPosition::START, |fields| fields.snapshot)
}

async fn fields(client: &Client, log: &Log) -> Result<Option<JournalFields>> {
    read_fields(client, log).await.map_err(with_way_out)
}

/// Reads the lease; none if the journal has never had a broker. Requests: 1 get; without a lease 2, and 1 list.
pub(super) async fn read_fields(client: &Client, log: &Log) -> Result<Option<JournalFields>> {
    let mut lease = lease::read(client).await?;
    if lease.is_none() && !log.is_empty().await? {
        // The first broker puts its lease before its first commit.
        lease = Some(lease::read(client).await?.ok_or_else(missing_lease)?);
    }
    lease.as_ref().map(JournalFields::read).transpose()
}
