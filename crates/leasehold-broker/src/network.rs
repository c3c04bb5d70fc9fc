//! Listener and client between hosts, over TLS.
//!
//! ```text
//! client                                       broker
//!   │── TCP, TLS: the broker has the key whose fingerprint is in the lease, the client has its own ──▶│
//!   │── first line with the secret of the lease ──▶│     the client can read the bucket
//!   │◀── first line ──│
//!   │── put of its fingerprint ──▶ bucket
//!   │── {"registered":true} ──▶│── get of its fingerprint ──▶ bucket: the client can write to it
//!   │◀── {"may_change":true} ──│
//! ```
//!
//! The client sends the secret only to the holder of the key in the lease. Everything on the connection is encrypted and
//! cannot be replayed on another one, so single requests are not signed. The listener has a thread of its own: many
//! handshakes, and the encryption of large answers, do not delay the broker.

use futures::future::{Either, select};
use leasehold_core::limits::{
    BROKER_CLIENTS_MAX, BROKER_CLIENTS_PER_ADDRESS_MAX, BROKER_LINE_BYTES_MAX, BROKER_READ_BYTES_MAX,
};
use leasehold_core::{Error, HexName, Kind, Result};
use leasehold_http::{AcceptLimits, Acceptor, BoundPort, StreamHandler};
use leasehold_store::host::Running;
use leasehold_store::{Client, Host, HostExt};
use rustls::ServerConfig;
use rustls::pki_types::{IpAddr, ServerName};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::access::{REGISTER_TIMEOUT, delete_leftovers, register, verify};
use crate::handshake::network::{Permission, Registration, check_client, permission, refusal};
use crate::handshake::{self, HELLO_BYTES_MAX};
use crate::lines::{ANSWER_BYTES_MAX, LineReader, StallLimit, carry, channel, closed, spawn_carrier, within};
use crate::tls::{TlsIdentity, fingerprint};
use crate::transport::{AcceptedClient, ClientAccess, LeaseSecret, LineChannel, NetworkAddress};

/// Time limit for connecting and for the first line of the broker. A process that waits for the lease of a broker which does not
/// answer notices its expiry late by at most this and the pause between two attempts.
const CONNECT_WAIT: Duration = Duration::from_secs(4);

/// Time of a client for its TLS handshake and its first line.
const HELLO_WAIT: Duration = Duration::from_secs(10);

/// Time in which a client registers its key; its first line has shown that it can read the bucket.
const REGISTRATION_WAIT: Duration = Duration::from_secs(REGISTER_TIMEOUT.as_secs() + 10);

/// Time without progress after which the other end counts as gone: three empty lines of the broker.
const STALL_MAX: Duration = Duration::from_secs(15);

/// Pause after the port could not be bound: the last broker of this host may be about to release it.
const BIND_PAUSE: Duration = Duration::from_secs(1);

/// Addresses at which a broker accepts connections of other hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkListen {
    listen: SocketAddr,
    advertise: Option<SocketAddr>,
}

impl NetworkListen {
    /// Listens on `listen`; port 0 picks a free one. The lease names `advertise`, with port 0 that of the listener; by default
    /// `listen`.
    pub fn new(listen: SocketAddr, advertise: Option<SocketAddr>) -> Result<Self> {
        let named = advertise.unwrap_or(listen);
        if named.ip().is_unspecified() {
            let message = format!(
                "other hosts cannot connect to {named}; set broker.advertise to an address of this host, like 10.0.0.5:0"
            );
            return Err(Error::invalid(message));
        }
        Ok(Self { listen, advertise })
    }

    /// Address for the lease.
    fn advertised(&self, port: u16) -> SocketAddr {
        let mut named = self.advertise.unwrap_or(self.listen);
        if named.port() == 0 {
            named.set_port(port);
        }
        named
    }
}

/// Listener for other hosts that accepts nothing yet.
pub(crate) struct PreparedNetwork {
    listen: SocketAddr,
    /// A port that the kernel has picked.
    port: Option<BoundPort>,
    tls: Arc<ServerConfig>,
    pub(crate) address: NetworkAddress,
}

impl PreparedNetwork {
    /// Makes a key pair and a secret. A port that is given is bound only by the broker: other processes of the host have the
    /// same settings.
    pub(crate) fn new(network: &NetworkListen, host: &dyn Host) -> Result<Self> {
        let port = match network.listen.port() {
            0 => Some(BoundPort::bind(network.listen)?),
            _ => None,
        };
        let listen = port.as_ref().map_or(network.listen, BoundPort::addr);
        let identity = TlsIdentity::new()?;
        let address = NetworkAddress {
            addresses: vec![network.advertised(listen.port()).to_string()],
            fingerprint: identity.fingerprint().to_owned(),
            secret: LeaseSecret::from_random(host.random_bits()),
        };
        Ok(Self { listen, port, tls: Arc::new(identity.server()?), address })
    }

    /// Accepts connections for the broker `instance` until no more are received.
    pub(crate) fn serve(
        self,
        store: &Client,
        instance: HexName,
        connections: mpsc::Sender<AcceptedClient>,
    ) -> Running {
        // Connections to the store belong to the thread that uses them.
        let store = store.detached();
        let host = store.host().clone();
        host.spawn_thread("leasehold-network", Box::pin(self.run(store, instance, connections)))
    }

    async fn run(self, store: Client, instance: HexName, connections: mpsc::Sender<AcceptedClient>) {
        let Self { listen, port, tls, address: NetworkAddress { secret, .. } } = self;
        let host = store.host().clone();
        let Some(acceptor) = bind(listen, port, &host, &connections).await else { return };
        tracing::info!(addr = %acceptor.addr(), "broker listens for other hosts");
        let swept = store.clone();
        let _sweeping = host.spawn(Box::pin(async move {
            if let Err(error) = delete_leftovers(&swept).await {
                tracing::debug!(%error, "failed to delete the keys of failed connections, leaving them to the next broker");
            }
        }));
        let no_longer = connections.clone();
        let clients =
            NetworkClients { tls: TlsAcceptor::from(tls), secret, instance, store, connections, host };
        acceptor.run(Arc::new(clients), no_longer.closed(), std::future::pending()).await;
    }
}

/// Binds a port, as often as it takes; none if the broker has ended before.
async fn bind(
    listen: SocketAddr,
    mut port: Option<BoundPort>,
    host: &Arc<dyn Host>,
    connections: &mpsc::Sender<AcceptedClient>,
) -> Option<Acceptor> {
    let limits =
        AcceptLimits { connections_max: BROKER_CLIENTS_MAX, per_address_max: BROKER_CLIENTS_PER_ADDRESS_MAX };
    let mut is_reported = false;
    loop {
        let bound = port.take().map_or_else(|| BoundPort::bind(listen), Ok);
        match bound.and_then(|port| port.listen(limits, host.clone())) {
            Ok(acceptor) => return Some(acceptor),
            Err(error) if !is_reported => {
                tracing::warn!(%error, "broker cannot be reached from other hosts, retrying");
                is_reported = true;
            }
            Err(_) => {}
        }
        if let Either::Right(_) = select(host.sleep(BIND_PAUSE), pin!(connections.closed())).await {
            return None;
        }
    }
}

/// Greets the clients of a broker and passes their lines.
struct NetworkClients {
    tls: TlsAcceptor,
    secret: LeaseSecret,
    instance: HexName,
    store: Client,
    connections: mpsc::Sender<AcceptedClient>,
    host: Arc<dyn Host>,
}

type Reader<S> = LineReader<ReadHalf<S>>;
type ServerStream = server::TlsStream<TcpStream>;
type ClientStream = client::TlsStream<TcpStream>;

impl StreamHandler for NetworkClients {
    async fn serve(self: Arc<Self>, stream: TcpStream, mut is_draining: watch::Receiver<bool>) {
        let draining = is_draining.wait_for(|is_draining| *is_draining);
        let greeted = match select(pin!(self.greet(stream)), pin!(draining)).await {
            Either::Left((greeted, _)) => greeted,
            // It finds the next broker.
            Either::Right(_) => return,
        };
        let (reader, writer, access) = match greeted {
            Ok(greeted) => greeted,
            Err(error) => {
                tracing::debug!(%error, "refused a connection to the broker");
                return;
            }
        };
        let (channel, ends) = channel();
        if self.connections.send(AcceptedClient { channel, access }).await.is_ok()
            && let Err(error) = carry(reader, writer, ends).await
        {
            tracing::debug!(%error, "connection of a client of the broker failed");
        }
    }

    fn refuse(&self, stream: TcpStream) {
        drop(stream);
        tracing::debug!("too many connections from other hosts, refused one");
    }
}

impl NetworkClients {
    async fn greet(
        &self,
        stream: TcpStream,
    ) -> Result<(Reader<ServerStream>, WriteHalf<ServerStream>, ClientAccess)> {
        let (mut reader, mut writer, fingerprint) =
            within(&*self.host, HELLO_WAIT, self.authenticate(stream)).await?;
        let access =
            within(&*self.host, REGISTRATION_WAIT, self.authorize(&mut reader, &mut writer, &fingerprint))
                .await?;
        reader.set_bytes_max(match access {
            ClientAccess::Full => BROKER_LINE_BYTES_MAX,
            ClientAccess::ReadOnly => BROKER_READ_BYTES_MAX,
        });
        reader.set_stall_limit(StallLimit { host: self.host.clone(), wait: STALL_MAX });
        Ok((reader, writer, access))
    }

    /// Checks that a client can read the bucket; returns the fingerprint of its key, too.
    async fn authenticate(
        &self,
        stream: TcpStream,
    ) -> Result<(Reader<ServerStream>, WriteHalf<ServerStream>, String)> {
        let stream = self.tls.accept(stream).await.map_err(closed)?;
        let keys = stream.get_ref().1.peer_certificates();
        let key = keys.and_then(<[_]>::first).map(|key| fingerprint(key));
        let fingerprint = key.ok_or_else(|| Error::new(Kind::Denied, "the client has no public key"))?;
        let (reader, mut writer) = split(stream);
        let mut reader = LineReader::new(reader, HELLO_BYTES_MAX);
        let line = reader.expect().await?;
        if let Err(error) = check_client(&line, &self.instance, &self.secret) {
            return Err(refuse(&mut writer, error).await);
        }
        send(&mut writer, &handshake::hello(&self.instance, None)).await?;
        Ok((reader, writer, fingerprint))
    }

    /// Determines whether a client can write to the bucket.
    async fn authorize(
        &self,
        reader: &mut LineReader<impl AsyncRead + Unpin>,
        writer: &mut (impl AsyncWrite + Unpin),
        fingerprint: &str,
    ) -> Result<ClientAccess> {
        let Registration { registered } = handshake::parse(&reader.expect().await?)?;
        let access =
            if registered { verify(&self.store, fingerprint).await } else { Ok(ClientAccess::ReadOnly) };
        let access = match access {
            Ok(access) => access,
            Err(error) => return Err(refuse(writer, error).await),
        };
        send(writer, &handshake::line(&Permission { may_change: access == ClientAccess::Full })).await?;
        Ok(access)
    }
}

/// Connects to a broker of another host. No error is evidence that it has ended. Requests: 1 put.
pub(crate) async fn connect(
    store: &Client,
    network: &NetworkAddress,
    instance: &HexName,
) -> Result<LineChannel> {
    let host = store.host();
    let identity = TlsIdentity::new()?;
    let tls = TlsConnector::from(Arc::new(identity.client(&network.fingerprint)?));
    let greeting = async {
        let (stream, addr) = connect_any(&network.addresses).await?;
        // It is not used: the fingerprint names the broker.
        let name = ServerName::IpAddress(IpAddr::from(addr.ip()));
        let (reader, mut writer) = split(tls.connect(name, stream).await.map_err(closed)?);
        let mut reader: Reader<ClientStream> = LineReader::new(reader, HELLO_BYTES_MAX);
        send(&mut writer, &handshake::hello(instance, Some(&network.secret))).await?;
        handshake::check(&reader.expect().await?, instance)?;
        Ok((reader, writer))
    };
    let (mut reader, mut writer) = within(&**host, CONNECT_WAIT, greeting).await?;
    let registered = register(store, identity.fingerprint()).await?;
    let permitted = async {
        send(&mut writer, &handshake::line(&Registration { registered })).await?;
        permission(&reader.expect().await?)
    };
    let Permission { may_change } = within(&**host, REGISTRATION_WAIT, permitted).await?;
    if registered && !may_change {
        tracing::warn!("broker does not find the key of this process in the bucket, connected to read only");
    }
    reader.set_bytes_max(ANSWER_BYTES_MAX);
    reader.set_stall_limit(StallLimit { host: host.clone(), wait: STALL_MAX });
    Ok(spawn_carrier(&**host, reader, writer))
}

/// Connects to the first address that answers.
async fn connect_any(addresses: &[String]) -> Result<(TcpStream, SocketAddr)> {
    let mut failure = Error::new(Kind::Unavailable, "the lease names no address of the broker");
    for address in addresses {
        let Ok(addr) = address.parse::<SocketAddr>() else { continue };
        match TcpStream::connect(addr).await {
            Ok(stream) => {
                // A line is sent when it is complete.
                let _ = stream.set_nodelay(true);
                return Ok((stream, addr));
            }
            Err(error) => {
                let message = format!("failed to connect to the broker at {addr}: {error}");
                failure = Error::new(Kind::Unavailable, message).because(error);
            }
        }
    }
    Err(failure)
}

/// Writes a line of the handshake.
async fn send(writer: &mut (impl AsyncWrite + Unpin), line: &[u8]) -> Result<()> {
    writer.write_all(line).await.map_err(closed)?;
    writer.flush().await.map_err(closed)
}

/// Sends the reason of a refusal, as far as possible.
async fn refuse(writer: &mut (impl AsyncWrite + Unpin), why: Error) -> Error {
    let _ = send(writer, &refusal(&why)).await;
    let _ = writer.shutdown().await;
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_names_an_address_to_which_other_hosts_can_connect() {
        let parsed = |text: &str| text.parse::<SocketAddr>().unwrap();
        let named = |listen, advertise: Option<&str>| {
            let listen = NetworkListen::new(parsed(listen), advertise.map(parsed))?;
            Ok::<_, Error>(listen.advertised(7_411).to_string())
        };
        assert_eq!(named("10.0.0.5:7400", None).unwrap(), "10.0.0.5:7400");
        assert_eq!(named("127.0.0.1:0", None).unwrap(), "127.0.0.1:7411");
        assert_eq!(named("0.0.0.0:7400", Some("10.0.0.5:0")).unwrap(), "10.0.0.5:7411");
        assert_eq!(named("[::]:7400", Some("10.0.0.5:80")).unwrap(), "10.0.0.5:80");
        for (listen, advertise) in
            [("0.0.0.0:7400", None), ("[::]:0", None), ("10.0.0.5:1", Some("0.0.0.0:1"))]
        {
            let error = named(listen, advertise).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains("set broker.advertise"), "{error}");
        }
    }
}
