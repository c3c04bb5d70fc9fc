//! What the monitor does. Every worker does it for the shards it serves, so that no separate process is needed.

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

use crate::remember::{CORRUPT_PAUSE, Next, Remembered};
use crate::run::Engine;
use crate::shutdown::{Shutdown, Stage};
use crate::turn::Turn;

/// How often expired idempotency records are looked for, on average per worker.
const KEYS_EVERY: Duration = Duration::from_mins(30);
/// So long inboxes are emptied in one go.
const RESCUE_AT_MOST: Duration = Duration::from_secs(30);
/// How often old names are looked for, by whoever looks for inboxes of the dead.
const NAMES_EVERY: Duration = Duration::from_hours(1);
/// So many of them are removed at a time.
const RETIRED_AT_ONCE: usize = 16;
/// So long the others rely on the one that recovers.
const RECOVERY_TTL: Duration = Duration::from_secs(10);
/// So many entries of one round may fail before the rest is left to the next.
const FAILED_MAX: u32 = 2;
/// An entry that failed is looked at again after this.
const FAILED_PAUSE: Duration = Duration::from_secs(30);

/// Does the duties until told to stop. Fails when they can never be done again by this worker.
pub(crate) async fn run(engine: Arc<Engine>, shutdown: Shutdown) -> Result<()> {
    let host = engine.host().clone();
    let mut recover = Recover::new(&engine);
    let mut rescue = Rescue::new(&engine)?;
    // Not all at once after a restart of everything.
    let mut keys_at = host.instant();
    let mut keys_pause = host.random_below(KEYS_EVERY);
    loop {
        match engine.queue.may_change().await {
            Err(error) if error.kind() == Kind::Invalid && engine.queue.is_outdated() => return Err(error),
            // While the queue is being migrated there is nothing to be done here.
            Err(error) => tracing::debug!("no duties for now: {error}"),
            Ok(()) => {
                if let Err(error) = recover.tick(&engine).await {
                    engine.request_failed("recover lost claims", &error);
                }
                // It can be cut anywhere, and taken up again: nothing else waits for it for long.
                let limit = select(host.sleep(RESCUE_AT_MOST), Box::pin(shutdown.reached(Stage::Drain)));
                let ended = match select(Box::pin(rescue.tick(&engine)), limit).await {
                    Either::Left((ended, _)) => ended,
                    Either::Right(_) => Ok(()),
                };
                if let Err(error) = ended {
                    engine.request_failed("empty inboxes of dead workers", &error);
                    // Someone else may have more luck.
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
        let every = engine.crew.options.recover_every;
        let pause = every.mul_f64(0.9) + host.random_below(every / 5);
        // One round is the probe of a store that fails.
        let pause = engine.outage().map_or(pause, |outage| outage.pause(host.instant()).max(pause));
        if let Either::Right(_) = select(host.sleep(pause), Box::pin(shutdown.reached(Stage::Drain))).await {
            recover.stop().await;
            rescue.turn.pass_on().await;
            return Ok(());
        }
    }
}

/// What lies outside the shards is looked after by whoever holds the first of them; by everyone who holds none.
fn is_first(engine: &Engine) -> bool {
    let Some(first) = engine.queue.shard_len().groups().into_iter().next() else { return true };
    let holds = |now| engine.served.holds(&first.first, now);
    engine.crew.options.leasing.is_none() || engine.queue.now().is_ok_and(holds)
}

/// Finds claims that have run out, and lease entries that their tasks have left behind.
///
/// While nothing waits, nothing runs and the bell is silent, nobody can be lost: then the index is left alone until the
/// next sweep. Nothing runs if there was no ready entry, and *after that* no lease entry: a claim writes the one before it
/// removes the other.
struct Recover {
    remembered: Remembered,
    /// None if it does not matter what others do.
    turn: Option<Turn>,
    /// When the lease entries were last listed, and whether nothing waited and nothing ran.
    listed: Option<(Instant, bool)>,
}

/// Why to look for lost claims.
enum Reason {
    /// Something waits or runs, or may do so.
    Unrest,
    /// It was long ago, and a hint may have been lost.
    Sweep,
}

impl Recover {
    /// Whoever serves all shards with others like it takes turns with them. A short lease runs out before a turn would.
    fn new(engine: &Engine) -> Self {
        let is_alone = engine.crew.options.leasing.is_some() || engine.crew.options.shards.is_some();
        let is_hasty = engine.crew.options.lease < RECOVERY_TTL * 3 / 2;
        let turn = Turn::new(&engine.queue, &engine.crew.id, keys::RECOVERY_LEASE, RECOVERY_TTL);
        let turn = turn.ok().filter(|_| !is_alone && !is_hasty);
        Self { remembered: Remembered::default(), turn, listed: None }
    }

    async fn stop(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.pass_on().await;
        }
    }

    /// Why to look now, if there is a reason.
    fn reason(&self, engine: &Engine) -> Option<Reason> {
        let was_stirred = engine.served.was_stirred();
        let Some((at, was_quiet)) = self.listed else { return Some(Reason::Unrest) };
        // A claim in one's own shard leaves no lease entry: those that there are come from others.
        let is_leased = engine.crew.options.leasing.is_some();
        if !was_quiet || !is_leased && (was_stirred || !engine.served.is_ready_empty()) {
            return Some(Reason::Unrest);
        }
        let is_old = engine.host().instant().since(at) >= engine.crew.options.sweep_every;
        is_old.then_some(Reason::Sweep)
    }

    async fn tick(&mut self, engine: &Engine) -> Result<()> {
        let Some(reason) = self.reason(engine) else {
            self.stop().await;
            return Ok(());
        };
        if let (Reason::Unrest, Some(turn)) = (reason, &mut self.turn)
            && !turn.is_ours().await?
        {
            // Until we have seen for ourselves that all is quiet, the one whose turn it is may be lost.
            self.listed = None;
            return Ok(());
        }
        let (at, is_ready_empty) = (engine.host().instant(), engine.served.is_ready_empty());
        self.listed = None;
        let stretches = engine.served.stretches(Index::Lease, engine.queue.now()?, None);
        let look = engine.queue.discover(Purpose::Sweep, stretches).await?;
        let is_waiting = engine.crew.options.leasing.is_none() && !is_ready_empty;
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
                // One that gets no answer must not keep us from those behind it; if none does, the store is away.
                Err(error) if failed < FAILED_MAX => {
                    engine.request_failed("recover a lost claim", &error);
                    failed += 1;
                    self.remembered.until(found, now.latest_known().plus(FAILED_PAUSE), Next::Sweep);
                    continue;
                }
                Err(error) => return Err(error),
            };
            match swept {
                Swept::Moved(task) => engine.recovered(&task),
                Swept::Later(at) | Swept::Held(at) => self.remembered.until(found, at, Next::Sweep),
                Swept::Corrupt(error) => {
                    engine.report(&error.to_string());
                    self.remembered.until(found, now.latest_known().plus(CORRUPT_PAUSE), Next::Sweep);
                }
                Swept::Fine | Swept::Removed => {}
            }
        }
        Ok(())
    }
}

/// Empties the inboxes of dead workers, and removes names that nobody has used for long: one worker for all.
struct Rescue {
    turn: Turn,
    looked: Instant,
    pause: Duration,
    retired: Option<Instant>,
}

impl Rescue {
    fn new(engine: &Engine) -> Result<Self> {
        // It has looked twice before others stop relying on it.
        let every = Self::every(engine);
        let turn = Turn::new(
            &engine.queue,
            &engine.crew.id,
            keys::RESCUE_LEASE,
            (every * 5 / 2).min(LEASE_TTL_MAX),
        )?;
        let host = engine.host();
        // Not all at once after a restart of everything.
        Ok(Self { turn, looked: host.instant(), pause: host.random_below(every), retired: None })
    }

    fn every(engine: &Engine) -> Duration {
        engine.crew.options.overflow_every / 2
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
