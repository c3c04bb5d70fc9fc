//! Check of a journal: reads every part of it, and reports all that are missing or corrupt.
//!
//! It writes nothing and guesses nothing: tasks are counted only as far as the log can be replayed. Parts are replaced while
//! they are read, so a finding counts only if the lease still names the same snapshot afterwards.
//!
//! Requests: 2 gets of the lease, 1 of the snapshot, 1 per chunk, 1 per commit after the snapshot, and 1 list per thousand of
//! them. In a folder the log is read from its segments.

use leasehold_core::journal::snapshot::decode_chunk;
use leasehold_core::journal::{ChunkRef, JournalState, LogPosition, SnapshotManifest};
use leasehold_core::{Error, Kind, Result, keys};

use super::JournalQueue;
use super::damage::remedy;
use super::follow::read_fields;
use super::lease::JournalFields;
use super::open::apply;
use super::snapshot::{read, read_manifest};
use crate::check::{Checked, CorruptObject};

/// Maximum number of times that a check starts over.
const STARTS_MAX: u32 = 3;

impl JournalQueue {
    /// Reads every part of the journal, and reports those that are missing or corrupt.
    pub(super) async fn check_parts(&self) -> Result<Checked> {
        for _ in 0..STARTS_MAX {
            let fields = match self.read_lease().await {
                Ok(fields) => fields,
                Err(error) => return corrupt_lease(error),
            };
            let from = fields.map_or(LogPosition::START, |fields| fields.snapshot);
            let checked = self.check_from(from).await?;
            let is_current = match self.read_lease().await? {
                Some(fields) => fields.snapshot == from,
                None => from == LogPosition::START,
            };
            if checked.corrupt.is_empty() || is_current {
                return Ok(checked);
            }
        }
        let message = "snapshots of the journal are replaced before they can be checked; retry";
        Err(Error::new(Kind::Unavailable, message))
    }

    async fn read_lease(&self) -> Result<Option<JournalFields>> {
        read_fields(&self.client, &self.broker.home().log).await
    }

    async fn check_from(&self, from: LogPosition) -> Result<Checked> {
        let (mut checked, mut state) = (Checked { others: 1, ..Checked::default() }, JournalState::default());
        if from != LogPosition::START {
            self.check_snapshot(from, &mut state, &mut checked).await?;
        }
        let is_complete = checked.corrupt.is_empty();
        // Without the whole snapshot no record can be applied; the commits are read nevertheless.
        let on_commit = |commit| if is_complete { apply(&mut state, &commit, |_| ()) } else { Ok(()) };
        for fault in self.broker.home().log.check(from, on_commit).await? {
            checked.corrupt.push(finding(fault.key, &fault.error));
        }
        checked.tasks = state.len() as u64;
        Ok(checked)
    }

    /// Loads the snapshot, and reports its missing and corrupt parts.
    async fn check_snapshot(
        &self,
        from: LogPosition,
        state: &mut JournalState,
        checked: &mut Checked,
    ) -> Result<()> {
        checked.others += 1;
        let manifest = match read_manifest(&self.client, from).await {
            Err(error) => return checked.add(keys::journal_snapshot(from.seq), error),
            Ok(manifest) => manifest,
        };
        let SnapshotManifest { chunks, .. } = manifest;
        for chunk in chunks {
            checked.others += 1;
            if let Err(error) = self.check_chunk(&chunk, state).await {
                checked.add(keys::journal_chunk(chunk.name), lost_tasks(&chunk, error))?;
            }
        }
        Ok(())
    }

    async fn check_chunk(&self, chunk: &ChunkRef, state: &mut JournalState) -> Result<()> {
        let key = keys::journal_chunk(chunk.name);
        let tasks = decode_chunk(format!("`{key}`"), &read(&self.client, &key).await?, chunk)?;
        tasks.into_iter().try_for_each(|task| state.insert(task))
    }
}

/// Adds the number of tasks of a chunk to its error.
fn lost_tasks(chunk: &ChunkRef, error: Error) -> Error {
    if error.kind() != Kind::Corrupt {
        return error;
    }
    let (tasks, first) = (chunk.tasks, chunk.first);
    Error::new(Kind::Corrupt, format!("{error}; it has the {tasks} tasks from id {first} on"))
}

fn corrupt_lease(error: Error) -> Result<Checked> {
    let mut checked = Checked { others: 1, ..Checked::default() };
    checked.add(keys::JOURNAL_LEASE.to_owned(), error)?;
    Ok(checked)
}

fn finding(key: String, error: &Error) -> CorruptObject {
    CorruptObject { key, reason: error.to_string(), remedy: remedy(error) }
}

impl Checked {
    /// Adds the finding of a corrupt part; any other error ends the check.
    fn add(&mut self, key: String, error: Error) -> Result<()> {
        if error.kind() != Kind::Corrupt {
            return Err(error);
        }
        self.corrupt.push(finding(key, &error));
        Ok(())
    }
}
