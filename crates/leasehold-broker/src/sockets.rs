//! Listener and client on a Unix socket.
//!
//! Requests of a connection are bounded in length and number, a client that does not send its first line in time is
//! disconnected, and one that does not read its answers is not read either.

use futures::StreamExt;
use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use leasehold_core::limits::{BROKER_CLIENTS_MAX, BROKER_LINE_BYTES_MAX};
use leasehold_core::{Error, HexName, Kind, Result};
use leasehold_queue::{BrokerAddress, BrokerListener, BrokerTransport, LineChannel};
use leasehold_store::{Client, Host};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use crate::handshake;
use crate::lines::{LineReader, carry, channel};
use crate::place::{ShortPath, SocketDirectory, failed};

/// Time within which both ends send their first line.
const HELLO_WAIT: Duration = Duration::from_secs(5);

/// Maximum length of an answer. A page has at most 1,000 tasks, each below 8 MiB; usual ones have a few KiB.
const ANSWER_BYTES_MAX: usize = 512 * 1_024 * 1_024;

/// Longest first line.
const HELLO_BYTES_MAX: usize = 1_024;

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

    fn directory(&self, store: &Client) -> Result<SocketDirectory> {
        SocketDirectory::of(store, &self.user_directory)
    }
}

impl BrokerTransport for UnixSockets {
    fn address(&self, store: &Client, instance: &HexName) -> Result<BrokerAddress> {
        let socket = self.directory(store)?.socket(instance);
        let socket = socket.into_os_string().into_string().map_err(|path| {
            Error::invalid(format!("the path `{}` of the broker's socket is not UTF-8", path.display()))
        })?;
        Ok(BrokerAddress { socket: Some(socket) })
    }

    fn listen<'a>(
        &'a self,
        store: &'a Client,
        instance: &'a HexName,
    ) -> BoxFuture<'a, Result<BrokerListener>> {
        Box::pin(async move {
            let directory = self.directory(store)?;
            directory.prepare()?;
            let path = directory.socket(instance);
            let listener = bind(&path)?;
            let socket = SocketFile(path);
            directory.open_to_users(&socket.0)?;
            let (connections, accepted) = mpsc::channel(1);
            let host = store.host().clone();
            let server = Server { listener, connections, instance: instance.clone(), host: host.clone() };
            let work = host.spawn(Box::pin(async move {
                server.run(socket).await;
            }));
            Ok(BrokerListener { accepted, work })
        })
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
            let (reader, writer) = within(&*host, greet(stream, instance, ANSWER_BYTES_MAX)).await?;
            let (channel, ends) = channel();
            let carrying = host.spawn(Box::pin(async move {
                if let Err(error) = carry(reader, writer, ends).await {
                    tracing::debug!(%error, "connection to the broker failed");
                }
            }));
            Ok(LineChannel { work: Some(carrying), ..channel })
        })
    }
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
    connections: mpsc::Sender<LineChannel>,
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
        let greeted = within(&*self.host, greet(stream, &self.instance, BROKER_LINE_BYTES_MAX)).await;
        let (reader, writer) = match greeted {
            Ok(greeted) => greeted,
            Err(error) => {
                tracing::debug!(%error, "refused a connection to the broker");
                return;
            }
        };
        let (channel, ends) = channel();
        if self.connections.send(channel).await.is_ok()
            && let Err(error) = carry(reader, writer, ends).await
        {
            tracing::debug!(%error, "connection of a client of the broker failed");
        }
    }
}

type Halves = (LineReader<OwnedReadHalf>, OwnedWriteHalf);

/// Exchanges the first lines.
async fn greet(stream: UnixStream, instance: &HexName, line_bytes_max: usize) -> Result<Halves> {
    let failed = |error: io::Error| {
        Error::new(Kind::Unavailable, format!("the other end closed the connection: {error}")).because(error)
    };
    let (reader, mut writer) = stream.into_split();
    writer.write_all(&handshake::hello(instance)).await.map_err(failed)?;
    let mut reader = LineReader::new(reader, HELLO_BYTES_MAX);
    let line = reader.next().await.map_err(failed)?;
    let line = line.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
    handshake::check(&line, instance)?;
    reader.set_bytes_max(line_bytes_max);
    Ok((reader, writer))
}

/// Limits the time of the first lines.
async fn within<T>(host: &dyn Host, greeting: impl Future<Output = Result<T>>) -> Result<T> {
    match select(pin!(greeting), host.sleep(HELLO_WAIT)).await {
        Either::Left((greeted, _)) => greeted,
        Either::Right(_) => {
            let message = format!("the other end has sent no first line within {HELLO_WAIT:?}");
            Err(Error::new(Kind::Unavailable, message))
        }
    }
}
