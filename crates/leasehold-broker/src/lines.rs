//! A stream of bytes as a channel of lines.

use bytes::{Bytes, BytesMut};
use leasehold_queue::LineChannel;
use std::io;
use std::pin::pin;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// Number of lines that wait in either direction: as many as fill a write.
const LINES_MAX: usize = 256;

/// Bytes of lines that are written at once.
const WRITE_BYTES: usize = 64 * 1_024;

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

/// Passes lines between a stream and a channel until either is closed. Lines that were sent before are written first.
pub(crate) async fn carry(
    mut reader: LineReader<impl AsyncRead + Unpin>,
    mut writer: impl AsyncWrite + Unpin,
    ends: LineEnds,
) -> io::Result<()> {
    let LineEnds { mut outgoing, incoming } = ends;
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
            writer.write_all(&buffer).await?;
            buffer.clear();
            // A long line must not keep its memory.
            buffer.shrink_to(WRITE_BYTES);
        }
        Ok(())
    };
    let mut reading = pin!(reading);
    let written = tokio::select! {
        biased;
        end = &mut reading => return end,
        written = writing => written,
    };
    match written {
        Ok(()) => Ok(()),
        // The other end has closed the connection; what it has sent before is still read.
        Err(error) => reading.await.and(Err(error)),
    }
}

/// Reads lines of a bounded length.
pub(crate) struct LineReader<R> {
    stream: R,
    buffer: BytesMut,
    /// Bytes of the buffer that have no line end.
    searched: usize,
    bytes_max: usize,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(crate) fn new(stream: R, bytes_max: usize) -> Self {
        Self { stream, buffer: BytesMut::new(), searched: 0, bytes_max }
    }

    /// Changes the maximum length of a line.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
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
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }
}
