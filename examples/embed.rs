//! walpost inside another program: from a configuration file (and the `WALPOST_*` environment over
//! it), run until Ctrl-C or for so many seconds.
//!
//!     cargo run --example embed -- walpost.toml 60
//!
//! The outbox, publication and slot must be there: `walpost init --apply` makes them, and writes the
//! slot's position to the state topic. What a supervisor does for the program (starting it again
//! after an error that passes, telling a person of one that does not) is left to you.

use std::future::Future;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use walpost::config::{Config, Environment, Flags};
use walpost::{Summary, Walpost};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let colour = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(colour).init();
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().map(PathBuf::from);
    let seconds: Option<u64> = arguments.next().map(|text| text.parse()).transpose()?;
    let enough = async {
        match seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    let leave = async {
        tokio::select! {
            () = enough => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    let summary = relay_until(leave, file, &Environment::of_process()).await?;
    println!("delivered {} records, confirmed {}", summary.delivered, summary.confirmed);
    Ok(())
}

/// Relays until `leave` completes, then delivers and confirms what is in flight.
///
/// An error that comes earlier is one on which a person must act: a lost
/// connection on either side is fixed by the relay itself.
pub(crate) async fn relay_until(
    leave: impl Future<Output = ()>,
    file: Option<PathBuf>,
    environment: &Environment,
) -> anyhow::Result<Summary> {
    let config = Config::load(&Flags::new(file), environment)?;
    let walpost = Walpost::new(&config)?;
    let stop = walpost.stop_handle();
    // Other tasks can share the runtime: walpost does not block its thread while it streams. On a thread of
    // its own it takes less CPU after `walpost.on_own_thread()`.
    let mut running = Box::pin(walpost.run());
    tokio::select! {
        ended = &mut running => return Ok(ended?),
        () = leave => stop.drain(),
    }
    Ok(running.await?)
}
