//! Reading without the lease: the log is replayed into a state of this process, and followed with every read.
//!
//! A process that only reads does not become the broker. A commit that was acknowledged before a read began is in the log,
//! so that the read shows it.
//!
//! Requests: 1 get of the lease, 1 per commit since the last read, and 1 beyond the end; the first time 1 of the snapshot and
//! 1 per chunk.

use leasehold_core::journal::{JournalState, LogPosition};
use leasehold_core::{Error, Kind, Result, keys};
use leasehold_store::{Client, Followed, Log, LogReader};

use super::lease::{self, JournalFields};
use super::open::apply;
use super::snapshot::load;

/// State that follows the log.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) state: JournalState,
    reader: LogReader,
}

impl Follower {
    /// Position in the log that its state reflects.
    pub(super) fn position(&self) -> LogPosition {
        self.reader.position()
    }

    /// Begins at the snapshot that the lease names, and reads the log to its current end.
    async fn new(client: &Client, log: &Log, fields: Option<&JournalFields>) -> Result<Self> {
        let from = fields.map_or(LogPosition::START, |fields| fields.snapshot);
        let mut state = JournalState::default();
        if from != LogPosition::START {
            load(client, from, &mut state).await?;
        }
        let mut follower = Self { state, reader: log.reader(from) };
        follower.read().await?;
        Ok(follower)
    }

    /// Reads the log to its current end. Starts over if the part that it needs next may have been deleted.
    pub(super) async fn follow(follower: Option<Self>, client: &Client, log: &Log) -> Result<Self> {
        let fields = read_fields(client).await?;
        let is_usable = |follower: &Self| {
            fields.as_ref().is_none_or(|fields| follower.position().seq.next() >= fields.floor)
        };
        let followed = match follower.filter(is_usable) {
            Some(mut follower) => follower.read().await.map(|()| follower),
            None => Self::new(client, log, fields.as_ref()).await,
        };
        match followed {
            // Rule B12: what was read may have been deleted, or belong to a process that lost its lease.
            Err(error) if error.kind() == Kind::Corrupt => {
                Self::new(client, log, read_fields(client).await?.as_ref()).await
            }
            followed => followed,
        }
    }

    async fn read(&mut self) -> Result<()> {
        let state = &mut self.state;
        match self.reader.read(|commit| apply(state, &commit, |_| ())).await? {
            Followed::Current => Ok(()),
            Followed::Mismatch(error) => Err(Error::new(Kind::Corrupt, error.to_string()).because(error)),
        }
    }
}

async fn read_fields(client: &Client) -> Result<Option<JournalFields>> {
    let lease = lease::read(client).await?;
    lease.as_ref().map(JournalFields::read).transpose().map_err(|error| {
        let message = format!("{error}; restore `{}` from a backup", keys::JOURNAL_LEASE);
        Error::new(Kind::Corrupt, message)
    })
}
