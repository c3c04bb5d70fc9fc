//! Listener and client on a Unix socket.
//!
//! Requests of a connection are bounded in length and number, a client that does not send its first line in time is
//! disconnected, and from one that does not read its answers no more requests are read.

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use leasehold_core::limits::{BROKER_CLIENTS_MAX, BROKER_LINE_BYTES_MAX};
use leasehold_core::{Error, HexName, Kind, Result};
use leasehold_store::host::Running;
use leasehold_store::{Client, Host};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use crate::handshake::{self, HELLO_BYTES_MAX};
use crate::lines::{ANSWER_BYTES_MAX, LineReader, carry, channel, closed, spawn_carrier, within};
use crate::place::{ShortPath, SocketDirectory, failed};
use crate::transport::{
    AcceptedClient, BrokerAddress, BrokerListener, BrokerTransport, ClientAccess, LineChannel,
    PreparedListener,
};

/// Time within which both ends send their first line.
const HELLO_WAIT: Duration = Duration::from_secs(5);

/// Pause after a connection could not be accepted, as when there are no file handles left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections over Unix sockets, between processes of one host.
#[derive(Debug, Clone)]
pub struct UnixSockets {
    /// Directory for the sockets of queues in buckets.
    user_directory: PathBuf,
}

impl UnixSockets {
    /// Creates a transport. The socket of a queue in a folder is in this folder; that of a queue in a bucket is below
    /// `user_directory`, which must be writable for this user only.
    #[must_use]
    pub fn new(user_directory: PathBuf) -> Self {
        Self { user_directory }
    }

    /// Usual directory of this user for the sockets of queues in buckets: `leasehold` in `$XDG_RUNTIME_DIR`; without that
    /// variable `leasehold-{uid}` in `$TMPDIR`, otherwise in `/tmp`.
    #[must_use]
    pub fn usual_directory() -> PathBuf {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
        runtime.map_or_else(
            || std::env::temp_dir().join(format!("leasehold-{}", rustix::process::geteuid().as_raw())),
            |runtime| PathBuf::from(runtime).join("leasehold"),
        )
    }

    fn directory(&self, store: &Client) -> Result<SocketDirectory> {
        SocketDirectory::of(store, &self.user_directory)
    }

    /// Address of a broker of this process.
    pub(crate) fn address(&self, store: &Client, instance: &HexName) -> Result<BrokerAddress> {
        let socket = self.directory(store)?.socket(instance);
        let socket = socket.into_os_string().into_string().map_err(|path| {
            Error::invalid(format!("the path `{}` of the broker's socket is not UTF-8", path.display()))
        })?;
        Ok(BrokerAddress { socket: Some(socket), boot: boot_id(), network: None })
    }

    /// Accepts connections for the broker `instance` until no more are received.
    pub(crate) fn serve(
        &self,
        store: &Client,
        instance: HexName,
        connections: mpsc::Sender<AcceptedClient>,
    ) -> Result<Running> {
        let directory = self.directory(store)?;
        directory.prepare()?;
        let path = directory.socket(&instance);
        let listener = bind(&path)?;
        let socket = SocketFile(path);
        directory.open_to_users(&socket.0)?;
        let host = store.host().clone();
        let server = Server { listener, connections, instance, host: host.clone() };
        Ok(host.spawn(Box::pin(async move { server.run(socket).await })))
    }
}

impl Default for UnixSockets {
    /// Creates a transport with the [usual directory](Self::usual_directory) of this user.
    fn default() -> Self {
        Self::new(Self::usual_directory())
    }
}

impl BrokerTransport for UnixSockets {
    fn prepare(&self, store: &Client, instance: &HexName) -> Result<PreparedListener> {
        let address = self.address(store, instance)?;
        let (sockets, store, instance) = (self.clone(), store.clone(), instance.clone());
        let listen = async move {
            let (connections, accepted) = mpsc::channel(1);
            Ok(BrokerListener { accepted, work: sockets.serve(&store, instance, connections)? })
        };
        Ok(PreparedListener { address, listen: Box::new(|| Box::pin(listen)) })
    }

    fn connect<'a>(
        &'a self,
        store: &'a Client,
        address: &'a BrokerAddress,
        instance: &'a HexName,
    ) -> BoxFuture<'a, Result<LineChannel>> {
        Box::pin(async move {
            let Some(path) = address.socket.as_deref().map(Path::new) else {
                return Err(Error::new(Kind::Unavailable, "the broker of this queue has no socket"));
            };
            // A directory that hosts share shows their sockets to all of them, and every connection to one would be refused.
            if address.boot.is_some() && address.boot != boot_id() {
                return Err(Error::new(Kind::Unavailable, "the broker of this queue is on another host"));
            }
            let short = ShortPath::of(path)?;
            let stream = UnixStream::connect(short.path()).await;
            let stream = stream.map_err(|error| match error.kind() {
                // A folder of this host: the broker has ended, or is about to listen.
                io::ErrorKind::NotFound if store.local_folder().is_some() => {
                    failed("connect to", path, io::ErrorKind::ConnectionRefused.into())
                }
                _ => failed("connect to", path, error),
            })?;
            let host = store.host().clone();
            let greeting = greet(stream, instance, ANSWER_BYTES_MAX);
            let (reader, writer) = within(&*host, HELLO_WAIT, greeting).await?;
            Ok(spawn_carrier(&*host, reader, writer))
        })
    }
}

/// Id of the current boot of this host; none where the kernel does not show it.
fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

#[expect(clippy::disallowed_methods, reason = "this is the listener of Unix sockets")]
fn bind(path: &Path) -> Result<UnixListener> {
    let short = ShortPath::of(path)?;
    UnixListener::bind(short.path()).map_err(|error| failed("listen on", path, error))
}

/// Socket of a listener; its file is removed at the end.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The next broker removes it otherwise.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Accepts the connections of a broker.
struct Server {
    listener: UnixListener,
    connections: mpsc::Sender<AcceptedClient>,
    instance: HexName,
    host: Arc<dyn Host>,
}

impl Server {
    /// Accepts connections until the receiver of them is dropped, and then waits for the open ones.
    async fn run(self, socket: SocketFile) {
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                () = self.connections.closed() => break,
                Some(()) = open.next() => {}
                accepted = self.listener.accept(), if open.len() <= BROKER_CLIENTS_MAX => match accepted {
                    Ok((stream, _)) => open.push(self.serve(stream)),
                    Err(error) => {
                        tracing::warn!(%error, "failed to accept a connection to the broker, retrying");
                        self.host.sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(socket);
        while open.next().await.is_some() {}
    }

    async fn serve(&self, stream: UnixStream) {
        let greeting = greet(stream, &self.instance, BROKER_LINE_BYTES_MAX);
        let greeted = within(&*self.host, HELLO_WAIT, greeting).await;
        let (reader, writer) = match greeted {
            Ok(greeted) => greeted,
            Err(error) => {
                tracing::debug!(%error, "refused a connection to the broker");
                return;
            }
        };
        let (channel, ends) = channel();
        // The permissions of the socket are those of the queue.
        let client = AcceptedClient { channel, access: ClientAccess::Full };
        if self.connections.send(client).await.is_ok()
            && let Err(error) = carry(reader, writer, ends).await
        {
            tracing::debug!(%error, "connection of a client of the broker failed");
        }
    }
}

type Halves = (LineReader<OwnedReadHalf>, OwnedWriteHalf);

/// Exchanges the first lines.
async fn greet(stream: UnixStream, instance: &HexName, line_bytes_max: usize) -> Result<Halves> {
    let (reader, mut writer) = stream.into_split();
    writer.write_all(&handshake::hello(instance, None)).await.map_err(closed)?;
    let mut reader = LineReader::new(reader, HELLO_BYTES_MAX);
    handshake::check(&reader.expect().await?, instance)?;
    reader.set_bytes_max(line_bytes_max);
    Ok((reader, writer))
}
