//! A stream of bytes as a channel of lines.
//!
//! On a stream of the network, an end that sends nothing, or that reads nothing, counts as gone after a while: a host that is
//! switched off sends no end of its connections. Both ends send an empty line every few seconds for that.

use bytes::{Bytes, BytesMut};
use futures::future::{Either, select};
use leasehold_core::{Error, Kind, Result};
use leasehold_store::Host;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::transport::LineChannel;

/// Number of lines that wait in either direction: as many as fill a write.
const LINES_MAX: usize = 256;

/// Bytes of lines that are written at once.
const WRITE_BYTES: usize = 64 * 1_024;

/// Maximum length of an answer. A page has at most 1,000 tasks, each below 8 MiB; usual ones have a few KiB.
pub(crate) const ANSWER_BYTES_MAX: usize = 512 * 1_024 * 1_024;

/// Creates a channel, and the ends by which [`carry`] serves it.
pub(crate) fn channel() -> (LineChannel, LineEnds) {
    let (sender, outgoing) = mpsc::channel(LINES_MAX);
    let (incoming, receiver) = mpsc::channel(LINES_MAX);
    (LineChannel { sender, receiver, work: None }, LineEnds { outgoing, incoming })
}

/// Other ends of a [`LineChannel`].
pub(crate) struct LineEnds {
    outgoing: mpsc::Receiver<Bytes>,
    incoming: mpsc::Sender<Bytes>,
}

/// Limit of the time in which a stream makes no progress although this end waits for it.
#[derive(Clone)]
#[cfg_attr(not(feature = "network"), allow(dead_code, reason = "only streams of the network have a limit"))]
pub(crate) struct StallLimit {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) wait: Duration,
}

impl StallLimit {
    /// Waits for a step of a stream.
    async fn step<T>(limit: Option<&Self>, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let Some(Self { host, wait }) = limit else { return step.await };
        match select(pin!(step), host.sleep(*wait)).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => {
                let message = format!("the other end has been silent for {wait:?}");
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            }
        }
    }
}

/// Passes lines between a stream and a channel until either is closed. Lines that were sent before are written first.
pub(crate) async fn carry(
    mut reader: LineReader<impl AsyncRead + Unpin>,
    mut writer: impl AsyncWrite + Unpin,
    ends: LineEnds,
) -> io::Result<()> {
    let stall = reader.stall.clone();
    let LineEnds { mut outgoing, incoming } = ends;
    let received = incoming.clone();
    let reading = async {
        while let Some(line) = reader.next().await? {
            if incoming.send(line).await.is_err() {
                // The other half ends when it has written what was sent.
                std::future::pending::<()>().await;
            }
        }
        Ok(())
    };
    let writing = async {
        let mut buffer = Vec::with_capacity(WRITE_BYTES);
        while let Some(line) = outgoing.recv().await {
            buffer.extend_from_slice(&line);
            while buffer.len() < WRITE_BYTES
                && let Ok(line) = outgoing.try_recv()
            {
                buffer.extend_from_slice(&line);
            }
            write(&mut writer, &buffer, stall.as_ref()).await?;
            buffer.clear();
            // A long line must not keep its memory.
            buffer.shrink_to(WRITE_BYTES);
        }
        StallLimit::step(stall.as_ref(), writer.shutdown()).await
    };
    let mut reading = pin!(reading);
    let written = tokio::select! {
        biased;
        end = &mut reading => return end,
        written = writing => written,
    };
    match written {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
        // The other end has closed the connection; what it has sent before is still read, if it is received.
        Err(error) => {
            select(reading, pin!(received.closed())).await;
            Err(error)
        }
    }
}

/// Carries the lines of a client, concurrently.
pub(crate) fn spawn_carrier(
    host: &dyn Host,
    reader: LineReader<impl AsyncRead + Unpin + Send + 'static>,
    writer: impl AsyncWrite + Unpin + Send + 'static,
) -> LineChannel {
    let (channel, ends) = channel();
    let carrying = host.spawn(Box::pin(async move {
        if let Err(error) = carry(reader, writer, ends).await {
            tracing::debug!(%error, "connection to the broker failed");
        }
    }));
    LineChannel { work: Some(carrying), ..channel }
}

/// Limits the time of a part of the handshake.
pub(crate) async fn within<T>(
    host: &dyn Host,
    wait: Duration,
    greeting: impl Future<Output = Result<T>>,
) -> Result<T> {
    match select(pin!(greeting), host.sleep(wait)).await {
        Either::Left((greeted, _)) => greeted,
        Either::Right(_) => {
            let message = format!("the peer sent no handshake line within {wait:?}");
            Err(Error::new(Kind::Unavailable, message))
        }
    }
}

/// Error of a connection that has ended before its greeting.
pub(crate) fn closed(error: io::Error) -> Error {
    Error::new(Kind::Unavailable, format!("the other end closed the connection: {error}")).because(error)
}

/// Writes bytes, and whatever the stream has buffered of them.
async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    mut bytes: &[u8],
    stall: Option<&StallLimit>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = StallLimit::step(stall, writer.write(bytes)).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
    }
    StallLimit::step(stall, writer.flush()).await
}

/// Reads lines of a bounded length.
pub(crate) struct LineReader<R> {
    stream: R,
    buffer: BytesMut,
    /// Bytes of the buffer that have no line end.
    searched: usize,
    bytes_max: usize,
    stall: Option<StallLimit>,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(crate) fn new(stream: R, bytes_max: usize) -> Self {
        Self { stream, buffer: BytesMut::new(), searched: 0, bytes_max, stall: None }
    }

    /// Limits the time without progress, of both directions.
    #[cfg_attr(
        not(feature = "network"),
        allow(dead_code, reason = "only streams of the network have a limit")
    )]
    pub(crate) fn set_stall_limit(&mut self, stall: StallLimit) {
        self.stall = Some(stall);
    }

    /// Changes the maximum length of a line.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Reads a line of the handshake.
    pub(crate) async fn expect(&mut self) -> Result<Bytes> {
        let line = self.next().await.map_err(closed)?;
        line.ok_or_else(|| closed(io::ErrorKind::UnexpectedEof.into()))
    }

    /// Reads a line, without its end; none at the end of the stream, at which an incomplete line is dropped.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let mut line = self.buffer.split_to(self.searched + end + 1);
                line.truncate(line.len() - 1);
                self.searched = 0;
                return Ok(Some(line.freeze()));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > self.bytes_max {
                let message = format!("a line has more than {} bytes", self.bytes_max);
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            self.buffer.reserve(WRITE_BYTES.min(self.bytes_max));
            let read = self.stream.read_buf(&mut self.buffer);
            if StallLimit::step(self.stall.as_ref(), read).await? == 0 {
                return Ok(None);
            }
        }
    }
}
