//! The walpost program.

fn main() {}
