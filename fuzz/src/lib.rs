//! The bodies of the fuzz targets. `tests/decoders` runs them on the committed corpus and on
//! mutations of it.
//!
//! Each body accepts arbitrary bytes, and panics where walpost breaks a guarantee, not only where
//! walpost itself panics.

mod config;
mod conninfo;
mod input;
mod json;
mod row;
mod stream;
mod text;
mod topic;
mod wire;

pub use config::config;
pub use conninfo::conninfo;
pub use input::SEPARATOR;
pub use json::json;
pub use row::row;
pub use stream::{of_the_recording, stream};
pub use text::text;
pub use topic::topic;
pub use wire::wire;

/// What a body is: it returns, or it has found something.
pub type Body = fn(&[u8]);

/// Every target by its name, which its corpus has too.
pub const TARGETS: [(&str, Body); 8] = [
    ("config", config),
    ("conninfo", conninfo),
    ("json", json),
    ("row", row),
    ("stream", stream),
    ("text", text),
    ("topic", topic),
    ("wire", wire),
];
