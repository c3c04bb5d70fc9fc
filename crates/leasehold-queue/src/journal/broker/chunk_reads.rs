//! Evicted tasks that requests refer to: their chunks are read back beside the other work of the broker.
//!
//! ```text
//!   request that needs an evicted task ─▶ its chunk is read, once for all that wait ─▶ the tasks are in memory ─▶ handle again
//!            ▲                                    └── a newer snapshot has replaced it ──▶ handle again ─┐
//!            └───────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A request needs one evicted task, and the tasks of its chunk stay in memory at least until it was handled. Only a page of a
//! list needs more: while one is collected nothing is evicted, and other pages wait.
//! Chunks of the snapshot that the lease names are not deleted, so a chunk that cannot be read was damaged: the requests that
//! need it get the error, and all others go on.

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use leasehold_core::journal::{ChunkName, EncodedTask};
use leasehold_core::limits::CHUNK_READS_MAX;
use leasehold_core::{Error, Kind, Result, TaskId};
use leasehold_store::Client;
use leasehold_store::host::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::task::{Context, Poll};
use std::time::Duration;

use super::Broker;
use crate::journal::chunks::BackingChunk;
use crate::journal::lease::BrokerLease;
use crate::journal::open::judge;
use crate::journal::request::BrokerRequest;
use crate::journal::snapshot::{no_chunk, read_chunk};

/// Pause after a chunk could not be read for the broker itself: to expire or to archive tasks.
const RETRY_PAUSE: Duration = Duration::from_mins(1);

/// Reads of chunks that wait, and those in progress.
#[derive(Default)]
pub(super) struct ChunkReads {
    /// Requests that wait for a chunk; none if the broker itself does.
    waiting: BTreeMap<ChunkName, Vec<BrokerRequest>>,
    next: VecDeque<BackingChunk>,
    /// True while the chunks of a page are collected.
    has_page: bool,
    /// Pages that wait for the end of that one.
    pages: VecDeque<BrokerRequest>,
    running: FuturesUnordered<BoxFuture<'static, ChunkReadDone>>,
    /// Time and place of the last failed read.
    failed: Option<(Instant, ChunkName)>,
}

/// End of a read.
pub(super) struct ChunkReadDone {
    backing: BackingChunk,
    tasks: Result<Vec<EncodedTask>>,
}

impl ChunkReads {
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.pages.is_empty()
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<ChunkReadDone> {
        match self.running.poll_next_unpin(context) {
            Poll::Ready(Some(done)) => Poll::Ready(done),
            _ => Poll::Pending,
        }
    }

    /// Drops claims that wait.
    pub(super) fn drop_claims(&mut self) {
        for requests in self.waiting.values_mut() {
            requests.retain(|request| !matches!(request, BrokerRequest::Claim(_)));
        }
    }

    fn add(&mut self, backing: BackingChunk, request: Option<BrokerRequest>) {
        let name = backing.chunk.name;
        if !self.waiting.contains_key(&name) {
            self.next.push_back(backing);
        }
        self.waiting.entry(name).or_default().extend(request);
    }

    fn start(&mut self, client: &Client, lease: &BrokerLease) {
        while self.running.len() < CHUNK_READS_MAX {
            let Some(backing) = self.next.pop_front() else { return };
            let (client, lease) = (client.clone(), lease.clone());
            let read = async move {
                let tasks = match read_chunk(&client, &backing.chunk).await {
                    Err(error) if error.kind() == Kind::Corrupt => Err(judge(&lease, error).await),
                    read => read,
                };
                ChunkReadDone { backing, tasks }
            };
            self.running.push(read.boxed());
        }
    }
}

impl Broker {
    /// Handles a request again when an evicted task was read back.
    pub(super) fn read_back(&mut self, id: TaskId, request: BrokerRequest) -> Result<()> {
        let is_page = is_page(&request);
        if is_page && self.reads.has_page {
            self.reads.pages.push_back(request);
            return Ok(());
        }
        let Some(backing) = self.maintenance.table.backing(&id) else {
            return self.fail(request, no_chunk(&id));
        };
        self.reads.has_page |= is_page;
        self.reads.add(backing, Some(request));
        self.reads.start(&self.client, self.lease.lease());
        Ok(())
    }

    /// Reads an evicted task back that the broker itself needs; false if its chunk could not be read a moment ago.
    pub(super) fn read_back_soon(&mut self, id: TaskId) -> bool {
        let Some(backing) = self.maintenance.table.backing(&id) else { return false };
        let now = self.instant();
        let failed = self.reads.failed.filter(|(at, _)| now.since(*at) < RETRY_PAUSE);
        if failed.is_some_and(|(_, name)| name == backing.chunk.name) {
            return false;
        }
        self.reads.add(backing, None);
        self.reads.start(&self.client, self.lease.lease());
        true
    }

    /// Continues with the requests that need a chunk.
    pub(super) fn chunk_read(&mut self, done: ChunkReadDone) -> Result<()> {
        let ChunkReadDone { backing, tasks } = done;
        let requests = self.reads.waiting.remove(&backing.chunk.name).unwrap_or_default();
        self.reads.start(&self.client, self.lease.lease());
        let had_page = requests.iter().any(is_page);
        self.handle_read(&backing, tasks, requests, had_page)?;
        // The next one begins when this one has all that it needs.
        while had_page && !self.reads.has_page {
            self.evict();
            let Some(page) = self.reads.pages.pop_front() else { break };
            self.handle(page)?;
        }
        Ok(())
    }

    fn handle_read(
        &mut self,
        backing: &BackingChunk,
        tasks: Result<Vec<EncodedTask>>,
        requests: Vec<BrokerRequest>,
        has_page: bool,
    ) -> Result<()> {
        // Otherwise a newer snapshot has replaced it, and has its evicted tasks.
        let restored =
            if self.maintenance.table.is_backing(backing) { self.restore(backing, tasks) } else { Ok(()) };
        self.reads.has_page &= !has_page;
        if let Err(error) = restored {
            let chunk = backing.chunk.name;
            tracing::warn!(?chunk, %error, "failed to read back a chunk of the journal's snapshot");
            self.reads.failed = Some((self.instant(), chunk));
            let mut requests = requests.into_iter();
            return requests
                .try_for_each(|request| self.fail(request, Error::new(error.kind(), error.to_string())));
        }
        requests.into_iter().try_for_each(|request| self.handle(request))
    }

    fn restore(&mut self, backing: &BackingChunk, tasks: Result<Vec<EncodedTask>>) -> Result<()> {
        let tasks = tasks?;
        // Before, so that these tasks stay for what needs them.
        self.evict();
        self.state.read_back(backing.chunk.first, backing.end, tasks)?;
        self.maintenance.table.was_read_back(backing);
        Ok(())
    }

    /// Evicts tasks while more than the limit are in memory, except while a page is collected.
    pub(super) fn evict(&mut self) {
        if !self.reads.has_page {
            self.maintenance.evict(&mut self.state);
        }
    }
}

fn is_page(request: &BrokerRequest) -> bool {
    match request {
        BrokerRequest::Read { query, .. } => query.is_page(),
        BrokerRequest::Changes { .. } => true,
        _ => false,
    }
}
