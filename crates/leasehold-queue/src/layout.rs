//! `queue.json` as the lease on the layout.
//!
//! Where a task lies follows from its id and from how many digits name a shard. That number can change
//! ([`migrate`](crate::migrate)), so knowing it is a lease like any other: it holds for a while after it was asked for.
//!
//! ```text
//!   asked ── 30 s ──▶ asked again before the next write ── 60 s ──▶ without an answer nothing is written
//!     0                 (a get, "if changed")                       announced ── 2 min ──▶ tasks are moved
//! ```
//!
//! The age counts from when the answer was *requested*: what was written later cannot be in it. It counts by the local
//! clocks, whichever of them says more, because a process that slept must not trust what it knew. A client that has
//! only read asks nothing. What a client may do by what it knows:
//!
//! | `queue.json` says | renew and settle what is held | anything else that writes |
//! | --- | --- | --- |
//! | what it said at the start | yes | yes |
//! | `migrating` | yes, wherever the task lies by now | unavailable: later |
//! | another number of digits | yes, wherever the task lies by now | invalid: connect again |
//! | nothing: it is missing | yes, for 60 s | corrupt: nobody knows where tasks lie |
//! | another queue's id | yes, for 60 s | invalid: connect again |
//!
//! One thing is created without anything being there to lose a race against: a submitted task. So a submit is
//! acknowledged only while the answer that allowed it can still be trusted (`still_agreed`). With that, whatever was
//! acknowledged stood at its old key within 60 s of the announcement, before the first task is moved.

use leasehold_core::{Error, Kind, Result, ShardLen, StoreTime, TaskId, WriteId, keys};
use leasehold_store::host::Instant;
use leasehold_store::{Get, Purpose, Version};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::connect::{Agreement, Queue, read};

/// How long one try to read `queue.json` again may take: a renewal waits for it.
const ASKING_PATIENCE: Duration = Duration::from_secs(5);

/// A migration under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migrating {
    /// How many digits are to name a shard.
    pub to: ShardLen,
    /// How far it is.
    pub phase: Phase,
    /// When it was announced.
    pub started_at: StoreTime,
}

/// How far a migration is. What comes after the switch is told by [`Left`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Clients learn of it.
    Announced,
    /// All know of it; tasks are moved.
    Moving,
    /// It was called off; tasks are moved back.
    Aborting,
}

/// A number of digits that was left, and what lies there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// How many digits named a shard.
    pub shard_prefix_len: ShardLen,
    /// When it was left.
    pub at: StoreTime,
    /// It was left because the migration to it was called off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aborted: bool,
    /// When everything there had been removed; until then something may still land there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swept_at: Option<StoreTime>,
}

/// What is known of the layout.
#[derive(Debug)]
pub(crate) struct Layout {
    known: Mutex<Known>,
    /// Held by the one who asks while what is known still holds. Nobody ever waits for it: whoever holds it may itself
    /// be waiting to be polled by the one who would wait.
    asking: tokio::sync::Mutex<()>,
    /// Another queue was found in its place.
    is_replaced: AtomicBool,
}

/// `queue.json` as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) agreement: Arc<Agreement>,
    pub(crate) version: Version,
    asked: Instant,
}

/// What someone is about to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent<'a> {
    /// Tasks and entries, where the agreement puts them.
    Change,
    /// A task that is held, wherever it lies.
    Hold,
    /// A step of the migration, under this very state of `queue.json`.
    Migrate(&'a WriteId),
}

impl Intent<'_> {
    pub(crate) fn of(purpose: Purpose) -> Self {
        match purpose {
            Purpose::Renew | Purpose::Settle => Intent::Hold,
            _ => Intent::Change,
        }
    }
}

impl Layout {
    pub(crate) fn new(agreement: Arc<Agreement>, version: Version, asked: Instant) -> Self {
        let known = Mutex::new(Known { agreement, version, asked });
        Self { known, asking: tokio::sync::Mutex::default(), is_replaced: AtomicBool::new(false) }
    }

    /// The same for use on another runtime: whoever asks there waits for nobody here.
    pub(crate) fn apart(&self) -> Self {
        let Known { agreement, version, asked } = self.known();
        Self::new(agreement, version, asked)
    }

    pub(crate) fn known(&self) -> Known {
        self.lock().clone()
    }

    /// Several may ask at once, and their answers may come in any order.
    fn learn(&self, answer: Known) {
        let mut known = self.lock();
        if answer.asked.boot_ns >= known.asked.boot_ns {
            *known = answer;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// How long ago it was asked for. A virtual machine that was paused shows only on the wall clock.
    fn age(&self, now: Instant) -> Duration {
        let wall_ns = now.wall_ns.saturating_sub(self.asked.wall_ns);
        now.since(self.asked).max(Duration::from_nanos(u64::try_from(wall_ns).unwrap_or(0)))
    }
}

impl Agreement {
    /// Whether tasks may lie in shards of two lengths: a migration is under way, or what it left is not swept yet.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.migrating.is_some() || self.left.as_ref().is_some_and(|left| left.swept_at.is_none())
    }

    /// The lengths of the shards in which tasks may lie, the agreed one first.
    #[must_use]
    pub fn lengths(&self) -> Vec<ShardLen> {
        let going = self.migrating.as_ref().map(|migrating| migrating.to);
        let left =
            self.left.as_ref().filter(|left| left.swept_at.is_none()).map(|left| left.shard_prefix_len);
        [Some(self.shard_prefix_len), going, left].into_iter().flatten().collect()
    }
}

impl Queue {
    /// Whether tasks can be submitted and claimed at present. An error of kind *unavailable* passes, when a migration
    /// has come to its end; one of kind *invalid* does not if [`is_outdated`](Self::is_outdated): this
    /// client is of the old layout, and has to connect again.
    pub async fn may_change(&self) -> Result<()> {
        self.may(Intent::Change).await
    }

    /// True if this client has to connect again: the queue has another number of shards, or is another queue. Other errors of
    /// kind *invalid* may pass: a captive portal answers for the store, too.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        let known = self.layout.known().agreement.shard_prefix_len;
        self.layout.is_replaced.load(Relaxed) || known != self.shard_len()
    }

    /// Whether this may be written now, by an answer that is fresh enough. Asks for one if need be.
    pub(crate) async fn may(&self, intent: Intent<'_>) -> Result<()> {
        let age = self.layout_age();
        if age > self.config.layout_trusted {
            self.ask_if_old().await?;
        } else if age > self.config.layout_asked_every
            // Whoever finds that another asks already goes on by what is known: that still holds.
            && let Ok(_one) = self.layout.asking.try_lock()
            && let Err(error) = self.ask_if_old().await
        {
            // Missing, corrupt or another queue's is an answer: what is held may end, and nothing else begins.
            let is_answer = error.kind() == Kind::Corrupt || self.layout.is_replaced.load(Relaxed);
            if is_answer && intent != Intent::Hold {
                return Err(error);
            }
            tracing::debug!("queue.json was not read again: {error}");
        }
        self.still_may(intent)
    }

    /// The same by what is known, between the writes of one operation.
    pub(crate) fn still_may(&self, intent: Intent<'_>) -> Result<()> {
        let age = self.layout_age();
        if age > self.config.layout_trusted {
            let message = format!("`queue.json` was last read {} s ago", age.as_secs());
            return Err(Error::new(Kind::Unavailable, message));
        }
        let now = self.layout.known().agreement;
        match intent {
            Intent::Hold => Ok(()),
            _ if self.layout.is_replaced.load(Relaxed) => Err(another_queue()),
            Intent::Change => self.agrees_with(&now),
            Intent::Migrate(under) if *under == now.write_id => Ok(()),
            Intent::Migrate(_) => {
                Err(Error::new(Kind::Unavailable, "the migration was taken on by someone else; run it again"))
            }
        }
    }

    /// Whether a write that was just confirmed was still allowed when it happened.
    pub(crate) async fn still_agreed(&self) -> Result<()> {
        if self.layout_age() > self.config.layout_trusted {
            self.ask().await?;
        }
        self.still_may(Intent::Change)
    }

    fn agrees_with(&self, now: &Agreement) -> Result<()> {
        let (began, has) = (self.shard_len().digits(), now.shard_prefix_len.digits());
        if began != has {
            return Err(Error::invalid(format!(
                "shard_prefix_len was {began} when this client connected, but this queue has {has} now; connect again"
            )));
        }
        let Some(migrating) = &now.migrating else { return Ok(()) };
        let (to, since) = (migrating.to.digits(), migrating.started_at);
        let message = match migrating.phase {
            Phase::Aborting => {
                format!("the migration to shard_prefix_len {to} is being called off; try again later")
            }
            _ => format!(
                "this queue is being migrated to shard_prefix_len {to}, since {since}; try again later"
            ),
        };
        Err(Error::new(Kind::Unavailable, message))
    }

    /// Reads `queue.json` if that was some time ago.
    pub(crate) async fn ask_if_old(&self) -> Result<()> {
        if self.layout_age() > self.config.layout_asked_every {
            self.ask().await?;
        }
        Ok(())
    }

    /// Reads `queue.json`.
    pub(crate) async fn ask(&self) -> Result<Known> {
        let (before, asked) = (self.layout.known(), self.client.host().instant());
        let client = self.client.clone().with_patience(ASKING_PATIENCE);
        let after = match client.get_unless(Purpose::Admin, keys::QUEUE, Some(&before.version)).await? {
            Get::Unchanged => Known { asked, ..before },
            Get::Found(object) => {
                Known { agreement: Arc::new(self.same_queue(&object.body)?), version: object.version, asked }
            }
            Get::Missing => {
                let store = self.client.describe();
                return Err(Error::new(
                    Kind::Corrupt,
                    format!(
                        "queue.json is missing at {store}: nothing can be submitted or claimed; restore it from a backup, \
                         or run `leasehold init --restore`"
                    ),
                ));
            }
        };
        self.layout.is_replaced.store(false, Relaxed);
        self.layout.learn(after);
        Ok(self.layout.known())
    }

    fn same_queue(&self, body: &[u8]) -> Result<Agreement> {
        let agreement = read(body)?;
        if agreement.queue_id != self.agreement.queue_id {
            self.layout.is_replaced.store(true, Relaxed);
            return Err(another_queue());
        }
        Ok(agreement)
    }

    fn layout_age(&self) -> Duration {
        self.layout.known().age(self.client.host().instant())
    }

    /// The key of a task where the queue has it by the last answer.
    pub(crate) fn key_now(&self, id: &TaskId) -> String {
        keys::task(&self.layout.known().agreement.shard_prefix_len.shard_of(id), id)
    }
}

fn another_queue() -> Error {
    Error::invalid("there is another queue in this store now; connect again")
}
