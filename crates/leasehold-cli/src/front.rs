//! Settings for other front ends of the queue, such as Python. Files, variables and profiles apply as for the command line;
//! the arguments of a call override them, as flags do.

use leasehold_core::{Error, Result};
use leasehold_pieces::ArtifactStore;
use leasehold_queue::Queue;
use leasehold_store::Client;
use leasehold_worker::{Worker, WorkerOptions};

use crate::commands::{self, pieces, worker};
use crate::settings::{self, Flags, Settings, Surroundings, table};
use crate::telemetry;

pub use crate::commands::submit::TaskLine as Order;
pub use crate::run_dirs::RunDirectory;

/// Origin of the values of a call, for errors.
const PLACE: &str = "given in the call";

/// Settings of one queue and its workers.
#[derive(Debug)]
pub struct Front {
    settings: Settings,
}

impl Front {
    /// Loads the settings with overrides: names as in files, such as `worker.concurrency`, with values as in variables.
    pub fn load<'a>(
        profile: Option<&str>,
        said: impl IntoIterator<Item = (&'a str, String)>,
    ) -> Result<Self> {
        telemetry::start_for_good();
        let flags = flags(said)?.with_profile(profile);
        let settings = settings::load(&Surroundings::of_process()?, &flags)?;
        for warning in &settings.warnings {
            tracing::warn!(%warning, "setting ignored");
        }
        commands::only_on_a_bucket(&settings)?;
        Ok(Self { settings })
    }

    /// Loads the settings without files and variables, for tests.
    pub fn bare<'a>(said: impl IntoIterator<Item = (&'a str, String)>) -> Result<Self> {
        Ok(Self { settings: settings::load_bare(&flags(said)?)? })
    }

    /// Creates a client of the store.
    pub fn client(&self) -> Result<Client> {
        commands::client(&self.settings.queue)
    }

    /// Opens the queue in a store, or creates it; `by` is the actor in the history of tasks.
    pub async fn connect(&self, client: Client, by: &str) -> Result<Queue> {
        Queue::with_config(client, commands::config(&self.settings.queue, by)).await
    }

    /// Artifacts of a store, with the cache of this machine.
    pub fn artifacts(&self, client: &Client) -> Result<ArtifactStore> {
        pieces::artifacts(client, &self.settings.pieces)
    }

    /// Creates a worker without handlers, with its id and its options. The id is random unless it is set.
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
        None => Err(Error::invalid(format!("unknown setting `{name}`"))),
    })
}
