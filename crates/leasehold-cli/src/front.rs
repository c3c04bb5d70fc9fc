//! For other fronts of the same queue, such as Python: whatever a user has said in files, variables and profiles counts
//! there as it does here, and what is said in a call wins over it as a flag does.

use leasehold_core::{Error, Result};
use leasehold_pieces::Artifacts;
use leasehold_queue::Queue;
use leasehold_store::Client;
use leasehold_worker::{Worker, WorkerOptions};

use crate::commands::{self, pieces, worker};
use crate::settings::{self, Flags, Settings, Surroundings, table};
use crate::telemetry;

pub use crate::commands::submit::Line as Order;
pub use crate::run_dirs::RunDirectory;

/// Where a value was said, for messages about it.
const PLACE: &str = "given in the call";

/// What holds for one queue and its workers.
#[derive(Debug)]
pub struct Front {
    settings: Settings,
}

impl Front {
    /// What holds when a call says this much: settings by their names in files, such as `worker.concurrency`, with values
    /// as one would write them into a variable.
    pub fn load<'a>(
        profile: Option<&str>,
        said: impl IntoIterator<Item = (&'a str, String)>,
    ) -> Result<Self> {
        telemetry::start_for_good();
        let flags = flags(said)?.with_profile(profile);
        let settings = settings::load(&Surroundings::of_process()?, &flags)?;
        for warning in &settings.warnings {
            tracing::warn!("{warning}");
        }
        commands::only_on_a_bucket(&settings)?;
        Ok(Self { settings })
    }

    /// The same where neither files nor variables count: in tests.
    pub fn bare<'a>(said: impl IntoIterator<Item = (&'a str, String)>) -> Result<Self> {
        Ok(Self { settings: settings::load_bare(&flags(said)?)? })
    }

    /// A client of the store.
    pub fn client(&self) -> Result<Client> {
        commands::client(&self.settings.queue)
    }

    /// Opens the queue in a store, or founds it there; `by` acts in the history of tasks.
    pub async fn connect(&self, client: Client, by: &str) -> Result<Queue> {
        Queue::with_config(client, commands::config(&self.settings.queue, by)).await
    }

    /// The artifacts of a store, in the cache of this machine.
    pub fn artifacts(&self, client: &Client) -> Result<Artifacts> {
        pieces::artifacts(client, &self.settings.pieces)
    }

    /// A worker that has no handlers yet, its name and its options. Without a name of its own it gets one made by chance.
    pub fn worker(&self, queue: &Queue) -> Result<(String, Worker, WorkerOptions)> {
        let settings = &self.settings.worker;
        let name = worker::name(queue, settings);
        let shards = worker::shards(queue, &settings.shards)?;
        let worker = Worker::new(queue.clone(), &name, shards)?;
        let worker = pieces::carry(worker, queue.client(), &self.settings.pieces)?;
        Ok((name, worker, worker::options(settings)))
    }
}

fn flags<'a>(said: impl IntoIterator<Item = (&'a str, String)>) -> Result<Flags> {
    said.into_iter().try_fold(Flags::default(), |flags, (name, value)| match table::find(name) {
        Some(_) => Ok(flags.with(PLACE, name, Some(value))),
        None => Err(Error::invalid(format!("there is no setting `{name}`"))),
    })
}
