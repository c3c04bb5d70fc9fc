//! `leasehold serve-pieces`: gives the pieces of this machine's cache to peers. A worker can do so, too.

use clap::Args;
use futures::future::{BoxFuture, join};
use leasehold_core::{Error, Name, Result};
use leasehold_pieces::serve::Served;
use leasehold_pieces::{Announcement, Cache, PieceServer, ServeOptions, ServingMark};
use leasehold_store::{Client, HostExt, OpenMode};
use leasehold_worker::Shutdown;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{existing, pieces};
use crate::printer::{Printer, line};
use crate::settings::Settings;
use crate::settings::typed::Pieces;

#[derive(Debug, Args)]
pub(crate) struct ServePieces {
    /// The name under which peers know it; by default one made by chance
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// Where to listen; other machines can ask only if there is a secret (setting `pieces.secret`)
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<String>,
    /// The address that peers are told, if it is another
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) advertise: Option<String>,
    /// The cache to serve
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<String>,
}

pub(crate) async fn run(
    args: &ServePieces,
    settings: &Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let client = existing(&settings.queue, OpenMode::Create)?;
    let id = args.id.clone().unwrap_or_else(|| by_chance(&client, "p"));
    let serving = Serving::start(&client, &id, &settings.pieces).await?;
    let (cache, address) = (serving.cache.root().display().to_string(), serving.address);
    if printer.is_json() {
        line(json!({"peer": id, "address": address, "cache": cache}));
    } else {
        line(format_args!("{id} serves {cache} at {address}"));
        printer.note("Ctrl-C drains, twice aborts");
    }
    let Served { connections, requests, answered, bytes, .. } = serving.run(&shutdown).await?;
    if printer.is_json() {
        line(json!({"connections": connections, "requests": requests, "answered": answered, "bytes": bytes}));
    } else {
        line(format_args!("{answered} of {requests} requests were answered, with {bytes} bytes"));
    }
    Ok(())
}

/// A name that nobody else has.
pub(super) fn by_chance(client: &Client, beginning: &str) -> String {
    format!("{beginning}-{:08x}", client.host().random_bits() & 0xffff_ffff)
}

/// A server that listens, and of which others know.
pub(super) struct Serving {
    server: PieceServer,
    announcement: Announcement,
    cache: Cache,
    pub(super) address: SocketAddr,
    _mark: ServingMark,
}

impl Serving {
    /// Marks the cache as served, listens, and announces it.
    pub(super) async fn start(client: &Client, id: &str, settings: &Pieces) -> Result<Self> {
        let name = Name::checked("peer id", id)?;
        let cache = pieces::cache(settings)?;
        let options = ServeOptions {
            addr: settings.listen,
            secret: settings.secret.clone(),
            upload_bytes_per_sec: settings.upload_bytes_per_sec,
            ..ServeOptions::default()
        };
        let (clock, host) = (client.clone(), client.host().clone());
        // First of all: of several that begin together, the others are to know whom they have lost to.
        let (marked, me) = (cache.clone(), name.clone());
        let mark = host.blocking(move || marked.serve_as(&me)).await?;
        let present = Arc::new(move || clock.now());
        let server = PieceServer::bind(Arc::new(cache.clone()), options, host.clone(), present).await?;
        let address = told(server.addr(), settings.advertise)?;
        let announcement = Announcement::make(client, &name, address).await?;
        Ok(Self { server, announcement, cache, address, _mark: mark })
    }

    /// Serves until it is stopped, or its name is lost.
    pub(super) async fn run(self, shutdown: &Shutdown) -> Result<Served> {
        let tally = self.server.tally();
        // One of the two takes the other with it.
        let stop = shutdown.below();
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
        Ok(tally.served())
    }

    /// Serves while a worker works. A worker that cannot serve any more goes on.
    pub(super) async fn beside<T>(
        serving: Option<Self>,
        work: BoxFuture<'_, T>,
        shutdown: &Shutdown,
        printer: &Printer,
    ) -> T {
        let Some(serving) = serving else { return work.await };
        let stop = shutdown.below();
        let work = async {
            let done = work.await;
            stop.drain();
            done
        };
        let serve = async {
            if let Err(error) = serving.run(&stop).await {
                printer.note(&format!("pieces are not served any more: {error}"));
            }
        };
        join(work, serve).await.0
    }
}

/// The address that others are told.
fn told(bound: SocketAddr, advertise: Option<SocketAddr>) -> Result<SocketAddr> {
    let mut told = advertise.unwrap_or(bound);
    if told.port() == 0 {
        told.set_port(bound.port());
    }
    if told.ip().is_unspecified() {
        let message = format!("nobody can ask at {told}; say at which address with --advertise ADDR:PORT");
        return Err(Error::invalid(message));
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_told_an_address_that_they_can_ask_at() {
        let parsed = |text: &str| text.parse::<SocketAddr>().unwrap();
        let bound = parsed("0.0.0.0:7400");
        assert!(told(bound, None).is_err());
        assert_eq!(told(bound, Some(parsed("10.0.0.5:0"))).unwrap(), parsed("10.0.0.5:7400"));
        assert_eq!(told(bound, Some(parsed("10.0.0.5:80"))).unwrap(), parsed("10.0.0.5:80"));
        assert_eq!(told(parsed("127.0.0.1:7"), None).unwrap(), parsed("127.0.0.1:7"));
    }
}
