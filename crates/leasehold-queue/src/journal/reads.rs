//! Reads of a queue in the journal layout: the live tasks from the state, the archived ones from objects.
//!
//! Each read is answered by one state, with the archive objects that may have a task which is not live. An object that does not exist
//! was replaced after that, and the read starts over; if the state that is read then still refers to it, it is missing.

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::filter::Filter;
use leasehold_core::journal::{
    ArchiveName, ArchiveRef, ArchivedRange, EncodedTask, ExportPage, JournalTask, TaskPage, TaskPlace,
};
use leasehold_core::{Error, Kind, Result, Task, TaskId, TaskIdPrefix};

use super::JournalQueue;
use super::archive::{ArchiveFound, find_archived, missing_object, read_archive, read_range};
use super::damage::with_way_out;
use super::query::{StateAnswer, StateQuery};
use super::request::Freshness;
use crate::inspect::unknown_task;

/// Maximum number of times that a read starts over. Objects are kept for an hour after they were replaced.
const STARTS_MAX: u32 = 5;

impl JournalQueue {
    /// Reads a task. Requests without a broker in this process: those of a read, and at most 3 gets.
    pub(super) async fn read_task(&self, id: TaskId, mut freshness: Freshness) -> Result<Task> {
        let mut missing = None;
        for _ in 0..STARTS_MAX {
            let objects = match self.read(StateQuery::Place(id), freshness).await? {
                StateAnswer::Place(TaskPlace::Live(task)) => return Ok(*task),
                StateAnswer::Place(TaskPlace::Archived(objects)) => objects,
                _ => return Err(StateAnswer::unexpected()),
            };
            check_replaced(missing.as_ref(), &objects)?;
            match find_archived(&self.client, &id, &objects).await.map_err(with_way_out)? {
                ArchiveFound::Task(found) => return Ok(found.task.task),
                ArchiveFound::Nowhere if freshness == Freshness::Current => return Err(unknown_task(&id)),
                // That a task does not exist needs a proof.
                ArchiveFound::Nowhere => {}
                ArchiveFound::Missing(name) => missing = Some(name),
            }
            freshness = Freshness::Current;
        }
        Err(replaced())
    }

    /// Finds the only task whose id begins with these characters.
    pub(super) async fn find_task(&self, prefix: TaskIdPrefix) -> Result<TaskId> {
        let mut missing = None;
        'start: for _ in 0..STARTS_MAX {
            let query = StateQuery::Find(prefix.clone());
            let StateAnswer::Find(mut ids, objects) = self.read(query, Freshness::Current).await? else {
                return Err(StateAnswer::unexpected());
            };
            check_replaced(missing.as_ref(), &objects)?;
            for object in objects {
                // Two are enough to tell that it is ambiguous.
                if ids.len() > 1 {
                    break;
                }
                let Some(tasks) = read_archive(&self.client, &object).await.map_err(with_way_out)? else {
                    missing = Some(object.name);
                    continue 'start;
                };
                ids.extend(tasks.iter().map(EncodedTask::id).filter(|id| prefix.matches(id)));
            }
            return prefix.resolve(&ids);
        }
        Err(replaced())
    }

    /// Lists the tasks that match, in the order of their ids.
    pub(super) fn list_tasks(&self, filter: Filter) -> BoxStream<'_, Result<Task>> {
        pages(move |first| {
            let (query, filter) = (StateQuery::List { filter: filter.clone(), first }, filter.clone());
            self.page(
                query,
                |answer| match answer {
                    StateAnswer::List(TaskPage { tasks, archived, .. }) => Ok((tasks, archived)),
                    _ => Err(StateAnswer::unexpected()),
                },
                move |archived| Some(archived.task).filter(|task| filter.matches(task)),
                |task| task.id,
            )
        })
    }

    /// Lists the live tasks, in the order of their ids: all but those that have ended more than some minutes ago. Requests: none while
    /// the broker can be reached.
    #[must_use]
    pub fn live_tasks(&self) -> BoxStream<'_, Result<Task>> {
        pages(move |first| async move {
            let query = StateQuery::List { filter: Filter::default(), first };
            match self.read(query, Freshness::Confirmed).await? {
                StateAnswer::List(TaskPage { tasks, next, .. }) => Ok((tasks, next)),
                _ => Err(StateAnswer::unexpected()),
            }
        })
    }

    /// Lists archived tasks, those that have ended last: all of the objects that are needed for this many. They are not in order.
    /// Requests: those that find the broker, and 1 get per object, of up to 4 MiB.
    #[must_use]
    pub fn newest_archived(&self, tasks: u64) -> BoxStream<'_, Result<Task>> {
        let objects = stream::once(async move {
            match self.read(StateQuery::NewestArchived { tasks }, Freshness::Confirmed).await? {
                StateAnswer::Find(_, objects) => Ok(stream::iter(objects.into_iter().map(Ok))),
                _ => Err(StateAnswer::unexpected()),
            }
        });
        let tasks = objects.try_flatten().and_then(move |object| async move {
            // An object is kept for an hour after others have replaced it.
            let found = read_archive(&self.client, &object).await.map_err(with_way_out)?;
            let found = found.ok_or_else(replaced)?;
            Ok(stream::iter(found.into_iter().map(|task| Ok(JournalTask::decode(task.body())?.task))))
        });
        tasks.try_flatten().boxed()
    }

    /// Exports all tasks, in the order of their ids.
    pub(super) fn export_tasks(&self) -> BoxStream<'_, Result<JournalTask>> {
        pages(move |first| {
            self.page(
                StateQuery::Export { first },
                |answer| match answer {
                    StateAnswer::Export(ExportPage { tasks, archived, .. }) => Ok((tasks, archived)),
                    _ => Err(StateAnswer::unexpected()),
                },
                Some,
                |task| task.task.id,
            )
        })
    }

    /// Reads a page of the state and its archived tasks; starts over if an object was replaced meanwhile.
    async fn page<T>(
        &self,
        query: StateQuery,
        parts: impl Fn(StateAnswer) -> Result<(Vec<T>, ArchivedRange)>,
        item: impl Fn(JournalTask) -> Option<T>,
        id: impl Fn(&T) -> TaskId,
    ) -> Result<(Vec<T>, Option<TaskId>)> {
        let mut missing = None;
        for _ in 0..STARTS_MAX {
            let (mut items, range) = parts(self.read(query.clone(), Freshness::Current).await?)?;
            check_replaced(missing.as_ref(), &range.objects)?;
            match read_range(&self.client, &range).await.map_err(with_way_out)? {
                Err(name) => missing = Some(name),
                Ok(archived) => {
                    items.extend(archived.into_iter().filter_map(&item));
                    items.sort_by_key(&id);
                    return Ok((items, range.end));
                }
            }
        }
        Err(replaced())
    }
}

/// Items of all pages. `read` reads the page that begins with an id, and returns its items and its end.
fn pages<'a, T: Send + 'a, F>(read: impl Fn(Option<TaskId>) -> F + Send + 'a) -> BoxStream<'a, Result<T>>
where
    F: Future<Output = Result<(Vec<T>, Option<TaskId>)>> + Send + 'a,
{
    let pages = stream::try_unfold(Some(None), move |first: Option<Option<TaskId>>| {
        let page = first.map(&read);
        async move {
            let Some(page) = page else { return Ok(None) };
            let (items, next) = page.await?;
            Ok::<_, Error>(Some((stream::iter(items.into_iter().map(Ok)), next.map(Some))))
        }
    });
    pages.try_flatten().boxed()
}

/// Fails if the current state refers to an object that did not exist before the state was read.
fn check_replaced(missing: Option<&ArchiveName>, objects: &[ArchiveRef]) -> Result<()> {
    match missing.filter(|missing| objects.iter().any(|object| object.name == **missing)) {
        Some(missing) => Err(with_way_out(missing_object(missing))),
        None => Ok(()),
    }
}

fn replaced() -> Error {
    Error::new(Kind::Unavailable, "archive objects are replaced before they can be read; retry")
}
