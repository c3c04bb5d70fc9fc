//! Accepts TCP connections, a bounded number in all and from one address, until an orderly shutdown. An implementation of
//! [`StreamHandler`] serves each of them.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use leasehold_core::{Error, Kind, Result};
use leasehold_store::Host;
use leasehold_store::host::End;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

/// Pause after a connection could not be accepted, as when there are no file handles left: some may be closed meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Number of connections that wait to be accepted, as tokio's own listeners have it.
const BACKLOG: u32 = 1_024;

/// Handler of the connections of an acceptor.
pub trait StreamHandler: Send + Sync + 'static {
    /// Serves a connection until its end. When `is_draining` becomes true, it ends as soon as what is in progress is finished.
    fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        is_draining: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send;

    /// Refuses a connection beyond the limits, without waiting.
    fn refuse(&self, stream: TcpStream);
}

/// Limits of an acceptor.
#[derive(Debug, Clone, Copy)]
pub struct AcceptLimits {
    /// Most connections at a time.
    pub connections_max: usize,
    /// Most connections from one address at a time, so that one client cannot lock out the others.
    pub per_address_max: usize,
}

/// Port that is bound and does not listen yet, so that its number is known before a server is ready. It belongs to no
/// runtime.
#[derive(Debug)]
pub struct BoundPort {
    socket: TcpSocket,
    addr: SocketAddr,
}

impl BoundPort {
    /// Binds an address; port 0 picks a free one.
    pub fn bind(addr: SocketAddr) -> Result<Self> {
        let bind = || {
            let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // Connections of an earlier server that are closed and not yet forgotten do not matter.
            socket.set_reuseaddr(true)?;
            socket.bind(addr)?;
            Ok(Self { addr: socket.local_addr()?, socket })
        };
        bind().map_err(|error| cannot_listen(addr, error))
    }

    /// Address that is bound.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Listens, in the runtime of the caller.
    #[expect(clippy::disallowed_methods, reason = "this is the one listener")]
    pub fn listen(self, limits: AcceptLimits, host: Arc<dyn Host>) -> Result<Acceptor> {
        let listener = self.socket.listen(BACKLOG).map_err(|error| cannot_listen(self.addr, error))?;
        Ok(Acceptor { listener, addr: self.addr, limits, host })
    }
}

/// Bounded listener for TCP connections.
#[derive(Debug)]
pub struct Acceptor {
    listener: TcpListener,
    addr: SocketAddr,
    limits: AcceptLimits,
    host: Arc<dyn Host>,
}

impl Acceptor {
    /// Listens on an address; nothing is accepted before [`Acceptor::run`].
    #[expect(clippy::disallowed_methods, reason = "this is the one listener")]
    pub async fn bind(addr: SocketAddr, limits: AcceptLimits, host: Arc<dyn Host>) -> Result<Self> {
        let listener = TcpListener::bind(addr).await.map_err(|error| cannot_listen(addr, error))?;
        let addr = listener.local_addr().map_err(|error| cannot_listen(addr, error))?;
        Ok(Self { listener, addr, limits, host })
    }

    /// Address of the listener.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Host on which connections are served.
    pub(crate) fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// Accepts connections until shutdown. When `drain` is ready, it accepts no new connections and waits for the open ones;
    /// when `abort` is ready, it ends them. Two futures, so that a server needs no more of its owner than the moments to
    /// stop.
    pub async fn run(
        self,
        handler: Arc<impl StreamHandler>,
        drain: impl Future<Output = ()>,
        abort: impl Future<Output = ()>,
    ) {
        let mut connections = FuturesUnordered::new();
        let mut clients = Clients::default();
        let is_draining = watch::Sender::new(false);
        let (mut drain, mut abort) = (std::pin::pin!(drain), std::pin::pin!(abort));
        loop {
            tokio::select! {
                () = &mut abort => return,
                () = &mut drain => break,
                Some((client, end)) = connections.next() => {
                    clients.remove(client);
                    log_panic(&end);
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, from)) => {
                        let client = client_of(from.ip());
                        let has_room = connections.len() < self.limits.connections_max;
                        if has_room && clients.add(client, self.limits.per_address_max) {
                            // Without this, two parts of an answer may be 40 ms apart.
                            let _ = stream.set_nodelay(true);
                            let serving = handler.clone().serve(stream, is_draining.subscribe());
                            let serving = self.host.spawn(Box::pin(serving));
                            connections.push(serving.map(move |end| (client, end)));
                        } else {
                            handler.refuse(stream);
                        }
                    }
                    Err(error) => self.pause_after_error(&error).await,
                },
            }
        }
        // No new connections; open ones end when they have finished.
        drop(self.listener);
        is_draining.send_replace(true);
        tokio::select! {
            () = abort => {}
            () = async { while let Some((_, end)) = connections.next().await { log_panic(&end) } } => {}
        }
    }

    /// Pauses after a failed accept. A connection that was closed before it was accepted is no failure.
    async fn pause_after_error(&self, error: &io::Error) {
        if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            tracing::warn!(%error, "failed to accept connection, retrying");
            self.host.sleep(ACCEPT_PAUSE).await;
        }
    }
}

fn cannot_listen(addr: SocketAddr, error: io::Error) -> Error {
    Error::new(Kind::Unavailable, format!("cannot listen on `{addr}`: {error}")).because(error)
}

/// Number of open connections per client.
#[derive(Debug, Default)]
struct Clients(HashMap<IpAddr, usize>);

impl Clients {
    /// Adds a connection of a client, unless it has `max` already.
    fn add(&mut self, client: IpAddr, max: usize) -> bool {
        let count = self.0.get(&client).copied().unwrap_or(0);
        if count < max {
            self.0.insert(client, count + 1);
        }
        count < max
    }

    /// Removes a connection of a client, and the client with its last one.
    fn remove(&mut self, client: IpAddr) {
        if let Some(count) = self.0.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&client);
            }
        }
    }
}

/// Client that a connection counts for: an IPv4 address, or an IPv6 /64 network, whose addresses one machine may have.
fn client_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

fn log_panic(end: &End) {
    if let End::Panicked(message) = end {
        tracing::error!(panic = message, "connection task panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_counts_by_its_address_or_its_network() {
        let client = |ip: &str| client_of(ip.parse().unwrap()).to_string();
        assert_eq!(client("192.0.2.7"), "192.0.2.7");
        assert_eq!(client("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(client("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }

    #[test]
    fn a_disconnected_client_no_longer_counts() {
        let (mut clients, one) = (Clients::default(), client_of([192, 0, 2, 7].into()));
        assert!(clients.add(one, 2) && clients.add(one, 2) && !clients.add(one, 2));
        assert!(clients.add(client_of([192, 0, 2, 8].into()), 2));
        clients.remove(one);
        assert!(clients.add(one, 2));
        clients.remove(one);
        clients.remove(one);
        assert_eq!(clients.0.len(), 1);
    }
}
