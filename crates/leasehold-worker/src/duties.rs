//! What the monitor does. Every worker does it for the shards it serves, so that no separate process is needed.

use futures::TryStreamExt;
use futures::future::{Either, select};
use leasehold_core::{Index, Kind, Result, keys};
use leasehold_queue::sweep::Swept;
use leasehold_store::{HostExt, List, Purpose};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::remember::{CORRUPT_PAUSE, Next, Remembered};
use crate::run::Engine;
use crate::shutdown::{Shutdown, Stage};

/// How often expired idempotency records are looked for, on average per worker.
const KEYS_EVERY: Duration = Duration::from_mins(30);

/// Does the duties until told to stop. Fails when they can never be done again by this worker.
pub(crate) async fn run(engine: Arc<Engine>, shutdown: Shutdown) -> Result<()> {
    let host = engine.host().clone();
    let mut recover = Recover::default();
    // Not all at once after a restart of everything.
    let mut keys_at = host.instant();
    let mut keys_pause = host.random_below(KEYS_EVERY);
    loop {
        match engine.queue.may_change().await {
            Err(error) if error.kind() == Kind::Invalid => return Err(error),
            // While the queue is being migrated there is nothing to be done here.
            Err(error) => tracing::debug!("no duties for now: {error}"),
            Ok(()) => {
                if let Err(error) = recover.tick(&engine).await {
                    tracing::warn!("recovery failed: {error}");
                }
            }
        }
        if host.instant().since(keys_at) >= keys_pause {
            if let Err(error) = remove_expired_keys(&engine).await {
                tracing::warn!("expired idempotency records were not removed: {error}");
            }
            (keys_at, keys_pause) = (host.instant(), KEYS_EVERY);
        }
        let every = engine.options.recover_every;
        let pause = every.mul_f64(0.9) + host.random_below(every / 5);
        if let Either::Right(_) = select(host.sleep(pause), Box::pin(shutdown.reached(Stage::Drain))).await {
            return Ok(());
        }
    }
}

/// Finds claims that have run out, and lease entries that their tasks have left behind.
#[derive(Default)]
struct Recover {
    remembered: Remembered,
}

impl Recover {
    async fn tick(&mut self, engine: &Engine) -> Result<()> {
        let (shards, all) = engine.shards();
        let look = engine.queue.discover(Purpose::Sweep, Index::Lease, shards, all).await?;
        for key in &look.odd {
            engine.report(&format!("`{key}` is not an index entry"));
        }
        let there: HashSet<_> = look.due.iter().map(|found| found.entry.clone()).collect();
        self.remembered.keep(|entry| there.contains(entry));
        for found in look.due {
            let now = engine.queue.now()?;
            if engine.holds(&found.entry.id) || self.remembered.next(&found.entry, now).is_none() {
                continue;
            }
            match engine.queue.sweep(&found).await? {
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
