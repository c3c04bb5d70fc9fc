//! Maintenance duties: recover lost claims, clean up the index, empty the inboxes of dead workers, remove expired
//! idempotency records and old worker ids.
//!
//! Every worker does them for the shards that it serves, so that no separate process is needed. A duty that concerns
//! the whole queue is done by one worker at a time, which holds a lease on it. All of them may be done twice, or by
//! several workers at once, without harm.
//!
//! Requests per worker while the queue is idle: 1 list of lease entries per `sweep_every`, and 1 list of idempotency
//! records per half hour (with shard leasing, only by the holder of the first shard). The worker that empties inboxes
//! makes 1 put and 1 list per half `overflow_every`; each other worker 1 get per expiry of its lease.

use futures::TryStreamExt;
use futures::future::{Either, select};
use leasehold_core::{Index, Kind, Result, keys};
use leasehold_queue::lease::LEASE_TTL_MAX;
use leasehold_queue::sweep::Swept;
use leasehold_store::host::Instant;
use leasehold_store::{HostExt, List, Purpose};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::{BackoffAction, CORRUPT_PAUSE, EntryBackoff};
use crate::duty_lease::DutyLease;
use crate::run::Engine;
use crate::shutdown::{Shutdown, Stage};

/// Average interval per worker at which expired idempotency records are removed.
const KEYS_EVERY: Duration = Duration::from_mins(30);
/// Maximum time spent on emptying inboxes in one round.
const RESCUE_AT_MOST: Duration = Duration::from_secs(30);
/// Interval at which old worker ids are removed, by the worker that empties inboxes.
const NAMES_EVERY: Duration = Duration::from_hours(1);
/// Number of worker ids that are removed concurrently.
const RETIRED_AT_ONCE: usize = 16;
/// Ttl of the lease on the recovery duty.
const RECOVERY_TTL: Duration = Duration::from_secs(10);
/// Number of failed entries after which the rest of a round is left to the next.
const FAILED_MAX: u32 = 2;
/// Pause before an entry that failed is checked again.
const FAILED_PAUSE: Duration = Duration::from_secs(30);

/// Does the duties until shutdown. Fails if this worker can never do them again.
pub(crate) async fn run(engine: Arc<Engine>, shutdown: Shutdown) -> Result<()> {
    let host = engine.host().clone();
    let mut recover = Recover::new(&engine);
    let mut rescue = Rescue::new(&engine)?;
    // Spread over workers that were restarted together.
    let mut keys_at = host.instant();
    let mut keys_pause = host.random_below(KEYS_EVERY);
    loop {
        match engine.queue.ensure_writable().await {
            Err(error) if error.kind() == Kind::Invalid && engine.queue.is_outdated() => return Err(error),
            // While the queue is being migrated there are no duties.
            Err(error) => tracing::debug!(%error, "duties paused"),
            Ok(()) => {
                if let Err(error) = recover.tick(&engine).await {
                    engine.request_failed("recover lost claims", &error);
                }
                // It can be interrupted anywhere and resumed, so that other duties do not wait for long.
                let limit = select(host.sleep(RESCUE_AT_MOST), Box::pin(shutdown.reached(Stage::Drain)));
                let ended = match select(Box::pin(rescue.tick(&engine)), limit).await {
                    Either::Left((ended, _)) => ended,
                    Either::Right(_) => Ok(()),
                };
                if let Err(error) = ended {
                    engine.request_failed("empty inboxes of dead workers", &error);
                    // Another worker may succeed.
                    rescue.turn.pass_on().await;
                }
            }
        }
        if host.instant().since(keys_at) >= keys_pause && is_first(&engine) {
            if let Err(error) = remove_expired_keys(&engine).await {
                engine.request_failed("remove expired idempotency records", &error);
            }
            (keys_at, keys_pause) = (host.instant(), KEYS_EVERY);
        }
        let every = engine.runner.options.recover_every;
        let pause = every.mul_f64(0.9) + host.random_below(every / 5);
        // One round is the probe of a failing store.
        let pause = engine.outage().map_or(pause, |outage| outage.pause(host.instant()).max(pause));
        if let Either::Right(_) = select(host.sleep(pause), Box::pin(shutdown.reached(Stage::Drain))).await {
            recover.stop().await;
            rescue.turn.pass_on().await;
            return Ok(());
        }
    }
}

/// True if this worker does the duties outside the shards: the holder of the first shard, or every worker without
/// shard leasing.
fn is_first(engine: &Engine) -> bool {
    let Some(first) = engine.queue.shard_len().groups().into_iter().next() else { return true };
    let holds = |now| engine.assignment.holds(&first.first, now);
    engine.runner.options.leasing.is_none() || engine.queue.now().is_ok_and(holds)
}

/// Finds claims that have expired, and stale lease entries.
///
/// While no task waits or runs and the bell does not ring, no claim can be lost: then the index is not scanned until
/// the next periodic sweep. No task runs if there was no ready entry, and *after that* no lease entry: a claim writes
/// the lease entry before it removes the ready entry.
struct Recover {
    remembered: EntryBackoff,
    /// Lease on the duty; none if this worker recovers on its own.
    turn: Option<DutyLease>,
    /// Time of the last list of lease entries, and whether no task waited or ran.
    listed: Option<(Instant, bool)>,
}

/// Reason to scan for lost claims.
enum WakeReason {
    /// A task waits or runs, or may do so.
    Unrest,
    /// The last scan was long ago, and a ring may have been lost.
    Sweep,
}

impl Recover {
    /// Workers that all serve all shards take turns. A worker with short claims does not wait for its turn, because
    /// they would expire before.
    fn new(engine: &Engine) -> Self {
        let is_alone = engine.runner.options.leasing.is_some() || engine.runner.options.shards.is_some();
        let is_hasty = engine.runner.options.lease < RECOVERY_TTL * 3 / 2;
        let turn = DutyLease::new(&engine.queue, &engine.runner.id, keys::RECOVERY_LEASE, RECOVERY_TTL);
        let turn = turn.ok().filter(|_| !is_alone && !is_hasty);
        Self { remembered: EntryBackoff::default(), turn, listed: None }
    }

    async fn stop(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.pass_on().await;
        }
    }

    /// Reason to scan now, if any.
    fn reason(&self, engine: &Engine) -> Option<WakeReason> {
        let was_stirred = engine.assignment.was_stirred();
        let Some((at, was_quiet)) = self.listed else { return Some(WakeReason::Unrest) };
        // A claim in a shard that this worker leases has no lease entry: existing ones are from other workers.
        let is_leased = engine.runner.options.leasing.is_some();
        if !was_quiet || !is_leased && (was_stirred || !engine.assignment.is_ready_empty()) {
            return Some(WakeReason::Unrest);
        }
        let is_old = engine.host().instant().since(at) >= engine.runner.options.sweep_every;
        is_old.then_some(WakeReason::Sweep)
    }

    async fn tick(&mut self, engine: &Engine) -> Result<()> {
        let Some(reason) = self.reason(engine) else {
            self.stop().await;
            return Ok(());
        };
        if let (WakeReason::Unrest, Some(turn)) = (reason, &mut self.turn)
            && !turn.is_ours().await?
        {
            // Until this worker has seen for itself that all is idle, the holder of the duty may be dead.
            self.listed = None;
            return Ok(());
        }
        let (at, is_ready_empty) = (engine.host().instant(), engine.assignment.is_ready_empty());
        self.listed = None;
        let stretches = engine.assignment.stretches(Index::Lease, engine.queue.now()?, None);
        let look = engine.queue.discover(Purpose::Sweep, stretches).await?;
        let is_waiting = engine.runner.options.leasing.is_none() && !is_ready_empty;
        self.listed = Some((at, !is_waiting && look.due.is_empty() && look.next.is_none()));
        for key in &look.odd {
            engine.report(&format!("`{key}` is not an index entry"));
        }
        let there: HashSet<_> = look.due.iter().map(|found| found.entry.clone()).collect();
        self.remembered.keep(|entry| there.contains(entry));
        let mut failed = 0;
        for found in look.due {
            let now = engine.queue.now()?;
            if engine.holds(&found.entry.id) || self.remembered.next(&found.entry, now).is_none() {
                continue;
            }
            let swept = match engine.queue.sweep(&found).await {
                Ok(swept) => swept,
                // One failure must not block the entries after it; if all fail, the store is unavailable.
                Err(error) if failed < FAILED_MAX => {
                    engine.request_failed("recover a lost claim", &error);
                    failed += 1;
                    self.remembered.until(found, now.latest_known().plus(FAILED_PAUSE), BackoffAction::Sweep);
                    continue;
                }
                Err(error) => return Err(error),
            };
            match swept {
                Swept::Moved(task) => engine.recovered(&task),
                Swept::Later(at) | Swept::Held(at) => self.remembered.until(found, at, BackoffAction::Sweep),
                Swept::Corrupt(error) => {
                    engine.report(&error.to_string());
                    self.remembered.until(
                        found,
                        now.latest_known().plus(CORRUPT_PAUSE),
                        BackoffAction::Sweep,
                    );
                }
                Swept::Fine | Swept::Removed => {}
            }
        }
        Ok(())
    }
}

/// Empties the inboxes of dead workers, and removes worker ids that were not used for long: one worker for the whole
/// queue.
struct Rescue {
    turn: DutyLease,
    looked: Instant,
    pause: Duration,
    retired: Option<Instant>,
}

impl Rescue {
    fn new(engine: &Engine) -> Result<Self> {
        // The holder has two rounds before its lease expires.
        let every = Self::every(engine);
        let turn = DutyLease::new(
            &engine.queue,
            &engine.runner.id,
            keys::RESCUE_LEASE,
            (every * 5 / 2).min(LEASE_TTL_MAX),
        )?;
        let host = engine.host();
        // Spread over workers that were restarted together.
        Ok(Self { turn, looked: host.instant(), pause: host.random_below(every), retired: None })
    }

    fn every(engine: &Engine) -> Duration {
        engine.runner.options.overflow_every / 2
    }

    async fn tick(&mut self, engine: &Engine) -> Result<()> {
        if engine.host().instant().since(self.looked) < self.pause {
            return Ok(());
        }
        (self.looked, self.pause) = (engine.host().instant(), Self::every(engine));
        if !self.turn.is_ours().await? {
            return Ok(());
        }
        engine.queue.rescue_inboxes().await?;
        let now = engine.host().instant();
        if self.retired.is_none_or(|at| now.since(at) >= NAMES_EVERY) {
            self.retired = Some(now);
            self.retire_names(engine).await?;
        }
        Ok(())
    }

    async fn retire_names(&self, engine: &Engine) -> Result<()> {
        let mut next = Some(List::all(keys::WORKERS));
        while let Some(list) = next {
            let page = engine.queue.client().list(Purpose::Sweep, &list).await?;
            let names = futures::stream::iter(page.entries.into_iter().map(Ok));
            let retired = names.try_for_each_concurrent(RETIRED_AT_ONCE, |name| async move {
                engine.queue.retire_name(self.turn.leases(), &name).await
            });
            retired.await?;
            next = page.next.map(|cursor| list.at(cursor));
        }
        Ok(())
    }
}

async fn remove_expired_keys(engine: &Engine) -> Result<()> {
    let client = engine.queue.client();
    let mut list = List::all(keys::UNIQUE);
    loop {
        let page = client.list(Purpose::Sweep, &list).await?;
        let keys = futures::stream::iter(page.entries.into_iter().map(Ok));
        keys.try_for_each_concurrent(8, |entry| async move {
            match engine.queue.remove_expired_key(&entry.key).await {
                Err(error) if error.kind() == Kind::Corrupt => engine.report(&error.to_string()),
                removed => drop(removed?),
            }
            Ok::<_, leasehold_core::Error>(())
        })
        .await?;
        match page.next {
            Some(cursor) => list = list.at(cursor),
            None => return Ok(()),
        }
    }
}
