//! Conformance suite for stores. A store that passes is suitable for a queue.
//!
//! ```no_run
//! # use leasehold_store::testing::conformance::{SuiteOptions, Suite};
//! # async fn example(store: std::sync::Arc<dyn leasehold_store::Store>) {
//! Suite::new(store, SuiteOptions::default()).run().await.unwrap();
//! # }
//! ```

mod conditions;
mod large;
mod lists;
pub mod races;
mod times;

use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;

use crate::client::Client;
use crate::host::{Host, HostExt, SystemHost};
use crate::store::Store;

/// Suite for a store under test.
#[derive(Debug, Clone)]
pub struct Suite {
    client: Client,
    store: Arc<dyn Store>,
    /// Prefix of the keys of this run, so that runs do not interfere.
    root: String,
    options: SuiteOptions,
}

/// Checks that a suite runs, and their sizes.
#[derive(Debug, Clone, Copy)]
pub struct SuiteOptions {
    /// Runs races for keys: off for servers that are known not to be atomic.
    pub races: bool,
    /// Expects the byte order of *whole* keys, also for siblings that continue with a byte below the slash.
    pub whole_key_order: bool,
    /// Expects the right kind of failure for an aborted upload, and not just any failure.
    pub clear_uploads: bool,
    /// Concurrent updaters of one counter.
    pub updaters: usize,
    /// Increments per updater.
    pub increments: usize,
    /// Creators of the same keys.
    pub creators: usize,
    /// Keys per creator.
    pub contested: usize,
    /// Keys that are listed.
    pub listed: usize,
}

impl Default for SuiteOptions {
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

/// Requirement that the store did not meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Check that failed.
    pub check: &'static str,
    /// Description of the failure.
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
    /// Creates a suite for a store.
    pub fn new(store: Arc<dyn Store>, options: SuiteOptions) -> Self {
        Self::on(Arc::new(SystemHost), store, options)
    }

    /// Creates a suite for a store on another host.
    pub fn on(host: Arc<dyn Host>, store: Arc<dyn Store>, options: SuiteOptions) -> Self {
        let root = format!("conformance/{}", host.random_name());
        Self { root, client: Client::new(store.clone(), host), store, options }
    }

    /// Client of the suite, with its request counts.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs every check, and returns the first violation.
    pub async fn run(&self) -> Result<(), Violation> {
        let checks: [&[Check]; 4] = [conditions::CHECKS, lists::CHECKS, times::CHECKS, large::CHECKS];
        let races = if self.options.races { races::CHECKS } else { &[] };
        for (check, run) in checks.into_iter().flatten().chain(races) {
            run(self).await.map_err(|message| Violation { check, message })?;
        }
        Ok(())
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }
}

/// Fails unless both are equal.
pub(super) fn same<T: PartialEq + fmt::Debug>(what: &str, found: &T, expected: &T) -> Checked {
    if found == expected { Ok(()) } else { Err(format!("{what} is {found:?}, not {expected:?}")) }
}

/// Converts a failure of the store into a violation.
fn failed(error: impl fmt::Display) -> String {
    error.to_string()
}
