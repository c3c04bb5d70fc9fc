//! `leasehold serve-pieces`: serves the pieces of cached artifacts to peers. A worker can do this too.

use clap::Args;
use futures::future::{BoxFuture, join};
use leasehold_core::{Error, Name, Result};
use leasehold_pieces::serve::ServerCounts;
use leasehold_pieces::{Announcement, Cache, PieceServer, ServeOptions, ServingLock};
use leasehold_store::{Client, HostExt, OpenMode};
use leasehold_worker::Shutdown;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{existing_client, pieces};
use crate::printer::{Printer, line};
use crate::settings::Settings;
use crate::settings::typed::PiecesSettings;

#[derive(Debug, Args)]
pub(crate) struct ServePiecesArgs {
    /// Peer id [default: random]
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Address to listen on; one that other machines can reach needs a secret (setting `pieces.secret`)
    /// [default: 127.0.0.1:0]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<String>,
    /// Address that is announced to peers [default: the listen address]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) advertise: Option<String>,
    /// Cache directory to serve (setting `pieces.cache`) [default: ~/.cache/leasehold]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<String>,
}

pub(crate) async fn run(
    args: &ServePiecesArgs,
    settings: &Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let client = existing_client(&settings.queue, OpenMode::Create)?;
    let id = args.id.clone().unwrap_or_else(|| random_name(&client, "p"));
    let serving = AnnouncedServer::start(&client, &id, &settings.pieces).await?;
    let (cache, address) = (serving.cache.root().display().to_string(), serving.address);
    if printer.is_json() {
        line(json!({"peer": id, "address": address, "cache": cache}));
    } else {
        line(format_args!("peer {id} serves {cache} at {address}"));
        printer.note("Ctrl-C finishes the responses that were started, a second Ctrl-C stops at once");
    }
    let ServerCounts { connections, requests, answered, bytes, .. } = serving.run(&shutdown).await?;
    if printer.is_json() {
        line(json!({"connections": connections, "requests": requests, "answered": answered, "bytes": bytes}));
    } else {
        line(format_args!("{answered} of {requests} requests were answered, with {bytes} bytes"));
    }
    Ok(())
}

/// Random name with a prefix.
pub(super) fn random_name(client: &Client, prefix: &str) -> String {
    format!("{prefix}-{:08x}", client.host().random_bits() & 0xffff_ffff)
}

/// Piece server that is listening and announced to peers.
pub(super) struct AnnouncedServer {
    server: PieceServer,
    announcement: Announcement,
    cache: Cache,
    pub(super) address: SocketAddr,
    _mark: ServingLock,
}

impl AnnouncedServer {
    /// Marks the cache as served, listens, and announces it.
    pub(super) async fn start(client: &Client, id: &str, settings: &PiecesSettings) -> Result<Self> {
        let name = Name::checked("peer id", id)?;
        let cache = pieces::cache(settings)?;
        let options = ServeOptions {
            addr: settings.listen,
            secret: settings.secret.clone(),
            upload_bytes_per_sec: settings.upload_bytes_per_sec,
            ..ServeOptions::default()
        };
        let (clock, host) = (client.clone(), client.host().clone());
        // First of all: of several servers that start together, the losers report which one serves the cache.
        let (marked, me) = (cache.clone(), name.clone());
        let mark = host.blocking(move || marked.serve_as(&me)).await?;
        let present = Arc::new(move || clock.now());
        let server = PieceServer::bind(Arc::new(cache.clone()), options, host.clone(), present).await?;
        let address = announced_address(server.addr(), settings.advertise)?;
        let announcement = Announcement::claim(client, &name, address).await?;
        Ok(Self { server, announcement, cache, address, _mark: mark })
    }

    /// Serves until it is stopped, or the lease on its peer id is lost.
    pub(super) async fn run(self, shutdown: &Shutdown) -> Result<ServerCounts> {
        let counters = self.server.counters();
        // When one of the two ends, the other is stopped.
        let stop = shutdown.child();
        let announced = async {
            let ended = self.announcement.run(stop.clone()).await;
            stop.drain();
            ended
        };
        let served = async {
            let ended = self.server.run(stop.clone()).await;
            stop.drain();
            ended
        };
        let (announced, served) = join(announced, served).await;
        announced.and(served)?;
        Ok(counters.snapshot())
    }

    /// Serves pieces beside a worker. The worker continues if serving fails.
    pub(super) async fn run_beside<T>(
        serving: Option<Self>,
        work: BoxFuture<'_, T>,
        shutdown: &Shutdown,
        printer: &Printer,
    ) -> T {
        let Some(serving) = serving else { return work.await };
        let stop = shutdown.child();
        let work = async {
            let done = work.await;
            stop.drain();
            done
        };
        let serve = async {
            if let Err(error) = serving.run(&stop).await {
                printer.note(&format!("stopped serving pieces: {error}"));
            }
        };
        join(work, serve).await.0
    }
}

/// Address that is announced to peers.
fn announced_address(bound: SocketAddr, advertise: Option<SocketAddr>) -> Result<SocketAddr> {
    let mut address = advertise.unwrap_or(bound);
    if address.port() == 0 {
        address.set_port(bound.port());
    }
    if address.ip().is_unspecified() {
        let message =
            format!("peers cannot connect to {address}; set their address with --advertise ADDR:PORT");
        return Err(Error::invalid(message));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_can_connect_to_the_announced_address() {
        let parsed = |text: &str| text.parse::<SocketAddr>().unwrap();
        let bound = parsed("0.0.0.0:7400");
        assert!(announced_address(bound, None).is_err());
        assert_eq!(announced_address(bound, Some(parsed("10.0.0.5:0"))).unwrap(), parsed("10.0.0.5:7400"));
        assert_eq!(announced_address(bound, Some(parsed("10.0.0.5:80"))).unwrap(), parsed("10.0.0.5:80"));
        assert_eq!(announced_address(parsed("127.0.0.1:7"), None).unwrap(), parsed("127.0.0.1:7"));
    }
}
