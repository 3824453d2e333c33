//! Arbitrary bytes into a decoder give a value or an error: never a panic, and no memory for a
//! count without data behind it.
//!
//! No server is needed: the bytes that PostgreSQL sends were recorded (`make corpus`), and the fuzz
//! targets have their own corpus. `make fuzz` runs longer.

mod mutation;
mod pgoutput;
mod recorded;
mod targets;

// What the fuzz targets do, which are a package that is built by itself.
#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "there it is a library")]
mod fuzz;
