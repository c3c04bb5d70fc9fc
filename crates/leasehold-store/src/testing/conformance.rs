//! What every store must do, as one public suite. A store that passes can carry a queue.
//!
//! ```no_run
//! # use leasehold_store::testing::conformance::{Extent, Suite};
//! # async fn example(store: std::sync::Arc<dyn leasehold_store::Store>) {
//! Suite::new(store, Extent::default()).run().await.unwrap();
//! # }
//! ```

mod conditions;
mod large;
mod lists;
pub mod races;
mod times;

use futures::future::BoxFuture;
use leasehold_core::HexName;
use std::fmt;
use std::sync::Arc;

use crate::client::Client;
use crate::host::{Host, HostExt, SystemHost};
use crate::seam::Store;

/// A store under test, and how hard to try.
#[derive(Debug, Clone)]
pub struct Suite {
    client: Client,
    store: Arc<dyn Store>,
    /// What this run's keys begin with, so that runs do not meet.
    root: String,
    extent: Extent,
}

/// How hard to try.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Race for keys: off for servers that are known not to be atomic.
    pub races: bool,
    /// Expect the byte order of *whole* keys, also for siblings that continue with a byte below the slash.
    pub whole_key_order: bool,
    /// Expect a clear word about an upload that was given up, and not just any failure.
    pub clear_uploads: bool,
    /// Updaters of one counter, each in a task of its own.
    pub updaters: usize,
    /// Increments by each of them.
    pub increments: usize,
    /// Creators of the same keys.
    pub creators: usize,
    /// Keys that each of them tries to create.
    pub contested: usize,
    /// Keys that are listed.
    pub listed: usize,
}

impl Default for Extent {
    fn default() -> Self {
        Self {
            races: true,
            whole_key_order: true,
            clear_uploads: true,
            updaters: 16,
            increments: 2_000,
            creators: 16,
            contested: 300,
            listed: 5_000,
        }
    }
}

/// A demand that the store did not meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The check that found it.
    pub check: &'static str,
    /// What was wrong.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.message)
    }
}

impl std::error::Error for Violation {}

type Checked = Result<(), String>;
type Check = (&'static str, fn(&Suite) -> BoxFuture<'_, Checked>);

impl Suite {
    /// The suite against this store.
    pub fn new(store: Arc<dyn Store>, extent: Extent) -> Self {
        Self::on(Arc::new(SystemHost), store, extent)
    }

    /// The suite on a host that is not this machine.
    pub fn on(host: Arc<dyn Host>, store: Arc<dyn Store>, extent: Extent) -> Self {
        let root = format!("conformance/{}", HexName::from_random(host.random_bits()));
        Self { root, client: Client::new(store.clone(), host), store, extent }
    }

    /// The client that the suite uses, with its ledger.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs every check, and names the first demand that was not met.
    pub async fn run(&self) -> Result<(), Violation> {
        let checks: [&[Check]; 4] = [conditions::CHECKS, lists::CHECKS, times::CHECKS, large::CHECKS];
        let races = if self.extent.races { races::CHECKS } else { &[] };
        for (check, run) in checks.into_iter().flatten().chain(races) {
            run(self).await.map_err(|message| Violation { check, message })?;
        }
        Ok(())
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }
}

/// A violation unless the two are the same.
fn same<T: PartialEq + fmt::Debug>(what: &str, found: &T, expected: &T) -> Checked {
    if found == expected { Ok(()) } else { Err(format!("{what} is {found:?}, not {expected:?}")) }
}

/// A failure of the store is a violation too.
fn failed(error: impl fmt::Display) -> String {
    error.to_string()
}
