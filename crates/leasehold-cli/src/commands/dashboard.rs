//! `leasehold dashboard`: serves the dashboard.

use clap::Args;
use leasehold_core::Kind;
use leasehold_queue::Queue;
use leasehold_web::{Dashboard, RefreshPace, SettingRow, WebOptions};
use leasehold_worker::Shutdown;
use serde_json::json;
use std::net::SocketAddr;

use crate::printer::{Printer, line};
use crate::settings::Settings;
use crate::settings::kind::Value;

/// Number of ports that `up` tries.
const PORTS: u16 = 20;

#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    /// IP address to listen on; one that other machines can reach needs a token [default: 127.0.0.1]
    #[arg(long, value_name = "ADDR")]
    pub(crate) host: Option<String>,
    /// Port to listen on; 0 picks a free one [default: 7423]
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,
    /// Token that viewers need; other users of this machine can see it here, so prefer `LEASEHOLD_DASHBOARD_TOKEN`
    /// [default: none]
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Let viewers cancel, retry and reschedule tasks [default: read-only]
    #[arg(long)]
    pub(crate) allow_actions: bool,
    /// Price list: aws, aws-express, r2, gcs or azure [default: aws]
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) provider: Option<String>,
}

pub(crate) async fn run(
    queue: &Queue,
    settings: &Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let served = Dashboard::bind(queue.clone(), options(settings, settings.dashboard.addr)).await?;
    let url = url(served.addr());
    if printer.is_json() {
        line(json!({"url": url}));
    } else {
        line(format_args!("dashboard of {} at {url}", queue.describe()));
        if !settings.dashboard.allows_actions {
            printer.note("read-only; --allow-actions lets viewers cancel, retry and reschedule tasks");
        }
        printer.note("Ctrl-C stops it");
    }
    served.run(shutdown).await;
    Ok(())
}

/// Starts the dashboard beside a worker. If the port is in use, as by another `up`, tries the next ones; if none is free,
/// the worker runs without a dashboard.
pub(super) async fn start_beside_worker(
    queue: &Queue,
    settings: &Settings,
    printer: &Printer,
) -> anyhow::Result<Option<Dashboard>> {
    let first = settings.dashboard.addr;
    let ports = (0..PORTS).map_while(|more| first.port().checked_add(more));
    let mut refused = None;
    for port in ports {
        match Dashboard::bind(queue.clone(), options(settings, SocketAddr::new(first.ip(), port))).await {
            Ok(served) => {
                let url = url(served.addr());
                if printer.is_json() {
                    line(json!({"dashboard": url}));
                } else {
                    printer.note(&started_note(&url, settings.dashboard.allows_actions));
                }
                return Ok(Some(served));
            }
            Err(error) if error.kind() == Kind::Unavailable => refused = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(error) = refused {
        printer.note(&format!("dashboard not started: {error}"));
    }
    Ok(None)
}

fn started_note(url: &str, allows_actions: bool) -> String {
    let more =
        if allows_actions { "" } else { ", --allow-actions lets viewers cancel, retry and reschedule tasks" };
    format!("dashboard at {url}; --no-dashboard disables it{more}")
}

/// Options of the dashboard from the settings, with another address.
pub(super) fn options(settings: &Settings, addr: SocketAddr) -> WebOptions {
    let dashboard = settings.dashboard.clone();
    let rows = settings.all.iter().map(|effective| SettingRow {
        key: effective.setting.name.to_owned(),
        value: effective.value.as_ref().map_or(serde_json::Value::Null, Value::json),
        from: effective.origin.to_string(),
    });
    WebOptions {
        addr,
        token: dashboard.token,
        allows_actions: dashboard.allows_actions,
        pace: RefreshPace::of(&settings.queue.store),
        prices: dashboard.prices,
        settings: rows.collect(),
    }
}

/// Address for a browser: localhost if the dashboard listens on all addresses.
pub(super) fn url(mut addr: SocketAddr) -> String {
    if addr.ip().is_unspecified() {
        addr.set_ip(if addr.is_ipv4() {
            std::net::Ipv4Addr::LOCALHOST.into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    format!("http://{addr}/")
}
