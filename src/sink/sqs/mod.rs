//! The sink for FIFO queues of Amazon SQS: each event is a message of the group of its key.
//!
//! A queue keeps the order within a message group. The messages of a batch succeed and fail one by
//! one, so a group has at most one message in a batch, and at most one under way; several batches of
//! other groups are under way at the same time: see [`schedule`]. What may succeed later is sent
//! again by the worker itself, which keeps the order. What SQS rejects for good is reported, and
//! nothing more of its group is sent before the producer is replaced.
//!
//! A message has a deduplication id with the position of its event, so that SQS drops what is sent
//! again within five minutes. A replay within them, or a request whose answer was lost, adds nothing
//! (<https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/FIFO-queues-exactly-once-processing.html>).

mod client;
mod config;
mod message;
mod schedule;
mod sink;
mod url;
mod verdict;
mod worker;

pub(crate) use client::{Connection, Facts};
pub(crate) use config::QueueKind;
pub use config::{SqsConfig, SqsSource};
pub(crate) use message::NAMES;
#[cfg(test)]
pub(super) use message::tests::read_back;
pub use sink::SqsSink;
pub use url::{Endpoint, QueueUrl};
