//! Moving tasks from the shards of one length to those of another.
//!
//! Requests per task: 1 get, 3 puts (mark, entry, record) and 1 delete (the old entry); a final task has no entry, so
//! 1 get and 2 puts. Verifying it: 2 gets. A mark that is met, after a crash: 2 gets, and 2 puts if its task is missing.

use bytes::Bytes;
use futures::TryStreamExt;
use leasehold_core::moved::Mark;
use leasehold_core::{
    Entry, Error, Event, Index, Kind, Result, ShardLen, Task, TaskId, WriteId, keys, record, step,
};
use leasehold_store::{Decision, Purpose, update};
use std::collections::BTreeMap;

use super::{Migration, Progress, Work};
use crate::check::covers;
use crate::layout::{Intent, Known};
use crate::tasks::{Loaded, Place};

/// How many tasks are moved at once: as many as are read at once elsewhere.
const MOVES_AT_ONCE: usize = 32;
/// So often all is looked at until nothing had to be put right. Once is enough unless someone else interferes.
const VERIFY_ROUNDS_MAX: usize = 10;

/// From where to where, and by whose leave.
pub(super) struct Way {
    pub(super) from: ShardLen,
    pub(super) to: ShardLen,
    /// The state of `queue.json` under which this is done.
    pub(super) under: WriteId,
}

impl Way {
    pub(super) fn new(known: &Known, from: ShardLen, to: ShardLen) -> Self {
        Self { from, to, under: known.agreement.write_id.clone() }
    }

    pub(super) fn intent(&self) -> Intent<'_> {
        Intent::Migrate(&self.under)
    }
}

/// What stands at the key that a task leaves.
enum Marked {
    /// Nothing.
    Gone,
    /// A mark that was there before.
    Before(Mark),
    /// A mark that was just put in the place of the task, with the entry that the task had.
    Now(Mark, Option<Entry>),
}

/// What to do with each task.
#[derive(Clone, Copy)]
pub(super) enum Act<'a> {
    Move,
    Close,
    Verify(&'a Covering),
    Sweep,
}

impl Act<'_> {
    fn work(self) -> Work {
        match self {
            Act::Move => Work::Move,
            Act::Close => Work::Close,
            Act::Verify(_) => Work::Verify,
            Act::Sweep => Work::Sweep,
        }
    }
}

pub(super) type Covering = BTreeMap<TaskId, Vec<Entry>>;

impl Migration<'_> {
    /// Moves everything, and looks until all of it is there.
    pub(super) async fn move_and_verify(&self, way: &Way) -> Result<()> {
        let [total] = self.queue.count_tasks([way.from]).await?;
        self.each(way, total, Act::Move).await?;
        for _ in 0..VERIFY_ROUNDS_MAX {
            let covering = self.covering(way.to).await?;
            if self.each(way, total, Act::Verify(&covering)).await? == 0 {
                return Ok(());
            }
        }
        Err(Error::new(Kind::Unavailable, "tasks still appear in the old place; run the migration again"))
    }

    /// Sees to it that no move of these tasks can land any more.
    pub(super) async fn close(&self, way: &Way) -> Result<()> {
        let [total] = self.queue.count_tasks([way.from]).await?;
        self.each(way, total, Act::Close).await.map(drop)
    }

    /// Does something with every key of the length that is left, several at once. Gives how many were not as they
    /// should be. What makes no sense is noted and stays where it is.
    pub(super) async fn each(&self, way: &Way, total: u64, act: Act<'_>) -> Result<u64> {
        (self.report)(Progress::Working(act.work(), 0, total));
        let is_ours = |key: &String| keys::task_place(key).is_some_and(|(len, _)| len == way.from);
        let keys = self.queue.task_keys().try_filter(|key| futures::future::ready(is_ours(key)));
        let acts = keys.map_ok(|key| async move { self.act(way, &key, act).await });
        let mut acts = std::pin::pin!(acts.try_buffer_unordered(MOVES_AT_ONCE));
        let (mut done, mut faults) = (0, 0);
        while let Some(is_fine) = acts.try_next().await? {
            (done, faults) = (done + 1, faults + u64::from(!is_fine));
            (self.report)(Progress::Working(act.work(), done, total));
        }
        Ok(faults)
    }

    async fn act(&self, way: &Way, key: &str, act: Act<'_>) -> Result<bool> {
        self.queue.may(way.intent()).await?;
        let acted = match act {
            Act::Move => self.move_task(way, key).await.map(|_| true),
            Act::Close => self.close_task(way, key).await.map(|()| true),
            Act::Verify(covering) => self.verify(way, key, covering).await,
            Act::Sweep => self.remove_mark(way, key).await.map(|()| true),
        };
        match acted {
            Err(error) if error.kind() == Kind::Corrupt => {
                self.note(error.to_string());
                Ok(true)
            }
            acted => acted,
        }
    }

    /// A task gets a revision that no mark on its way knows; the task of a mark is put where the mark says, so that it
    /// can be moved back from there.
    async fn close_task(&self, way: &Way, key: &str) -> Result<()> {
        if let Some(mark) = self.touch(way, key).await? {
            let found = self.queue.client.get(Purpose::Admin, &mark.key()).await?;
            self.queue.land(Purpose::Admin, &mark, found).await?;
        }
        Ok(())
    }

    fn note(&self, corrupt: String) {
        let mut tally = self.tally();
        if !tally.corrupt.contains(&corrupt) {
            tally.corrupt.push(corrupt);
        }
    }

    /// Moves the task at this key. Gives what stands in its new place; nothing if there is nothing to move.
    pub(super) async fn move_task(&self, way: &Way, key: &str) -> Result<Option<Place>> {
        let (mark, entry, found) = match self.mark(way, key).await? {
            Marked::Gone => return Ok(None),
            Marked::Now(mark, entry) => {
                self.tally().moved += 1;
                (mark, entry, None)
            }
            Marked::Before(mark) => {
                let found = self.queue.client.get(Purpose::Admin, &mark.key()).await?;
                (mark, None, found)
            }
        };
        let place = self.queue.land(Purpose::Admin, &mark, found).await?;
        if let Some(entry) = entry {
            self.queue.remove_entry(Purpose::Admin, &entry).await;
        }
        Ok(Some(place))
    }

    async fn mark(&self, way: &Way, key: &str) -> Result<Marked> {
        let marked = update(&self.queue.client, Purpose::Admin, key, |found| {
            let Some(object) = found else { return Ok(Decision::Leave(Marked::Gone)) };
            let loaded = match Place::read(key, object.clone())? {
                Place::Here(loaded) => loaded,
                Place::Elsewhere(mark) => return Ok(Decision::Leave(Marked::Before(mark))),
            };
            self.queue.still_may(way.intent())?;
            let mark = Mark { task: self.moved(&loaded, way.to)? };
            Ok(Decision::write(mark.write(), Marked::Now(mark, loaded.task.entry())))
        });
        Ok(marked.await?.result)
    }

    /// Gives a task that has not moved a new revision; gives the mark of one that has.
    async fn touch(&self, way: &Way, key: &str) -> Result<Option<Mark>> {
        let touched = update(&self.queue.client, Purpose::Admin, key, |found| {
            let Some(object) = found else { return Ok(Decision::Leave(None)) };
            let loaded = match Place::read(key, object.clone())? {
                Place::Here(loaded) => loaded,
                Place::Elsewhere(mark) => return Ok(Decision::Leave(Some(mark))),
            };
            self.queue.still_may(way.intent())?;
            Ok(Decision::write(Bytes::from(record::write(&self.moved(&loaded, way.from)?)), None))
        });
        Ok(touched.await?.result)
    }

    fn moved(&self, loaded: &Loaded, len: ShardLen) -> Result<Task> {
        let event = Event::Move { shard: len.shard_of(&loaded.task.id) };
        match step(&loaded.task, &event, &self.queue.act()?) {
            Ok(step) => Ok(step.task),
            Err(rejected) => Err(Error::new(Kind::Internal, format!("a move was rejected: {rejected}"))),
        }
    }

    /// Whether what stands at this key is a mark, and its task is there and covered. What is not so is put right.
    async fn verify(&self, way: &Way, key: &str, covering: &Covering) -> Result<bool> {
        let mark = match self.queue.read_place(Purpose::Admin, key).await? {
            None => return Ok(true),
            Some(Place::Elsewhere(mark)) => mark,
            Some(Place::Here(_)) => return self.move_task(way, key).await.map(|_| false),
        };
        let Some(Place::Here(loaded)) = self.queue.read_place(Purpose::Admin, &mark.key()).await? else {
            return self.move_task(way, key).await.map(|_| false);
        };
        let Some(entry) = loaded.task.entry() else { return Ok(true) };
        let is_covered = covering.get(&entry.id).is_some_and(|met| met.iter().any(|met| covers(met, &entry)));
        if is_covered || !self.queue.is_uncovered(&loaded, &entry).await? {
            return Ok(true);
        }
        self.queue.put_entry(Purpose::Admin, &entry).await.map(|()| false)
    }

    /// The entries of this length, by their tasks.
    async fn covering(&self, len: ShardLen) -> Result<Covering> {
        let mut covering = Covering::new();
        for index in [Index::Ready, Index::Lease] {
            let mut keys = std::pin::pin!(self.queue.keys(index.root().into()));
            while let Some(key) = keys.try_next().await? {
                if let Some(entry) = Entry::parse(&key).filter(|entry| entry.has_shard_of(len)) {
                    covering.entry(entry.id).or_default().push(entry);
                }
            }
        }
        Ok(covering)
    }
}
