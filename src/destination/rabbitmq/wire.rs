//! Frames over a connection: bytes out of a buffer, frames out of another one. It interprets none.

use std::time::Instant;

use amq_protocol::frame::{AMQPFrame, gen_frame, parse_frame};
use amq_protocol::protocol::AMQPClass;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::io::{ReadHalf, WriteHalf};

use crate::destination::parts::Failure;
use crate::destination::parts::dial::Stream;

/// What a frame of the broker's may have at most, in bytes: more than is agreed on.
const FRAME_MAX: usize = 1 << 20;

/// How much room for bytes to be written is kept, in bytes: a large payload is not kept for long.
const ROOM: usize = 512 << 10;

pub(super) struct Wire {
    address: String,
    read: ReadHalf<Box<dyn Stream>>,
    write: WriteHalf<Box<dyn Stream>>,
    received: Vec<u8>,
    /// How much of it was taken.
    taken: usize,
    /// What is still to be written, from `written` on.
    pending: Vec<u8>,
    written: usize,
    /// Whether what was written may still be in a buffer below.
    is_unflushed: bool,
    /// When the broker has last sent something.
    pub(super) heard: Instant,
    /// When something was last given to be written.
    pub(super) spoke: Instant,
}

impl Wire {
    pub(super) fn new(stream: Box<dyn Stream>, address: String) -> Self {
        let (read, write) = tokio::io::split(stream);
        let now = Instant::now();
        Self {
            address,
            read,
            write,
            received: Vec::new(),
            taken: 0,
            pending: Vec::new(),
            written: 0,
            is_unflushed: false,
            heard: now,
            spoke: now,
        }
    }

    /// Gives bytes to be written.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend(bytes);
        self.spoke = Instant::now();
    }

    /// The same with a method.
    pub(super) fn push_method(&mut self, channel: u16, class: AMQPClass) -> Result<(), Failure> {
        self.push_frame(&AMQPFrame::Method(channel, class))
    }

    pub(super) fn push_frame(&mut self, frame: &AMQPFrame) -> Result<(), Failure> {
        let written = gen_frame(frame)(Vec::new().into());
        let bytes = written.map_err(|error| {
            Failure::Unusable(format!("a frame of AMQP cannot be written: {error:?}"))
        })?;
        self.push(&bytes.write);
        Ok(())
    }

    /// How many bytes are still to be written.
    pub(super) fn pending(&self) -> usize {
        self.pending.len() - self.written
    }

    /// The next frame that has arrived.
    pub(super) fn frame(&mut self) -> Result<Option<AMQPFrame>, Failure> {
        let unread = &self.received[self.taken..];
        match parse_frame(unread) {
            Ok((rest, frame)) => {
                self.taken = self.received.len() - rest.len();
                Ok(Some(frame))
            }
            Err(error) if error.is_incomplete() && unread.len() <= FRAME_MAX => Ok(None),
            Err(_) => Err(Failure::Unreachable(format!(
                "{} does not speak AMQP 0-9-1: see whether it is RabbitMQ's port, and whether it \
                 takes TLS (amqps://)",
                self.address
            ))),
        }
    }

    /// Writes or reads something. Cancel-safe.
    pub(super) async fn advance(&mut self) -> Result<(), Failure> {
        self.received.drain(..std::mem::take(&mut self.taken));
        let Self { read, write, received, pending, written, is_unflushed, heard, address, .. } =
            self;
        let lost = |error: &dyn std::fmt::Display| {
            Failure::Unreachable(format!("{address}: the connection was lost: {error}"))
        };
        let rest = pending.len() - *written;
        let writing = async {
            if rest > 0 {
                write.write(&pending[*written..]).await
            } else {
                write.flush().await.map(|()| 0)
            }
        };
        received.reserve(16 << 10);
        tokio::select! {
            count = read.read_buf(received) => match count {
                Ok(0) => Err(lost(&"the broker has closed it")),
                Ok(_) => {
                    *heard = Instant::now();
                    Ok(())
                }
                Err(error) => Err(lost(&error)),
            },
            count = writing, if rest > 0 || *is_unflushed => match count {
                Ok(0) if rest > 0 => Err(lost(&"the broker has closed it")),
                Ok(count) => {
                    *is_unflushed = count > 0;
                    *written += count;
                    // Also while there is always more to be written.
                    if *written >= pending.len() / 2 {
                        pending.drain(..std::mem::take(written));
                        pending.shrink_to(ROOM);
                    }
                    Ok(())
                }
                Err(error) => Err(lost(&error)),
            },
        }
    }
}
