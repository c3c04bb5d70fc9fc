//! Settings for other frontends of the queue, such as Python. Files, variables and profiles apply as for the command line;
//! the arguments of a call override them, as flags do.

use leasehold_core::{Error, Result};
use leasehold_pieces::ArtifactStore;
use leasehold_queue::Queue;
use leasehold_store::Client;
use leasehold_worker::{Worker, WorkerOptions};

use crate::commands::{self, pieces, worker};
use crate::settings::{self, Environment, Flags, Settings, table};
use crate::telemetry;

pub use crate::commands::submit::TaskLine;
pub use crate::run_dirs::RunDirectory;

/// Origin of the values of a call, for errors.
const ORIGIN: &str = "given in the call";

/// Settings of one queue and its workers.
#[derive(Debug)]
pub struct Frontend {
    settings: Settings,
}

impl Frontend {
    /// Loads the settings with overrides: names as in files, such as `worker.concurrency`, with values as in variables.
    pub fn load<'a>(
        profile: Option<&str>,
        overrides: impl IntoIterator<Item = (&'a str, String)>,
    ) -> Result<Self> {
        telemetry::start_for_process();
        let flags = flags(overrides)?.with_profile(profile);
        let settings = settings::load(&Environment::of_process()?, &flags)?;
        for warning in &settings.warnings {
            tracing::warn!(%warning, "unknown environment variable ignored");
        }
        commands::require_bucket(&settings, "connect")?;
        Ok(Self { settings })
    }

    /// Loads the settings without files and variables, for tests.
    pub fn from_overrides<'a>(overrides: impl IntoIterator<Item = (&'a str, String)>) -> Result<Self> {
        Ok(Self { settings: settings::load_from_flags(&flags(overrides)?)? })
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
        let name = worker::worker_id(queue, settings);
        let shards = worker::shards(queue, &settings.shards)?;
        let worker = Worker::new(queue.clone(), &name, shards)?;
        let worker = pieces::with_artifacts(worker, queue.client()?, &self.settings.pieces)?;
        Ok((name, worker, worker::options(settings)))
    }
}

fn flags<'a>(overrides: impl IntoIterator<Item = (&'a str, String)>) -> Result<Flags> {
    overrides.into_iter().try_fold(Flags::default(), |flags, (name, value)| match table::find(name) {
        Some(_) => Ok(flags.with(ORIGIN, name, Some(value))),
        None => Err(Error::invalid(format!("unknown setting `{name}`"))),
    })
}
