//! Finding inconsistencies: tasks without an index entry, entries without a task, corrupt objects under every prefix.
//!
//! Every finding has one of three classes:
//!
//! | class | example | resolved by |
//! | --- | --- | --- |
//! | transient | the entry of a submit that was killed, within its grace period | running workers, by the time given |
//! | repair | a task whose entry was deleted by hand | `check` with `repair`, which writes the entry |
//! | corrupt | a record that cannot be read | an operator, with [`ObjectQueue::quarantine`] |
//!
//! Objects change while they are checked. Entries are listed before tasks are read, so an object that does not match
//! is read again, and changes in progress are not reported.
//!
//! Requests: 1 list per thousand objects of every prefix, at least 14; 1 get per object that has a body; 2 more gets
//! per entry that no task requires. With `repair`, those of the repairs.

use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::{Entry, Kind, Result, Status, StoreTime, TaskId, keys};
use leasehold_store::Purpose;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::connect::ObjectQueue;
use crate::discover::IndexHit;
use crate::inspect::READS_AT_ONCE;
use crate::lease::CORRUPT_AGE_MIN;
use crate::meta_cache::Intent;
use crate::objects::{self, ObjectKind};
use crate::sweep::{Swept, is_valid_inbox_entry};
use crate::tasks::TaskSnapshot;

/// Time within which running workers clean up: they check every due entry each minute, and the inbox of a crashed worker
/// within four.
const CLEANED_WITHIN: Duration = Duration::from_mins(5);

/// Maximum time until running workers check a transient entry; one that they check later is left to a repair.
const TRANSIENT_MAX: Duration = Duration::from_hours(24);

/// Time after which a corrupt notification object (bell) is reported. The next submit overwrites it, so a queue
/// without a submit for so long is not in use.
const BELL_CORRUPT_MAX: Duration = Duration::from_hours(24);

/// Maximum duration of a probe.
const PROBE_MAX: Duration = Duration::from_hours(24);

/// Result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Tasks that were read.
    pub tasks: u64,
    /// Index entries that were listed.
    pub entries: u64,
    /// Other objects that were listed: leases, idempotency records, artifacts, notification objects.
    pub others: u64,
    /// Keys of tasks without an index entry. A repair writes it.
    pub uncovered: Vec<String>,
    /// Index entries that no task requires and that no worker has removed in time. A repair removes them. In JSON: `dangling`.
    #[serde(rename = "dangling")]
    pub unneeded: Vec<String>,
    /// Objects that a killed process has left: `doctor`, the creation of the queue, a broker. A repair deletes them.
    pub leftover: Vec<String>,
    /// Objects that need a decision by an operator.
    pub corrupt: Vec<CorruptObject>,
    /// Transient objects: running workers remove or replace them. In JSON: `healing`.
    #[serde(rename = "healing")]
    pub transient: Vec<TransientObject>,
    /// Number of uncovered, unneeded and leftover objects that were repaired: all of them, or none.
    pub repaired: u64,
}

/// An object that needs a decision by an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CorruptObject {
    /// Its key.
    pub key: String,
    /// Description of the fault.
    pub reason: String,
    /// Way to remove it.
    pub remedy: Remedy,
}

/// Remedy for a corrupt object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// `leasehold quarantine`.
    Quarantine,
    /// `leasehold artifact prune`.
    Prune,
    /// A newer version of Leasehold, which can read it.
    Update,
    /// A backup: other parts of the queue depend on it.
    Restore,
    /// The tools of the store: this program cannot read or address the object.
    StoreTools,
}

/// Transient object: running workers remove or replace it by the given time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TransientObject {
    /// Its key.
    pub key: String,
    /// Time by which running workers have removed or replaced it.
    pub by: StoreTime,
    /// Cause.
    pub reason: &'static str,
}

/// Result of a closer check of one object.
enum Finding {
    Fine,
    Transient(StoreTime, &'static str),
    Repairable,
    Corrupt(String, Remedy),
}

impl Checked {
    /// Number of inconsistencies that a repair removes, or has removed.
    #[must_use]
    pub fn repairable(&self) -> u64 {
        (self.uncovered.len() + self.unneeded.len() + self.leftover.len()) as u64
    }

    fn corrupt(&mut self, key: String, reason: String, remedy: Remedy) {
        self.corrupt.push(CorruptObject { key, reason, remedy });
    }
}

impl ObjectQueue {
    /// Reads every object of the queue and reports inconsistencies. With `repair`, writes missing entries and removes
    /// those that no task requires, by the rules of the index; refused without `queue.json`. A task is covered if its
    /// required entry exists, or an older one that is due no later.
    pub async fn check(&self, repair: bool) -> Result<Checked> {
        let mut checked = Checked::default();
        if repair {
            // Always read again: by an outdated number of shards the entries of all tasks would look unneeded.
            self.refresh_meta().await?;
            self.ensure_allowed(Intent::Change).await?;
        }
        // Entries first: a task that changes in between has left an entry that was listed.
        let entries = self.all_entries(&mut checked).await?;
        let (mut required, mut suspects) = (BTreeSet::new(), Vec::new());
        let mut keys = std::pin::pin!(self.task_keys());
        while let Some(key) = keys.try_next().await? {
            let Some(loaded) = self.checked_task(&key, &mut checked).await? else { continue };
            let Some(entry) = loaded.task.entry() else { continue };
            let existing = existing(&entries, entry.id);
            required.extend(
                existing.clone().filter(|existing| is_valid_inbox_entry(existing, &loaded.task)).cloned(),
            );
            if !existing.clone().any(|existing| *existing == entry) {
                // The holder of a shard or an inbox leaves the entry by which it found the task.
                let left = existing.filter(|existing| existing.covers(&entry));
                required.extend(left.max_by_key(|existing| existing.rev).cloned());
            }
            required.insert(entry.clone());
            if !is_covered_by(&loaded, &entry, &entries) {
                suspects.push((key, loaded, entry));
            }
        }
        self.check_suspects(suspects, repair, &mut checked).await?;
        let unneeded = entries.values().flatten().filter(|found| !required.contains(&found.entry));
        self.check_unneeded(unneeded, repair, &mut checked).await?;
        self.check_others(repair, &mut checked).await?;
        Ok(checked)
    }

    /// Checks tasks without an entry a second time: one may be covered by an entry that was written after the entries
    /// were listed.
    async fn check_suspects(
        &self,
        suspects: Vec<(String, TaskSnapshot, Entry)>,
        repair: bool,
        checked: &mut Checked,
    ) -> Result<()> {
        if suspects.is_empty() {
            return Ok(());
        }
        let entries = self.all_entries(&mut Checked::default()).await?;
        for (key, loaded, entry) in suspects {
            if is_covered_by(&loaded, &entry, &entries) || !self.is_uncovered(&loaded, &entry).await? {
                continue;
            }
            checked.uncovered.push(key);
            if repair {
                self.put_entry(Purpose::Admin, &entry).await?;
                checked.repaired += 1;
            }
        }
        Ok(())
    }

    /// Checks one task again: it may have changed, and its entries with it, since the entries were listed. A client
    /// that removes an entry has written the required one before.
    pub(crate) async fn is_uncovered(&self, loaded: &TaskSnapshot, entry: &Entry) -> Result<bool> {
        if self.client.get(Purpose::Admin, &entry.key()).await?.is_some() {
            return Ok(false);
        }
        let key = keys::task(&loaded.task.shard, &entry.id);
        let now = self.load_at(Purpose::Admin, &entry.id, key).await?;
        Ok(now.is_some_and(|now| now.version == loaded.version))
    }

    /// Checks the entries that no task required when the tasks were read.
    async fn check_unneeded(
        &self,
        entries: impl Iterator<Item = &IndexHit>,
        repair: bool,
        checked: &mut Checked,
    ) -> Result<()> {
        // Collected, because the compiler cannot tell the lifetimes of a borrowing stream of futures.
        let reads: Vec<_> =
            entries.map(|found| async move { Ok((found, self.unneeded(found, repair).await?)) }).collect();
        let mut findings = stream::iter(reads).buffered(READS_AT_ONCE);
        while let Some((found, finding)) = findings.try_next().await? {
            let key = found.entry.key();
            match finding {
                Finding::Fine | Finding::Corrupt(..) => {}
                Finding::Transient(by, reason) => checked.transient.push(TransientObject { key, by, reason }),
                Finding::Repairable if !repair => checked.unneeded.push(key),
                // Any other outcome means that it is part of a change since, which handles it.
                Finding::Repairable => {
                    if matches!(self.sweep(found).await?, Swept::Removed | Swept::Changed(_)) {
                        checked.unneeded.push(key);
                        checked.repaired += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// The state of an entry that no task requires. A repair waits only for the grace period of the index rules;
    /// without one, running workers get the time to clean up.
    async fn unneeded(&self, found: &IndexHit, repair: bool) -> Result<Finding> {
        let entry = &found.entry;
        if self.client.get(Purpose::Admin, &entry.key()).await?.is_none() {
            return Ok(Finding::Fine);
        }
        let now = self.now()?;
        if self.belongs_to_migration(entry) {
            let by = now.latest_known().plus(self.config.ahead_grace);
            return Ok(Finding::Transient(by, "a migration is running"));
        }
        let loaded = match self.load(Purpose::Admin, &entry.id).await {
            // Reported with its task.
            Err(error) if error.kind() == Kind::Corrupt => return Ok(Finding::Fine),
            loaded => loaded?,
        };
        let (grace_over, reason) = match &loaded {
            Some(loaded) if entry.rev <= loaded.task.rev => {
                if is_in_use(entry, loaded) {
                    return Ok(Finding::Fine);
                }
                let left_at = found.written_at.max(loaded.task.updated_at);
                (left_at.plus(self.config.outdated_grace), "its task has changed since")
            }
            // It stays until its task changes to a later revision, or ends.
            Some(loaded) if !loaded.task.status().is_final() => return Ok(Finding::Fine),
            Some(_) => (found.written_at.plus(self.config.ahead_grace), "its task is final"),
            None => (found.written_at.plus(self.config.ahead_grace), "its task does not exist yet"),
        };
        if repair && now.is_past(grace_over) {
            return Ok(Finding::Repairable);
        }
        let looked_at = grace_over.max(entry.minute.start());
        let by = looked_at.plus(CLEANED_WITHIN);
        let is_soon = !now.is_past(by) && looked_at.since(now.earliest) < TRANSIENT_MAX;
        let heals = is_soon || !now.is_past(grace_over);
        Ok(if heals { Finding::Transient(by, reason) } else { Finding::Repairable })
    }

    /// Checks the objects that are neither tasks nor entries.
    async fn check_others(&self, repair: bool, checked: &mut Checked) -> Result<()> {
        for prefix in keys::OTHER_PREFIXES {
            let listed = self.objects_under(Purpose::Admin, prefix);
            let reads = listed.map_ok(|listed| async move {
                let finding = self.other(&listed).await?;
                Ok((listed.key, finding))
            });
            let mut findings = std::pin::pin!(reads.try_buffered(READS_AT_ONCE));
            while let Some((key, finding)) = findings.try_next().await? {
                checked.others += 1;
                match finding {
                    Finding::Fine => {}
                    Finding::Transient(by, reason) => {
                        checked.transient.push(TransientObject { key, by, reason });
                    }
                    Finding::Corrupt(reason, remedy) => checked.corrupt(key, reason, remedy),
                    Finding::Repairable => {
                        if repair {
                            self.client.delete(Purpose::Admin, &key).await?;
                            checked.repaired += 1;
                        }
                        checked.leftover.push(key);
                    }
                }
            }
        }
        Ok(())
    }

    async fn other(&self, listed: &leasehold_store::ListEntry) -> Result<Finding> {
        let (key, kind) = (&listed.key, ObjectKind::of(&listed.key, &[]));
        let now = self.now()?;
        if kind == ObjectKind::Probe && now.is_past(listed.modified.plus(PROBE_MAX)) {
            return Ok(Finding::Repairable);
        }
        if kind == ObjectKind::Unknown {
            return Ok(Finding::Corrupt(objects::unknown(key).to_string(), objects::remedy(key, b"")));
        }
        if !kind.has_record() {
            return Ok(Finding::Fine);
        }
        let (error, remedy) = match self.client.get(Purpose::Admin, key).await {
            Ok(None) => return Ok(Finding::Fine),
            Ok(Some(object)) => match kind.verify(key, &object) {
                Ok(()) => return Ok(Finding::Fine),
                Err(error) => (error, objects::remedy(key, &object.body)),
            },
            Err(error) if error.kind() == Kind::Corrupt => (error, Remedy::StoreTools),
            Err(error) => return Err(error),
        };
        let (within, reason) = match kind {
            ObjectKind::Lease => {
                (CORRUPT_AGE_MIN + CLEANED_WITHIN, "corrupt, but its next holder replaces it")
            }
            ObjectKind::Bell => (BELL_CORRUPT_MAX, "corrupt, but the next submit overwrites it"),
            _ => return Ok(Finding::Corrupt(error.to_string(), remedy)),
        };
        let by = listed.modified.plus(within);
        Ok(if remedy == Remedy::Update || now.is_past(by) {
            Finding::Corrupt(error.to_string(), remedy)
        } else {
            Finding::Transient(by, reason)
        })
    }

    async fn all_entries(&self, checked: &mut Checked) -> Result<EntriesByTask> {
        let mut all = EntriesByTask::new();
        for root in keys::ENTRY_PREFIXES {
            let mut entries = std::pin::pin!(self.objects_under(Purpose::Admin, root));
            while let Some(listed) = entries.try_next().await? {
                if let Some(entry) = Entry::parse(&listed.key) {
                    checked.entries += 1;
                    all.entry(entry.id).or_default().push(IndexHit { entry, written_at: listed.modified });
                } else {
                    let (reason, remedy) = (objects::unknown(&listed.key), objects::remedy(&listed.key, b""));
                    checked.corrupt(listed.key, reason.to_string(), remedy);
                }
            }
        }
        Ok(all)
    }

    async fn checked_task(&self, key: &str, checked: &mut Checked) -> Result<Option<TaskSnapshot>> {
        match self.load_listed(key).await {
            Ok(loaded) => {
                checked.tasks += u64::from(loaded.is_some());
                Ok(loaded)
            }
            Err(error) if error.kind() == Kind::Corrupt => {
                let remedy = self.task_remedy(key).await?;
                checked.corrupt(key.to_owned(), error.to_string(), remedy);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Remedy for a corrupt task. Requests: 1 get.
    async fn task_remedy(&self, key: &str) -> Result<Remedy> {
        if keys::check_key(key).is_err() {
            return Ok(Remedy::StoreTools);
        }
        match self.client.get(Purpose::Admin, key).await {
            Err(error) if error.kind() == Kind::Corrupt => Ok(Remedy::StoreTools),
            read => Ok(objects::remedy(key, &read?.map(|object| object.body).unwrap_or_default())),
        }
    }
}

/// True if an entry is valid for its task, or covers it: the entry by which a worker has claimed a task stays until
/// the task is settled if the worker holds the shard.
fn is_in_use(entry: &Entry, loaded: &TaskSnapshot) -> bool {
    let task = &loaded.task;
    task.entry().is_some_and(|required| {
        required == *entry || task.status() == Status::Running && entry.covers(&required)
    }) || is_valid_inbox_entry(entry, task)
}

type EntriesByTask = BTreeMap<TaskId, Vec<IndexHit>>;

fn existing(entries: &EntriesByTask, id: TaskId) -> impl Iterator<Item = &Entry> + Clone {
    entries.get(&id).into_iter().flatten().map(|found| &found.entry)
}

/// True if one of these entries covers a task. A task that is being moved between two shards is covered by its old
/// entry, through its forwarding marker.
fn is_covered_by(loaded: &TaskSnapshot, required: &Entry, entries: &EntriesByTask) -> bool {
    existing(entries, required.id).any(|existing| {
        let in_place = existing.at_location(required.location.clone());
        if loaded.is_in_marker() { in_place.covers(required) } else { existing.covers(required) }
    })
}
