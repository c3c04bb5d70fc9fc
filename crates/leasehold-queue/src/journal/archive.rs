//! Archive objects of a journal: read by every process, written by the broker.
//!
//! Requests: a read of one task is at most 3 gets, after the state told which objects may have it. A broker writes 1 put per
//! object, after 1 get per object that is merged into it.

use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::journal::archive::{ArchiveInput, decode_archive, encode_archives};
use leasehold_core::journal::{
    ArchiveBatch, ArchiveName, ArchiveRef, ArchiveWork, ArchivedRange, ArchivedTask, JournalTask,
};
use leasehold_core::limits::ARCHIVE_LOOKUPS_MAX;
use leasehold_core::{Error, HexName, Kind, Result, TaskId, keys};
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, HostExt, Purpose};
use std::collections::BTreeMap;

use super::snapshot::put;

/// Result of a search for a task.
pub(super) enum ArchiveFound {
    /// It is archived.
    Task(Box<ArchivedTask>),
    /// None of the objects has it.
    Nowhere,
    /// This object does not exist. If the state is outdated, it was replaced.
    Missing(ArchiveName),
}

/// Reads the tasks of an object, without those that are outdated; none if it does not exist. Requests: 1 get.
pub(super) async fn read_archive(client: &Client, object: &ArchiveRef) -> Result<Option<Vec<ArchiveInput>>> {
    let key = keys::journal_archive(&object.name);
    let Some(found) = client.get(Purpose::Journal, &key).await? else { return Ok(None) };
    decode_archive(format!("`{key}`"), &found.body, object).map(Some)
}

/// Searches the objects that may have a task. Requests: 1 get per object, until one has it.
pub(super) async fn find_archived(
    client: &Client,
    id: &TaskId,
    objects: &[ArchiveRef],
) -> Result<ArchiveFound> {
    for object in objects {
        let Some(tasks) = read_archive(client, object).await? else {
            return Ok(ArchiveFound::Missing(object.name.clone()));
        };
        if let Some(found) = archived_task(object, &tasks, id)? {
            return Ok(ArchiveFound::Task(Box::new(found)));
        }
    }
    Ok(ArchiveFound::Nowhere)
}

/// Task of an object that was read.
pub(super) fn archived_task(
    object: &ArchiveRef,
    tasks: &[ArchiveInput],
    id: &TaskId,
) -> Result<Option<ArchivedTask>> {
    let Ok(place) = tasks.binary_search_by_key(id, ArchiveInput::id) else { return Ok(None) };
    let task = JournalTask::decode(tasks[place].body())?;
    Ok(Some(ArchivedTask { object: object.name.clone(), task }))
}

/// Reads the archived tasks of a range, sorted by id; the name of the object if one does not exist. Requests: 1 get per
/// object.
pub(super) async fn read_range(
    client: &Client,
    range: &ArchivedRange,
) -> Result<std::result::Result<Vec<JournalTask>, ArchiveName>> {
    let reads = stream::iter(range.objects.clone()).map(|object| async move {
        let tasks = read_archive(client, &object).await?;
        Ok::<_, Error>((object, tasks))
    });
    let mut reads = std::pin::pin!(reads.buffered(ARCHIVE_LOOKUPS_MAX));
    let mut found = BTreeMap::new();
    while let Some((object, tasks)) = reads.try_next().await? {
        let Some(tasks) = tasks else { return Ok(Err(object.name.clone())) };
        for task in tasks.into_iter().filter(|task| range.includes(&task.id())) {
            found.insert(task.id(), JournalTask::decode(task.body())?);
        }
    }
    Ok(Ok(found.into_values().collect()))
}

/// Error of an object that the current state refers to, and that does not exist.
pub(super) fn missing_object(name: &ArchiveName) -> Error {
    let key = keys::journal_archive(name);
    Error::new(Kind::Corrupt, format!("`{key}`, a part of the journal's archive, is missing"))
}

/// Selects the tasks that a retention removes.
pub(super) type PurgesTask = Box<dyn Fn(&JournalTask) -> bool + Send + Sync>;

/// Objects to be written: tasks that are to be archived, and objects that are merged with them.
pub(super) struct ArchiveJob {
    pub(super) batch: ArchiveBatch,
    pub(super) merged: Vec<ArchiveRef>,
    /// Selects the tasks that are removed.
    pub(super) purges: Option<PurgesTask>,
}

/// Objects that were written.
pub(super) struct ArchiveWritten {
    /// None if nothing is to be changed.
    pub(super) work: Option<ArchiveWork>,
    /// Number of tasks that are removed.
    pub(super) purged: u64,
}

impl ArchiveJob {
    /// Reads the merged objects and writes the new ones. Requests: 1 get per merged object, 1 put per new one.
    pub(super) async fn run(self, client: &Client) -> Result<ArchiveWritten> {
        let (mut tasks, mut purged) = (BTreeMap::new(), 0);
        for object in &self.merged {
            if object.counts.is_empty() {
                continue;
            }
            let found = read_archive(client, object).await?.ok_or_else(|| missing_object(&object.name))?;
            for task in found {
                if let Some(purges) = &self.purges
                    && purges(&JournalTask::decode(task.body())?)
                {
                    purged += 1;
                } else {
                    tasks.insert(task.id(), task);
                }
            }
        }
        if self.purges.is_some() && purged == 0 {
            return Ok(ArchiveWritten { work: None, purged });
        }
        tasks.extend(self.batch.tasks.iter().map(|task| (task.id(), task.clone())));
        let tasks: Vec<_> = tasks.into_values().collect();
        let written = encode_archives(&tasks, || HexName::from_random(client.host().random_bits()));
        let work = ArchiveWork { batch: self.batch, merged: self.merged, written };
        if !breaks("archive-logged-first") {
            write(client, &work).await?;
        }
        if breaks("archive-object-deleted-early") {
            for object in &work.merged {
                client.delete(Purpose::Journal, &keys::journal_archive(&object.name)).await?;
            }
        }
        Ok(ArchiveWritten { work: Some(work), purged })
    }
}

/// Writes the objects. Requests: 1 put per object.
pub(super) async fn write(client: &Client, work: &ArchiveWork) -> Result<()> {
    for object in &work.written {
        put(client, &keys::journal_archive(&object.reference.name), object.body.clone()).await?;
    }
    Ok(())
}

/// Deletes removed objects. One that could not be deleted is not returned, and is deleted later. Requests: 1 delete per
/// object.
pub(super) async fn delete(client: &Client, names: Vec<ArchiveName>) -> Vec<ArchiveName> {
    let mut deleted = Vec::new();
    for name in names {
        let key = keys::journal_archive(&name);
        match client.delete(Purpose::Journal, &key).await {
            Ok(()) => deleted.push(name),
            Err(error) => tracing::debug!(%key, %error, "failed to delete a removed archive object"),
        }
    }
    deleted
}
