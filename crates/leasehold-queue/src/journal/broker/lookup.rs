//! Archived tasks that requests refer to: they are looked up beside the other work of the broker.
//!
//! ```text
//!   request for a task that is not live ─ objects may have it ─▶ look it up ─ table unchanged for the id ─▶ decide
//!                                                  ▲                  └── changed, or the task is live ──▶ begin again
//!                                                  └──────────────────────────────────────────────────────────┘
//! ```
//!
//! The broker is the only writer of the archive. So if the table is unchanged for the id, the copy that was read is still the task.

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use leasehold_core::journal::archive::ArchiveInput;
use leasehold_core::journal::{ArchiveName, ArchiveRef, ArchivedTask};
use leasehold_core::limits::ARCHIVE_LOOKUPS_MAX;
use leasehold_core::{Error, Result, TaskId};
use leasehold_store::Client;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Broker;
use super::decide::BROKER;
use crate::journal::archive::{archived_task, missing_object, read_archive};
use crate::journal::commit::Urgency;
use crate::journal::lease::BrokerLease;
use crate::journal::open::judge;
use crate::journal::request::{BrokerRequest, HeldAnswer};

/// Number of objects that are kept in memory: operations on many tasks come in the order of their ids.
const CACHED_MAX: usize = 2;

/// Lookups that wait, and those in progress.
#[derive(Default)]
pub(super) struct Lookups {
    waiting: VecDeque<Lookup>,
    running: FuturesUnordered<BoxFuture<'static, LookedUp>>,
    cache: VecDeque<CachedObject>,
}

type CachedObject = (ArchiveName, Arc<Vec<ArchiveInput>>);

/// A request for a task that one of these objects may have.
struct Lookup {
    id: TaskId,
    objects: Vec<ArchiveRef>,
    request: BrokerRequest,
}

/// End of a lookup.
pub(super) struct LookedUp {
    lookup: Lookup,
    found: Result<Option<ArchivedTask>>,
    /// Objects that were read.
    read: Vec<CachedObject>,
}

impl Lookups {
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<LookedUp> {
        match self.running.poll_next_unpin(context) {
            Poll::Ready(Some(done)) => Poll::Ready(done),
            _ => Poll::Pending,
        }
    }

    fn start_waiting(&mut self, client: &Client, lease: &BrokerLease) {
        while self.running.len() < ARCHIVE_LOOKUPS_MAX {
            let Some(lookup) = self.waiting.pop_front() else { return };
            let (client, lease, cached) = (client.clone(), lease.clone(), self.cache.clone());
            self.running.push(look_up(lookup, client, lease, cached).boxed());
        }
    }

    fn cache(&mut self, objects: Vec<CachedObject>) {
        for (name, tasks) in objects {
            self.cache.retain(|(cached, _)| *cached != name);
            self.cache.push_back((name, tasks));
        }
        while self.cache.len() > CACHED_MAX {
            self.cache.pop_front();
        }
    }
}

async fn look_up(
    lookup: Lookup,
    client: Client,
    lease: BrokerLease,
    cached: VecDeque<CachedObject>,
) -> LookedUp {
    let mut read = Vec::new();
    let Lookup { id, objects, request } = lookup;
    let found = search(id, &objects, &client, &lease, &cached, &mut read).await;
    LookedUp { lookup: Lookup { id, objects, request }, found, read }
}

async fn search(
    id: TaskId,
    objects: &[ArchiveRef],
    client: &Client,
    lease: &BrokerLease,
    cached: &VecDeque<CachedObject>,
    read: &mut Vec<CachedObject>,
) -> Result<Option<ArchivedTask>> {
    let in_cache = |object: &ArchiveRef| cached.iter().find(|(name, _)| *name == object.name);
    // An object that was read before takes no request.
    let mut objects: Vec<_> = objects.iter().collect();
    objects.sort_by_key(|object| in_cache(object).is_none());
    for object in objects {
        let tasks = match in_cache(object) {
            Some((_, tasks)) => tasks.clone(),
            None => match read_archive(client, object).await? {
                Some(tasks) => Arc::new(tasks),
                None => return Err(judge(lease, missing_object(&object.name)).await),
            },
        };
        let found = archived_task(object, &tasks, &id)?;
        read.push((object.name.clone(), tasks));
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

impl Broker {
    /// Handles a request: at once, or after a lookup of its task.
    pub(super) fn handle(&mut self, request: BrokerRequest) -> Result<()> {
        if let Some(id) = request.archived_id() {
            let objects = self.state.archived_in(&id);
            if !objects.is_empty() {
                self.lookups.waiting.push_back(Lookup { id, objects, request });
                self.lookups.start_waiting(&self.client, self.lease.lease());
                return Ok(());
            }
        }
        self.handle_live(request)
    }

    /// Continues with a request whose task was looked up.
    pub(super) fn looked_up(&mut self, done: LookedUp) -> Result<()> {
        let LookedUp { lookup: Lookup { id, objects, request }, found, read } = done;
        self.lookups.cache(read);
        self.lookups.start_waiting(&self.client, self.lease.lease());
        if self.state.archived_in(&id) != objects {
            return self.handle(request);
        }
        match found {
            Ok(Some(archived)) => self.handle_archived(request, archived),
            Ok(None) => self.handle_live(request),
            Err(error) => self.fail(request, error),
        }
    }

    fn handle_archived(&mut self, request: BrokerRequest, archived: ArchivedTask) -> Result<()> {
        match request {
            BrokerRequest::Submit { task, by, answer } => {
                self.decide(&by, Urgency::Urgent, answer, |state, _| state.submit_archived(&archived, &task))
            }
            BrokerRequest::Settle { settlement, answer } => {
                self.decide(BROKER, Urgency::Lazy, answer, |state, context| {
                    state.settle_archived(archived, *settlement, context)
                })
            }
            BrokerRequest::Operate { id: _, event, by, answer } => {
                self.decide(&by, Urgency::Urgent, answer, |state, context| {
                    state.operate_archived(archived, &event, context)
                })
            }
            BrokerRequest::Import { task, answer } => {
                self.decide(BROKER, Urgency::Urgent, answer, |state, _| {
                    state.import_archived(&archived, &task)
                })
            }
            BrokerRequest::PurgeTask { id, retention, by, answer } => {
                self.purge_archived(id, retention, by, answer, &archived)
            }
            request => self.handle_live(request),
        }
    }

    /// Answers a request with an error.
    pub(super) fn fail(&mut self, request: BrokerRequest, error: Error) -> Result<()> {
        let answer = match request {
            BrokerRequest::Submit { answer, .. } => HeldAnswer::new(answer, Err(error)),
            BrokerRequest::Settle { answer, .. } => HeldAnswer::new(answer, Err(error)),
            BrokerRequest::Operate { answer, .. } => HeldAnswer::new(answer, Err(error)),
            BrokerRequest::Import { answer, .. } => HeldAnswer::new(answer, Err(error)),
            BrokerRequest::PurgeTask { answer, .. } => HeldAnswer::new(answer, Err(error)),
            BrokerRequest::Purge { answer, .. } => HeldAnswer::new(answer, Err(error)),
            BrokerRequest::Read { answer, .. } => HeldAnswer::new(answer, Err(error)),
            BrokerRequest::Claim(poll) => HeldAnswer::new(poll.answer, Err(error)),
            // Nothing else is looked up or read back.
            _ => return Ok(()),
        };
        self.send(answer)
    }
}

impl BrokerRequest {
    /// Task that may be archived, and without which the request cannot be decided.
    fn archived_id(&self) -> Option<TaskId> {
        match self {
            Self::Submit { task, .. } => Some(task.id),
            Self::Settle { settlement, .. } => Some(settlement.task),
            Self::Operate { id, .. } | Self::PurgeTask { id, .. } => Some(*id),
            Self::Import { task, .. } => Some(task.task.id),
            _ => None,
        }
    }
}
