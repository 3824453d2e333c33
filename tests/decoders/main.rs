//! Any bytes into a decoder give a value or an error: never a panic, and no
//! memory for what a count announces and is not there.
//!
//! No server is needed: the bytes that PostgreSQL sends were recorded
//! (`make corpus`), and the fuzz targets have a corpus of their own. For longer
//! runs than this one there is `make fuzz`.

mod mutation;
mod pgoutput;
mod recorded;
mod targets;

// What the fuzz targets do, which are a package that is built by itself.
#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "there it is a library")]
mod fuzz;
