//! Where each task stands, by the raw objects: at its key, or in the mark that it left when it moved (promise P8).
//!
//! A task is the record at its present place: the object at its key, or, until that was put there, the record in the mark.
//! A submit or a tombstone that lands in a place that was left may stand beside it for a while, as a *stray*: nobody was
//! told of it, and the sweep moves it or lets it go.

use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

use super::raw::Raw;
use crate::bucket::Stored;

/// The last write of a client that does not know of a migration lands so long after its switch at most: it was sent long
/// before that, and is held up for twenty minutes, beside what a slow network adds.
const LATE_WITHIN: Duration = Duration::from_mins(22);
/// What a move changes in a record.
const MOVED: [&str; 4] = ["shard", "rev", "write_id", "updated_at"];

/// What stands at the key of a task.
#[derive(Debug, Clone)]
pub(super) enum Stand {
    Task(Raw),
    /// The mark of a task that has moved, with its record as it is to stand elsewhere.
    Mark(Raw),
}

/// `queue.json`, by its raw object.
#[derive(Debug, Clone, Default)]
pub(super) struct Layout {
    pub(super) len: usize,
    migrating: Option<(usize, String)>,
    left: Option<(usize, bool)>,
    /// When the length last changed, in virtual time.
    switched_at: Option<Duration>,
}

/// What became of the task with a change of what stands at one of its keys.
#[derive(Debug)]
pub(super) enum Became {
    /// It was made, or changed: this is its record now.
    Changed(Raw),
    /// It is what it was.
    Same,
    /// A record that nobody was told of stands aside. If it is the one that is left, it makes way.
    Stray(Raw),
    /// It is gone, as it may.
    Gone,
}

impl Stand {
    pub(super) fn read(stored: &Stored) -> Result<Self, String> {
        let Raw(value) = Raw::read(stored)?;
        Ok(match value.get("moved_to") {
            Some(_) => Stand::Mark(Raw(value["record"].clone())),
            None => Stand::Task(Raw(value)),
        })
    }
}

impl Layout {
    /// Takes note of a change of `queue.json`; true if the length has changed.
    pub(super) fn change(&mut self, stored: &Stored, now: Duration) -> Result<bool, String> {
        let Raw(new) = Raw::read(stored)?;
        let length = |value: &Value| value.as_u64().and_then(|len| usize::try_from(len).ok());
        let len = length(&new["shard_prefix_len"]).ok_or("queue.json has no length")?;
        let switches = self.len != 0 && self.len != len;
        if switches && self.migrating.as_ref().is_none_or(|(to, phase)| *to != len || phase != "moving") {
            return Err(format!("P8: the length became {len} out of {self:?}"));
        }
        self.switched_at = if switches { Some(now) } else { self.switched_at };
        self.len = len;
        let (migrating, left) = (&new["migrating"], &new["left"]);
        self.migrating = length(&migrating["to"])
            .map(|to| (to, migrating["phase"].as_str().unwrap_or_default().to_owned()));
        self.left = length(&left["shard_prefix_len"]).map(|len| (len, left["swept_at"].is_string()));
        Ok(switches)
    }

    /// Whether no migration is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.migrating.is_none()
    }

    fn is_swept(&self) -> bool {
        self.migrating.is_none() && self.left.is_none_or(|(_, is_swept)| is_swept)
    }

    /// Whether a mark may appear at keys of this length.
    fn may_mark(&self, len: usize) -> bool {
        match (&self.migrating, self.left) {
            (Some((to, phase)), _) if phase == "aborting" => len == self.len || len == *to,
            (Some((_, phase)), _) => phase == "moving" && len == self.len,
            (None, Some((left, is_swept))) => !is_swept && len == left,
            (None, None) => false,
        }
    }

    /// Whether a task may be written at keys of this length: where the queue has it, where it goes, and, as long as
    /// something can be on its way, where it had it.
    fn may_write(&self, len: usize, now: Duration) -> bool {
        let goes = self.migrating.as_ref().is_some_and(|(to, _)| *to == len);
        let late = self.switched_at.is_none_or(|at| now.saturating_sub(at) <= LATE_WITHIN);
        len == self.len || goes || late
    }
}

/// The keys of one task.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(BTreeMap<usize, Stand>);

/// What a change is judged by.
pub(super) struct Scene<'a> {
    pub(super) layout: &'a Layout,
    pub(super) now: Duration,
    /// The store's time was set: no grace means anything.
    pub(super) jumped: bool,
    /// The task as it was, if there was one.
    pub(super) task: Option<&'a Raw>,
}

impl Places {
    /// Takes note of a change at the key of this length.
    pub(super) fn change(
        &mut self,
        len: usize,
        after: Option<Stand>,
        scene: &Scene,
    ) -> Result<Became, String> {
        let before = match &after {
            Some(stand) => self.0.insert(len, stand.clone()),
            None => self.0.remove(&len),
        };
        let elsewhere = self.0.iter().find(|(other, _)| **other != len).map(|(_, stand)| stand);
        match (before, after) {
            (Some(before), None) => removed(&before, elsewhere, scene),
            (None, None) => Ok(Became::Same),
            (before, Some(Stand::Mark(record))) => {
                if !scene.layout.may_mark(len) {
                    return Err(format!("P8: a mark at a key of {len} digits under {:?}", scene.layout));
                }
                marked(before, record, len, scene)
            }
            (before, Some(Stand::Task(new))) => {
                if new.text("shard").len() != len {
                    return Err(format!("P8: shard {} at a key of {len} digits", new.text("shard")));
                }
                if !scene.layout.may_write(len, scene.now) {
                    let at = scene.layout.switched_at;
                    return Err(format!("P8: written at a key of {len} digits, which were left at {at:?}"));
                }
                written(before, elsewhere, new, len, scene)
            }
        }
    }

    /// Whether this very revision stands at its key, and not only in a mark.
    pub(super) fn has(&self, task: &Raw) -> bool {
        self.0.values().any(|stand| matches!(stand, Stand::Task(stands) if is_same(stands, task)))
    }

    /// Whether the task stands at its key of this length.
    pub(super) fn is_at(&self, len: usize) -> bool {
        matches!(self.0.get(&len), Some(Stand::Task(_)))
    }

    /// What the switch to a length has left behind, if it may not have: only a record that nobody was told of.
    pub(super) fn left_by_switch(&self, len: usize) -> Option<&Raw> {
        self.0.iter().find_map(|(other, stand)| match stand {
            _ if self.is_at(len) || *other == len => None,
            Stand::Task(task) if task.number("rev") == 1 => None,
            Stand::Task(task) | Stand::Mark(task) => Some(task),
        })
    }

    /// Whether something stands at a key of another length than this.
    pub(super) fn is_beside(&self, len: usize) -> bool {
        self.0.keys().any(|other| *other != len)
    }
}

fn is_same(one: &Raw, other: &Raw) -> bool {
    one.text("write_id") == other.text("write_id") && one.number("rev") == other.number("rev")
}

fn removed(before: &Stand, elsewhere: Option<&Stand>, scene: &Scene) -> Result<Became, String> {
    match (before, elsewhere) {
        // The task has gone on, or another was submitted under the same key.
        (Stand::Mark(left), Some(Stand::Task(there)))
            if there.number("rev") >= left.number("rev")
                || scene.task.is_some_and(|task| is_same(task, there)) =>
        {
            Ok(Became::Same)
        }
        (Stand::Mark(left), _) => Err(format!("P1: its mark is gone, and the task is not there: {}", left.0)),
        (Stand::Task(left), _) if left.status() == "purged" => Ok(Became::Gone),
        (Stand::Task(_), _) => Err("P1: it is gone".into()),
    }
}

/// A task becomes a mark: nothing but its place and its revision changes.
fn marked(before: Option<Stand>, record: Raw, len: usize, scene: &Scene) -> Result<Became, String> {
    let Some(Stand::Task(old)) = before else { return Err(format!("P8: a mark in the place of {before:?}")) };
    let without = |raw: &Raw| {
        let mut value = raw.0.clone();
        for field in MOVED {
            value[field].take();
        }
        value
    };
    if without(&old) != without(&record) || record.text("shard").len() == len {
        return Err(format!("P8: {} has moved as {}", old.0, record.0));
    }
    let is_stray = scene.task.is_some_and(|task| !is_same(task, &old));
    Ok(if is_stray { Became::Same } else { Became::Changed(record) })
}

fn written(
    before: Option<Stand>,
    elsewhere: Option<&Stand>,
    new: Raw,
    len: usize,
    scene: &Scene,
) -> Result<Became, String> {
    if let Some(Stand::Task(old)) = &before {
        if scene.task.is_some_and(|task| !is_same(task, old)) {
            return Err(format!("P8: changed where it is not: {}", old.0));
        }
        return Ok(Became::Changed(new));
    }
    // The record of a mark lands where it says.
    if let Some(Stand::Mark(record)) = elsewhere
        && record.0 == new.0
    {
        return match before {
            Some(Stand::Mark(older)) if older.number("rev") >= new.number("rev") => {
                Err("P8: a newer mark was replaced".into())
            }
            _ => Ok(Became::Same),
        };
    }
    if before.is_some() {
        return Err(format!("P8: a mark was replaced by {}", new.0));
    }
    let Some(elsewhere) = elsewhere else { return Ok(Became::Changed(new)) };
    let shares_key = new.submit().is_none() || new.is_tombstone();
    if new.number("rev") != 1 || !scene.jumped && (!shares_key || scene.layout.is_swept()) {
        return Err(format!("P8: it is there twice: as {elsewhere:?}, and as {}", new.0));
    }
    let makes_way =
        matches!(elsewhere, Stand::Task(old) if old.number("rev") == 1) && len == scene.layout.len;
    Ok(if makes_way { Became::Stray(new) } else { Became::Same })
}
