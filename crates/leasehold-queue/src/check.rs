//! Looking at everything (`fsck`): tasks without their entry, entries without a task, objects that make no sense.
//!
//! This is an audit, not part of the protocol: a queue needs it only after something outside its rules has happened,
//! such as a backup that was restored in part.

use futures::TryStreamExt;
use leasehold_core::{Entry, Kind, Result, TaskId, keys};
use leasehold_store::Purpose;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

use crate::connect::Queue;
use crate::discover::Found;
use crate::layout::Intent;
use crate::sweep::{Swept, is_pointer_to};
use crate::tasks::Loaded;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Tasks that were read.
    pub tasks: u64,
    /// Index entries that were seen.
    pub entries: u64,
    /// Tasks that are not final and whose called-for entry is not there.
    pub uncovered: Vec<String>,
    /// Entries that no task calls for.
    pub dangling: Vec<String>,
    /// Objects that make no sense, and why.
    pub corrupt: Vec<String>,
    /// How many of the uncovered and dangling were put right.
    pub repaired: u64,
}

impl Queue {
    /// Looks at every task and every entry; with `repair` writes missing entries, and sweeps those that no task calls
    /// for, by the rules of the index; refused without `queue.json`. A task is covered when its called-for entry is there, or an
    /// older one that is due no later.
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
        for found in entries.iter().filter(|found| !called_for.contains(&found.entry)) {
            checked.dangling.push(found.entry.key());
            if repair && matches!(self.sweep(found).await?, Swept::Removed | Swept::Moved(_)) {
                checked.repaired += 1;
            }
        }
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

    async fn all_entries(&self, checked: &mut Checked) -> Result<Vec<Found>> {
        let mut all = Vec::new();
        for root in keys::ENTRIES {
            let mut entries = std::pin::pin!(self.entries(root.to_owned()));
            while let Some(listed) = entries.try_next().await? {
                match Entry::parse(&listed.key) {
                    Some(entry) => all.push(Found { entry, written_at: listed.modified }),
                    None => checked.corrupt.push(format!("`{}` is not an index entry", listed.key)),
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
                checked.corrupt.push(error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
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
