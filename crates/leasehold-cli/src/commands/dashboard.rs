//! `leasehold dashboard`: the queue on a page for browsers.

use clap::Args;
use leasehold_core::Kind;
use leasehold_queue::Queue;
use leasehold_web::{Dashboard as Served, Pace, SettingRow, WebOptions};
use leasehold_worker::Shutdown;
use serde_json::json;
use std::net::SocketAddr;

use crate::printer::{Printer, line};
use crate::settings::Settings;
use crate::settings::kind::Value;

/// So many ports are tried beside a worker.
const PORTS: u16 = 20;

#[derive(Debug, Args)]
pub(crate) struct Dashboard {
    /// Where to listen; an address that other machines can reach needs a token
    #[arg(long, value_name = "ADDR")]
    pub(crate) host: Option<String>,
    /// The port; 0 is any that is free
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,
    /// What viewers have to know. Others on this machine may see it here; `LEASEHOLD_DASHBOARD_TOKEN` is better
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Let viewers cancel and retry tasks; without it they only look
    #[arg(long)]
    pub(crate) allow_actions: bool,
    /// Whose prices: aws, aws-express, r2, gcs, azure
    #[arg(long, value_name = "NAME")]
    pub(crate) provider: Option<String>,
}

pub(crate) async fn run(
    queue: &Queue,
    settings: &Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let served = Served::bind(queue.clone(), options(settings, settings.dashboard.addr)).await?;
    let url = url(served.addr());
    if printer.is_json() {
        line(json!({"url": url}));
    } else {
        line(format_args!("the dashboard of {} is at {url}", queue.client().describe()));
        if !settings.dashboard.allows_actions {
            printer.note("it only shows; --allow-actions lets viewers cancel and retry tasks");
        }
        printer.note("Ctrl-C ends it");
    }
    served.run(shutdown).await;
    Ok(())
}

/// The dashboard of a worker's queue. It is a help and not the work: if the port is taken, as by another worker's, one of
/// the next will do, and if none is free the worker goes on without.
pub(super) async fn beside(
    queue: &Queue,
    settings: &Settings,
    printer: &Printer,
) -> anyhow::Result<Option<Served>> {
    let first = settings.dashboard.addr;
    let ports = (0..PORTS).map_while(|more| first.port().checked_add(more));
    let mut refused = None;
    for port in ports {
        match Served::bind(queue.clone(), options(settings, SocketAddr::new(first.ip(), port))).await {
            Ok(served) => {
                let url = url(served.addr());
                if printer.is_json() {
                    line(json!({"dashboard": url}));
                } else {
                    printer.note(&at(&url, settings.dashboard.allows_actions));
                }
                return Ok(Some(served));
            }
            Err(error) if error.kind() == Kind::Unavailable => refused = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(error) = refused {
        printer.note(&format!("there is no dashboard: {error}"));
    }
    Ok(None)
}

fn at(url: &str, allows_actions: bool) -> String {
    let more = if allows_actions { "" } else { ", --allow-actions lets viewers cancel and retry tasks" };
    format!("the dashboard is at {url}; --no-dashboard leaves it out{more}")
}

/// How it is served, by the settings; only the address may be another.
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
        pace: Pace::of(&settings.queue.store),
        prices: dashboard.prices,
        settings: rows.collect(),
    }
}

/// Where a browser finds it. Who listens everywhere can be asked here, too.
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
