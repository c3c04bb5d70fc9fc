//! Finding inconsistencies: tasks without an index entry, entries without a task, corrupt objects below every prefix.
//!
//! What a check finds is of one of three classes.
//!
//! | class | example | who does what |
//! | --- | --- | --- |
//! | *heals* | the entry of a submit that was killed, within its grace | running workers remove it, by the time given |
//! | *repair* | a task whose entry was deleted by hand | `check` with `repair` writes it |
//! | *person* | a record that cannot be read | an operator decides, [`Queue::quarantine`] carries it out |
//!
//! Objects change while they are checked. Entries are listed before tasks are read, so whatever does not fit is read
//! again, and what was in motion is not reported.
//!
//! Requests: 1 list for each thousand objects of every prefix, at least 14; 1 get for each object that has a body; 2
//! gets more for each entry that no task called for. With `repair`, those of the repairs.

use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::{Entry, Kind, Result, Status, StoreTime, TaskId, keys};
use leasehold_store::Purpose;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::connect::Queue;
use crate::discover::Found;
use crate::inspect::READS_AT_ONCE;
use crate::layout::Intent;
use crate::lease::NONSENSE_AGE_MIN;
use crate::objects::{self, ObjectKind};
use crate::sweep::{Swept, is_pointer_to};
use crate::tasks::Loaded;

/// Running workers look at every due entry each minute, and at the inbox of a dead worker within four.
const CLEANED_WITHIN: Duration = Duration::from_mins(5);

/// An entry that workers would not look at for so long is left to a repair.
const HEALS_WITHIN: Duration = Duration::from_hours(24);

/// A notification object is overwritten by the next submit: a queue without one for so long is not in use.
const RINGS_WITHIN: Duration = Duration::from_hours(24);

/// No probe lasts so long.
const PROBE_MAX: Duration = Duration::from_hours(24);

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Tasks that were read.
    pub tasks: u64,
    /// Index entries that were seen.
    pub entries: u64,
    /// Other objects that were seen: leases, idempotency records, artifacts, notification objects.
    pub others: u64,
    /// Keys of tasks without an index entry. A repair writes it.
    pub uncovered: Vec<String>,
    /// Index entries that no task calls for and that no worker has removed in time. A repair removes them.
    pub dangling: Vec<String>,
    /// Objects that a probe has left behind. A repair deletes them.
    pub leftover: Vec<String>,
    /// Objects that an operator has to decide upon.
    pub corrupt: Vec<CorruptObject>,
    /// Objects that need no attention: running workers see to them.
    pub healing: Vec<Healing>,
    /// How many of the uncovered, dangling and left over objects were repaired: all of them, or none.
    pub repaired: u64,
}

/// An object that an operator has to decide upon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CorruptObject {
    /// Its key.
    pub key: String,
    /// The fault, in words.
    pub reason: String,
    /// The way to get rid of it.
    pub remedy: Remedy,
}

/// What an operator can do about a corrupt object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// `leasehold quarantine`.
    Quarantine,
    /// `leasehold artifact prune`.
    Prune,
    /// A newer version of this program, which can read it.
    Update,
    /// The tools of the store: this program cannot read or address the object.
    StoreTools,
}

/// An object that needs no attention.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Healing {
    /// Its key.
    pub key: String,
    /// Running workers have seen to it by then.
    pub by: StoreTime,
    /// Why it is there.
    pub reason: &'static str,
}

/// The state of an object that is not obviously as it should be.
enum Finding {
    Fine,
    Heals(StoreTime, &'static str),
    Repairable,
    Corrupt(String, Remedy),
}

impl Checked {
    /// How many inconsistencies a repair removes, or has removed.
    #[must_use]
    pub fn repairable(&self) -> u64 {
        (self.uncovered.len() + self.dangling.len() + self.leftover.len()) as u64
    }

    fn corrupt(&mut self, key: String, reason: String, remedy: Remedy) {
        self.corrupt.push(CorruptObject { key, reason, remedy });
    }
}

impl Queue {
    /// Reads every object of the queue; with `repair` writes missing entries, and removes those that no task calls for, by
    /// the rules of the index; refused without `queue.json`. A task is covered when its called-for entry is there, or an older
    /// one that is due no later.
    pub async fn check(&self, repair: bool) -> Result<Checked> {
        let mut checked = Checked::default();
        if repair {
            // Now, whatever is known: by a layout that is gone the entries of all tasks would be left over.
            self.ask().await?;
            self.may(Intent::Change).await?;
        }
        // Entries first: a task that moves in between has then left an entry that was seen.
        let entries = self.all_entries(&mut checked).await?;
        let by_task = by_task(&entries);
        let (mut called_for, mut suspects) = (BTreeSet::new(), Vec::new());
        let mut keys = std::pin::pin!(self.task_keys());
        while let Some(key) = keys.try_next().await? {
            let Some(loaded) = self.checked_task(&key, &mut checked).await? else { continue };
            let Some(entry) = loaded.task.entry() else { continue };
            let met = by_task.get(&entry.id).into_iter().flatten();
            called_for.extend(met.filter(|met| is_pointer_to(met, &loaded.task)).map(|met| (*met).clone()));
            if !by_task.get(&entry.id).is_some_and(|met| met.contains(&&entry)) {
                // Whoever holds a shard or an inbox leaves the entry by which it has found the task.
                let left = by_task.get(&entry.id).into_iter().flatten().filter(|met| covers(met, &entry));
                called_for.extend(left.max_by_key(|met| met.rev).map(|met| (*met).clone()));
            }
            called_for.insert(entry.clone());
            if !is_led_to(&loaded, &entry, &by_task) {
                suspects.push((key, loaded, entry));
            }
        }
        self.check_suspects(suspects, repair, &mut checked).await?;
        let uncalled = entries.iter().filter(|found| !called_for.contains(&found.entry));
        self.check_uncalled(uncalled, repair, &mut checked).await?;
        self.check_others(repair, &mut checked).await?;
        Ok(checked)
    }

    /// Looks again: a task may be found by an entry that was written after the entries were listed.
    async fn check_suspects(
        &self,
        suspects: Vec<(String, Loaded, Entry)>,
        repair: bool,
        checked: &mut Checked,
    ) -> Result<()> {
        if suspects.is_empty() {
            return Ok(());
        }
        let entries = self.all_entries(&mut Checked::default()).await?;
        let by_task = by_task(&entries);
        for (key, loaded, entry) in suspects {
            if is_led_to(&loaded, &entry, &by_task) || !self.is_uncovered(&loaded, &entry).await? {
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

    /// Looks at one task again: it may have moved, and its entries with it, since the entries were listed. Whoever removes
    /// an entry has written the called-for one before.
    pub(crate) async fn is_uncovered(&self, loaded: &Loaded, entry: &Entry) -> Result<bool> {
        if self.client.get(Purpose::Admin, &entry.key()).await?.is_some() {
            return Ok(false);
        }
        let key = keys::task(&loaded.task.shard, &entry.id);
        let now = self.load_at(Purpose::Admin, &entry.id, key).await?;
        Ok(now.is_some_and(|now| now.version == loaded.version))
    }

    /// Looks again at entries that no task called for when the tasks were read.
    async fn check_uncalled(
        &self,
        entries: impl Iterator<Item = &Found>,
        repair: bool,
        checked: &mut Checked,
    ) -> Result<()> {
        // Collected, because the compiler cannot tell the lifetimes of a borrowing stream of futures.
        let reads: Vec<_> =
            entries.map(|found| async move { Ok((found, self.uncalled(found, repair).await?)) }).collect();
        let mut findings = stream::iter(reads).buffered(READS_AT_ONCE);
        while let Some((found, finding)) = findings.try_next().await? {
            let key = found.entry.key();
            match finding {
                Finding::Fine | Finding::Corrupt(..) => {}
                Finding::Heals(by, reason) => checked.healing.push(Healing { key, by, reason }),
                Finding::Repairable if !repair => checked.dangling.push(key),
                // Anything else means that it has become part of a change since, which sees to it.
                Finding::Repairable => {
                    if matches!(self.sweep(found).await?, Swept::Removed | Swept::Moved(_)) {
                        checked.dangling.push(key);
                        checked.repaired += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// The state of an entry that no task called for. A repair waits for the grace of the index rules only; without one,
    /// running workers are given the time to do the same.
    async fn uncalled(&self, found: &Found, repair: bool) -> Result<Finding> {
        let entry = &found.entry;
        if self.client.get(Purpose::Admin, &entry.key()).await?.is_none() {
            return Ok(Finding::Fine);
        }
        let now = self.now()?;
        if self.is_for_the_migration(entry) {
            let by = now.latest_known().plus(self.config.ahead_grace);
            return Ok(Finding::Heals(by, "a migration is running"));
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
                (left_at.plus(self.config.stale_grace), "its task has moved on")
            }
            // It stays until its task moves on, which passes its revision, or ends.
            Some(loaded) if !loaded.task.status().is_final() => return Ok(Finding::Fine),
            Some(_) => (found.written_at.plus(self.config.ahead_grace), "its task is final"),
            None => (found.written_at.plus(self.config.ahead_grace), "its task does not exist yet"),
        };
        if repair && now.is_past(grace_over) {
            return Ok(Finding::Repairable);
        }
        let looked_at = grace_over.max(entry.bucket.start());
        let by = looked_at.plus(CLEANED_WITHIN);
        let is_soon = !now.is_past(by) && looked_at.since(now.earliest) < HEALS_WITHIN;
        let heals = is_soon || !now.is_past(grace_over);
        Ok(if heals { Finding::Heals(by, reason) } else { Finding::Repairable })
    }

    /// Checks the objects that are neither tasks nor entries.
    async fn check_others(&self, repair: bool, checked: &mut Checked) -> Result<()> {
        for prefix in keys::OTHERS {
            let listed = self.entries(prefix.to_owned());
            let reads = listed.map_ok(|listed| async move {
                let finding = self.other(&listed).await?;
                Ok((listed.key, finding))
            });
            let mut findings = std::pin::pin!(reads.try_buffered(READS_AT_ONCE));
            while let Some((key, finding)) = findings.try_next().await? {
                checked.others += 1;
                match finding {
                    Finding::Fine => {}
                    Finding::Heals(by, reason) => checked.healing.push(Healing { key, by, reason }),
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

    async fn other(&self, listed: &leasehold_store::Entry) -> Result<Finding> {
        let (key, kind) = (&listed.key, ObjectKind::of(&listed.key, &[]));
        let now = self.now()?;
        if kind == ObjectKind::Probe && now.is_past(listed.modified.plus(PROBE_MAX)) {
            return Ok(Finding::Repairable);
        }
        if kind == ObjectKind::Unknown {
            return Ok(Finding::Corrupt(objects::unknown(key).to_string(), objects::remedy(key, Some(b""))));
        }
        if !kind.has_record() {
            return Ok(Finding::Fine);
        }
        let (error, remedy) = match self.client.get(Purpose::Admin, key).await {
            Ok(None) => return Ok(Finding::Fine),
            Ok(Some(object)) => match kind.verify(key, &object) {
                Ok(()) => return Ok(Finding::Fine),
                Err(error) => (error, objects::remedy(key, Some(&object.body))),
            },
            Err(error) if error.kind() == Kind::Corrupt => (error, objects::remedy(key, None)),
            Err(error) => return Err(error),
        };
        let (within, reason) = match kind {
            ObjectKind::Lease => {
                (NONSENSE_AGE_MIN + CLEANED_WITHIN, "corrupt, but its next holder replaces it")
            }
            ObjectKind::Bell => (RINGS_WITHIN, "corrupt, but the next submit overwrites it"),
            _ => return Ok(Finding::Corrupt(error.to_string(), remedy)),
        };
        let by = listed.modified.plus(within);
        Ok(if remedy == Remedy::Update || now.is_past(by) {
            Finding::Corrupt(error.to_string(), remedy)
        } else {
            Finding::Heals(by, reason)
        })
    }

    async fn all_entries(&self, checked: &mut Checked) -> Result<Vec<Found>> {
        let mut all = Vec::new();
        for root in keys::ENTRIES {
            let mut entries = std::pin::pin!(self.entries(root.to_owned()));
            while let Some(listed) = entries.try_next().await? {
                if let Some(entry) = Entry::parse(&listed.key) {
                    all.push(Found { entry, written_at: listed.modified });
                } else {
                    let (reason, remedy) =
                        (objects::unknown(&listed.key), objects::remedy(&listed.key, Some(b"")));
                    checked.corrupt(listed.key, reason.to_string(), remedy);
                }
            }
        }
        checked.entries = all.len() as u64;
        Ok(all)
    }

    async fn checked_task(&self, key: &str, checked: &mut Checked) -> Result<Option<Loaded>> {
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

    /// What can be done about a corrupt task: 1 get.
    async fn task_remedy(&self, key: &str) -> Result<Remedy> {
        if keys::check_key(key).is_err() {
            return Ok(objects::remedy(key, None));
        }
        match self.client.get(Purpose::Admin, key).await {
            Ok(object) => {
                Ok(objects::remedy(key, Some(&object.map(|object| object.body).unwrap_or_default())))
            }
            Err(error) if error.kind() == Kind::Corrupt => Ok(objects::remedy(key, None)),
            Err(error) => Err(error),
        }
    }
}

/// True for an entry that leads to its task, or covers it: that by which a worker has claimed a task stays until the task
/// is settled, where the worker holds the shard.
fn is_in_use(entry: &Entry, loaded: &Loaded) -> bool {
    let task = &loaded.task;
    task.entry().is_some_and(|called_for| {
        called_for == *entry || task.status() == Status::Running && covers(entry, &called_for)
    }) || is_pointer_to(entry, task)
}

/// Whether a task that calls for one entry is found by another: workers follow none that is ahead of its task, see none
/// before its minute, and some of them look at its shard only. What lies in an inbox or in the overflow is seen by someone.
pub(crate) fn covers(met: &Entry, called_for: &Entry) -> bool {
    let is_seen = met.shard().is_none() || met.shard() == called_for.shard();
    is_seen && met.rev <= called_for.rev && met.bucket <= called_for.bucket
}

type ByTask<'a> = BTreeMap<TaskId, Vec<&'a Entry>>;

fn by_task(entries: &[Found]) -> ByTask<'_> {
    let mut by_task = ByTask::new();
    for found in entries {
        by_task.entry(found.entry.id).or_default().push(&found.entry);
    }
    by_task
}

/// Whether one of these entries leads to a task. To one that is on its way between two shards, the entry that it had does,
/// by its mark.
fn is_led_to(loaded: &Loaded, called_for: &Entry, by_task: &ByTask) -> bool {
    let leads = |met: &Entry| {
        let in_place = met.moved(called_for.place.clone());
        covers(if loaded.is_in_mark() { &in_place } else { met }, called_for)
    };
    by_task.get(&called_for.id).is_some_and(|met| met.iter().any(|met| leads(met)))
}
