//! Check of a journal: reads its parts, and reports those that are missing or corrupt. In a folder it reads the log only up to its
//! first fault, and the archive only if nothing else is missing or corrupt, because only the whole log tells its objects.
//!
//! It writes nothing. Tasks are counted only as far as the log can be replayed. Parts are replaced while
//! they are read, so a finding counts only if the lease still names the same snapshot afterwards.
//!
//! Requests: 2 gets of the lease, 1 of the snapshot, 1 per chunk, 1 per commit after the snapshot, and 1 list per thousand of
//! them; 1 get per archive object, and 1 list per thousand of them. In a folder the log is read from its segments.

use futures::TryStreamExt;
use leasehold_core::journal::snapshot::decode_chunk;
use leasehold_core::journal::{ChunkRef, JournalState, LogPosition, SnapshotManifest};
use leasehold_core::limits::ARCHIVE_ORPHAN_AGE_MIN;
use leasehold_core::{Error, Kind, Result, TaskId, keys};
use leasehold_store::{List, Purpose};

use super::JournalQueue;
use super::archive::{missing_object, read_archive};
use super::damage::remedy;
use super::follow::read_fields;
use super::lease::JournalFields;
use super::open::apply;
use super::request::BrokerRequest;
use super::snapshot::{read, read_manifest};
use crate::check::{Checked, CorruptObject, Remedy};

/// Maximum number of times that a check starts over.
const STARTS_MAX: u32 = 3;

impl JournalQueue {
    /// Reads the parts of the journal, and reports those that are missing or corrupt; with `repair`, deletes objects of the
    /// archive that nothing refers to.
    pub(super) async fn check_journal(&self, repair: bool) -> Result<Checked> {
        let mut checked = self.check_parts().await?;
        if repair && checked.corrupt.is_empty() && !checked.leftover.is_empty() {
            self.delete_orphans(&mut checked).await?;
        }
        Ok(checked)
    }

    async fn check_parts(&self) -> Result<Checked> {
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
        // Only the whole log tells the objects of the archive.
        if checked.corrupt.is_empty() {
            self.check_archive(&state, &mut checked).await?;
        }
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
        state.set_archive(manifest.archive_table());
        let SnapshotManifest { chunks, .. } = manifest;
        for chunk in chunks {
            checked.others += 1;
            if let Err(error) = self.check_chunk(&chunk, state).await {
                checked.add(keys::journal_chunk(chunk.name), lost_tasks(&chunk, error))?;
            }
        }
        Ok(())
    }

    /// Reads the objects of the archive, and finds those that nothing refers to.
    async fn check_archive(&self, state: &JournalState, checked: &mut Checked) -> Result<()> {
        for object in state.archive().objects() {
            checked.others += 1;
            let read = match read_archive(&self.client, object).await {
                Ok(found) => found.map(|_| ()).ok_or_else(|| missing_object(&object.name)),
                Err(error) => Err(error),
            };
            match read {
                Ok(()) => checked.tasks += object.tasks(),
                Err(error) => {
                    let (tasks, first) = (object.tasks(), object.name.first());
                    let error = with_lost(error, tasks, first);
                    checked.add(keys::journal_archive(&object.name), error)?;
                }
            }
        }
        let pages = self.client.pages(Purpose::Admin, List::all(keys::JOURNAL_ARCHIVE));
        let mut pages = std::pin::pin!(pages);
        while let Some(page) = pages.try_next().await? {
            for entry in page.entries {
                let now = self.client.known_now()?;
                let is_old = now.is_past(entry.modified.plus(ARCHIVE_ORPHAN_AGE_MIN));
                match keys::parse_journal_archive(&entry.key) {
                    None => {
                        let reason = format!("`{}` is not the key of an archive object", entry.key);
                        let remedy = Remedy::StoreTools;
                        checked.corrupt.push(CorruptObject { key: entry.key, reason, remedy });
                    }
                    Some(name) if is_old && !state.archive().knows(&name) => checked.leftover.push(entry.key),
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Deletes objects of the archive that nothing refers to. This process has listed them and deletes them; in between, the
    /// broker, in this process or another one, proves that it is current. Its fence shows that no earlier broker can still
    /// refer to them, and the proof that no later one does.
    async fn delete_orphans(&self, checked: &mut Checked) -> Result<()> {
        let names: Vec<_> =
            checked.leftover.iter().filter_map(|key| keys::parse_journal_archive(key)).collect();
        let orphans = self.broker.ask(|answer| BrokerRequest::Orphans { names, answer }).await?;
        checked.leftover = orphans.iter().map(keys::journal_archive).collect();
        for key in &checked.leftover {
            self.client.delete(Purpose::Admin, key).await?;
            checked.repaired += 1;
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
    with_lost(error, chunk.tasks, chunk.first)
}

fn with_lost(error: Error, tasks: u64, first: TaskId) -> Error {
    if error.kind() != Kind::Corrupt {
        return error;
    }
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
