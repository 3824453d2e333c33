//! The demo behind `make demo`: a shop with an outbox, the walpost binary, and a consumer that
//! reads everything back.
//!
//! It starts its own PostgreSQL and Kafka, or with `WALPOST_DEMO_SINK` set Redis, NATS, RabbitMQ,
//! an HTTP receiver or ElasticMQ in the place of SQS, kills walpost in the middle, verifies what was
//! delivered, and exits; with `stay` it keeps running until Ctrl-C. It is not a benchmark: servers,
//! shop and consumer share one machine.

mod consumer;
mod interactive;
mod scenario;
mod services;
mod shop;
mod terminal;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use services::Services;
use terminal::Terminal;
use walpost_bed::Destination;

/// Whatever keeps the demonstration from going on; one line.
type DemoError = Box<dyn Error>;

/// A demonstration that takes longer hangs; what is fetched the first time does not count.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(90);

#[tokio::main]
async fn main() -> ExitCode {
    report_panics_in_one_line();
    let mut arguments = std::env::args().skip(1);
    let stays = match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => false,
        (Some("stay"), None) => true,
        _ => {
            eprintln!("usage: demo [stay]");
            return ExitCode::from(2);
        }
    };
    let sink = std::env::var("WALPOST_DEMO_SINK").unwrap_or_default();
    let known = Destination::KINDS.into_iter().find(|kind| *kind == sink);
    if known.is_none() && !["", "kafka"].contains(&sink.as_str()) {
        let kinds = Destination::KINDS;
        eprintln!("demo: WALPOST_DEMO_SINK is neither kafka nor one of {kinds:?}");
        return ExitCode::from(2);
    }
    match show(stays, known).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("demo: {}", fault.to_string().trim_end().replace('\n', " | "));
            ExitCode::FAILURE
        }
    }
}

async fn show(stays: bool, sink: Option<&'static str>) -> Result<(), DemoError> {
    let terminal = Terminal::of_stdout(sink);
    let cache = walpost_bed::cache_directory()?;
    let mut services = Services::set(&terminal, sink).await?;
    let played = tokio::time::timeout(SCENARIO_TIMEOUT, scenario::run(&terminal, &mut services));
    played
        .await
        .map_err(|_| format!("the demo hangs: not finished within {SCENARIO_TIMEOUT:?}"))??;
    if stays {
        interactive::until_interrupted(&terminal, &mut services).await?;
    }
    services.clear().await?;
    terminal.heading("What to try next");
    if !stays {
        terminal.say(
            "make demo DEMO=stay   the same, and keep it running: insert by hand, kill walpost",
        );
    }
    terminal.say("make test             the whole test suite");
    terminal.say("README.md             the quick start against your own PostgreSQL and Kafka");
    terminal.note(&format!(
        "Everything that was started is stopped. Kept for the next run: {} and cargo's target directory.",
        cache.display()
    ));
    Ok(())
}

/// The bed panics when a server does not do as it should: that is one line here,
/// and the end. The bed's watchdogs then stop the servers.
fn report_panics_in_one_line() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload().downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.payload().downcast_ref::<&str>().copied());
        eprintln!(
            "demo: {}",
            text.unwrap_or("something went wrong").trim_end().replace('\n', " | ")
        );
        std::process::exit(1);
    }));
}
