//! Dashboard: the state of a queue on one page, and actions on tasks (cancel, retry, run now).
//!
//! ```text
//!   viewers ──▶ listener ──▶ access ──▶ routes ──▶ api ──▶ snapshot ◀── sampler ──▶ the store, or the broker
//!   Prometheus ─┘                                   │      last known state    the only periodic reader
//!                                                   └──▶ task_cache, actions: single tasks
//! ```
//!
//! The dashboard only translates: the queue decides which changes of a task are allowed. It does limit the cost of
//! viewing. A bucket bills by request, and a page that is open in ten browsers must not cost ten times as much as in one;
//! so viewers are answered from the `snapshot`, and only the `sampler` fills it, at a pace that depends on whether there is
//! a viewer, and not on how many.
//!
//! | module | contents |
//! | --- | --- |
//! | `access` | access control: token, host, origin, actions |
//! | `api` | JSON responses, one file per view |
//! | `snapshot` | last known state of the queue, with the time of each read |
//! | `chart` | charts of the last hour, by minute |
//! | `cost` | requests derived from a task's history |
//! | `figures` | counts over all tasks, computed once for all viewers |
//! | `journal_view` | broker of a journal, as last seen |
//! | `viewers` | recently viewed topics |
//! | `metrics` | metrics for Prometheus |
//! | `task_cache` | cache of opened tasks |
//! | `pace` | sampling intervals |
//! | `page` | static files of the page |
//! | `query` | filter and order of a task list |
//! | `routes` | HTTP routes |
//! | `sampler` | reads the queue into the snapshot, one source per layout |
//! | `table` | compact table of all tasks as last read |

mod access;
mod api;
mod chart;
mod cost;
mod figures;
mod journal_view;
mod metrics;
mod pace;
mod page;
mod query;
mod routes;
mod sampler;
mod snapshot;
mod table;
mod task_cache;
#[cfg(test)]
mod testing;
mod viewers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use leasehold_core::{Error, Result};
use leasehold_http::{HttpListener, ListenerLimits};
use leasehold_queue::Queue;
use leasehold_store::Prices;
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use serde::Serialize;
use serde_json::Value;

pub use access::Token;
pub use pace::RefreshPace;

use routes::{App, Routes};

/// Connection limits of the dashboard. A browser opens at most six connections, so this is enough for forty viewers, ten of
/// them behind one address; they poll, and retry when they are rejected. A request head has a few hundred bytes and arrives
/// in one packet or two; a client that takes longer than two seconds would only block other clients.
const LIMITS: ListenerLimits = ListenerLimits {
    connections_max: 256,
    per_address_max: 64,
    header_wait: Duration::from_secs(2),
    idle_wait: Duration::from_mins(1),
};

/// Options of the dashboard.
#[derive(Debug, Clone)]
pub struct WebOptions {
    /// Address to listen on; port 0 selects a free port.
    pub addr: SocketAddr,
    /// Token that viewers must send. Without it only this machine has access.
    pub token: Option<Token>,
    /// True if tasks can be changed; otherwise the dashboard is read-only.
    pub allows_actions: bool,
    /// Sampling intervals.
    pub pace: RefreshPace,
    /// Prices of requests.
    pub prices: Prices,
    /// Settings to show, with secrets masked.
    pub settings: Vec<SettingRow>,
}

impl WebOptions {
    fn check(&self) -> Result<()> {
        if self.token.is_none() && !self.addr.ip().to_canonical().is_loopback() {
            return Err(Error::invalid(format!(
                "`{}` can be reached from other machines, which requires a token: pass --token, or listen on 127.0.0.1",
                self.addr
            )));
        }
        Ok(())
    }
}

/// A row of the settings view.
#[derive(Debug, Clone, Serialize)]
pub struct SettingRow {
    /// Name of the setting.
    pub key: String,
    /// Value; a secret is already masked.
    pub value: Value,
    /// Source of the value.
    pub from: String,
}

/// A dashboard that is bound to its address.
#[derive(Debug)]
pub struct Dashboard {
    listener: HttpListener,
    app: Arc<App>,
}

impl Dashboard {
    /// Binds the address. Serves no requests, and sends none to the store, before [`Dashboard::run`].
    pub async fn bind(queue: Queue, options: WebOptions) -> Result<Self> {
        options.check()?;
        let listener = HttpListener::bind(options.addr, LIMITS, queue.host().clone()).await?;
        Ok(Self { listener, app: Arc::new(App::new(&queue, options)?) })
    }

    /// Returns the address that it listens on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// Serves until shutdown.
    pub async fn run(self, shutdown: Shutdown) {
        let site = Arc::new(Routes::new(self.app.clone()));
        let sampling = sampler::run(&self.app.shared, shutdown.clone());
        let serving = self.listener.run(site, shutdown.reached(Stage::Drain), shutdown.reached(Stage::Abort));
        join(serving, sampling).await;
        self.app.finish().await;
    }
}
