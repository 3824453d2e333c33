#![cfg_attr(
    all(feature = "derive", feature = "tokio-postgres", feature = "sqlx", feature = "diesel-async"),
    doc = include_str!("../README.md")
)]
#![cfg_attr(
    not(all(
        feature = "derive",
        feature = "tokio-postgres",
        feature = "sqlx",
        feature = "diesel-async"
    )),
    doc = "Publishes events through a transactional outbox in PostgreSQL. See README.md."
)]
#![cfg_attr(
    not(any(feature = "tokio-postgres", feature = "sqlx", feature = "diesel-async")),
    allow(dead_code, reason = "without a driver nothing runs the statements")
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod batch;
mod columns;
#[cfg(feature = "diesel-async")]
pub mod diesel_async;
mod error;
mod event;
mod event_id;
mod headers;
mod outbox;
mod record;
mod sql;
#[cfg(feature = "sqlx")]
pub mod sqlx;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;
mod trace;
mod transactional;

pub use columns::{ColumnType, Field};
pub use error::Error;
pub use event::{Event, Payload};
pub use headers::Headers;
pub use outbox::{Ids, OnDuplicate, Outbox, TraceContext};
pub use transactional::Transactional;
pub use uuid::Uuid;
#[cfg(feature = "derive")]
pub use walpost_outbox_derive::Event;

/// What the derive macro's code uses.
#[cfg(feature = "derive")]
#[doc(hidden)]
pub mod private {
    pub use serde_json;
}
