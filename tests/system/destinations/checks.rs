//! The checks that `run` repeats find nothing wrong with a walpost that delivers.

use walpost_bed::fixture::{LONG_TIMEOUT, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Endpoints, eventually};

use crate::promise::{Destination, cases};

cases! {
    checks_under_load_find_no_error(new): all;
}

/// They are made beside what moves: the slot, the position at the destination.
async fn checks_under_load_find_no_error<D: Destination>(fixture: &D) {
    let run = fixture.command("run").args(["--admin-listen", "127.0.0.1:0"]);
    let walpost = run.env("FAILPOINTS", "frequent_checks=return").start();
    let endpoints = Endpoints::of(&walpost).await;
    eventually(LONG_TIMEOUT, "it delivers", async || endpoints.are_ready().await).await;
    let writer = Writer::start(&fixture.inner.postgres, D::LOAD.min(200));
    endpoints.checks_find_no_error().await;
    writer.stop().await;
    stop(walpost).await;
}
