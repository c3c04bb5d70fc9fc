//! The dashboard: how a queue is, on one page, and the few things that people do to tasks.
//!
//! ```text
//!   viewers ──▶ door ──▶ access ──▶ routes ──▶ api ──▶ board ◀── sampler ──▶ the store
//!   Prometheus ─┘      may they?                │    what is known    the only one that asks by itself
//!                                               └──▶ opened, actions: one task, at once
//! ```
//!
//! It holds no rules, it translates: what may happen to a task is decided where it always is. What it does decide is how
//! much looking may cost. A bucket bills by request, and a page that is open in ten browsers must not cost ten times as
//! much as in one; so viewers are answered from the `board`, and only the `sampler` fills it, at a pace that depends on
//! whether anybody looks, and not on how many.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `access` | who may ask for what: token, host, origin, actions |
//! | `api` | the answers in JSON, one file per view |
//! | `board` | what is known, and since when |
//! | `chart` | the last hour in minutes |
//! | `cost` | the requests that a task's history stands for |
//! | `figures` | everything that is counted over all tasks, counted once |
//! | `looks` | who has looked at what lately |
//! | `metrics` | the same for Prometheus |
//! | `opened` | single tasks, read once for all who open them together |
//! | `pace` | how often the store is asked |
//! | `page` | the files of the page |
//! | `query` | which tasks a list shows, in which order |
//! | `routes` | from a request to an answer |
//! | `sampler` | reads the store into the board |
//! | `table` | tasks as they were last read, small |

mod access;
mod api;
mod board;
mod chart;
mod cost;
mod figures;
mod looks;
mod metrics;
mod opened;
mod pace;
mod page;
mod query;
mod routes;
mod sampler;
mod table;
#[cfg(test)]
mod testing;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use leasehold_core::{Error, Result};
use leasehold_pieces::serve::door::{Bounds, Door};
use leasehold_queue::Queue;
use leasehold_store::Prices;
use leasehold_worker::Shutdown;
use serde::Serialize;
use serde_json::Value;

pub use access::Token;
pub use pace::Pace;

use routes::{App, Site};

/// The door of the dashboard. A browser opens six connections at most, so this is enough for forty viewers, ten of them
/// behind one address; they poll, and come again when they were turned away. A head has a few hundred bytes and comes in one
/// packet or two; what takes longer than two seconds would only keep others out.
const BOUNDS: Bounds = Bounds {
    connections_max: 256,
    per_address_max: 64,
    header_wait: Duration::from_secs(2),
    idle_wait: Duration::from_mins(1),
};

/// How the dashboard is served.
#[derive(Debug, Clone)]
pub struct WebOptions {
    /// Where to listen; port 0 lets the system choose.
    pub addr: SocketAddr,
    /// What viewers have to know. Without it only this machine may ask.
    pub token: Option<Token>,
    /// Whether tasks can be changed, or only looked at.
    pub allows_actions: bool,
    /// How often the store may be asked.
    pub pace: Pace,
    /// What requests cost.
    pub prices: Prices,
    /// The settings to show, with secrets masked.
    pub settings: Vec<SettingRow>,
}

impl WebOptions {
    fn check(&self) -> Result<()> {
        if self.token.is_none() && !self.addr.ip().to_canonical().is_loopback() {
            return Err(Error::invalid(format!(
                "`{}` can be reached from other machines and there is no token: give one with --token, or listen on 127.0.0.1",
                self.addr
            )));
        }
        Ok(())
    }
}

/// A setting, as the settings view shows it.
#[derive(Debug, Clone, Serialize)]
pub struct SettingRow {
    /// Its name.
    pub key: String,
    /// What it is; a secret is masked already.
    pub value: Value,
    /// Who said so.
    pub from: String,
}

/// A dashboard that listens.
#[derive(Debug)]
pub struct Dashboard {
    door: Door,
    app: Arc<App>,
}

impl Dashboard {
    /// Listens; nothing is answered, and the store is not asked, before [`Dashboard::run`].
    pub async fn bind(queue: Queue, options: WebOptions) -> Result<Self> {
        options.check()?;
        let host = queue.client().host().clone();
        let door = Door::open(options.addr, BOUNDS, host).await?;
        Ok(Self { door, app: Arc::new(App::new(queue, options)) })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.door.addr()
    }

    /// Serves until it is stopped.
    pub async fn run(self, shutdown: Shutdown) {
        let site = Arc::new(Site::new(self.app.clone()));
        let sampling = sampler::run(&self.app.shared, shutdown.clone());
        join(self.door.run(site, shutdown), sampling).await;
        self.app.finish().await;
    }
}
