//! Keeps the services running: the user inserts rows, kills walpost, watches the lag, and sees each
//! record as it arrives. Ctrl-C ends it.

use std::time::{Duration, Instant};

use crate::DemoError;
use crate::services::Services;
use crate::terminal::Terminal;

const LOOK: Duration = Duration::from_millis(50);
/// Long enough to look at the lag while walpost is away.
const RESTART: Duration = Duration::from_secs(10);

/// Shows records until Ctrl-C; starts walpost again when it was killed.
pub(crate) async fn until_interrupted(
    terminal: &Terminal,
    services: &mut Services,
) -> Result<(), DemoError> {
    run(terminal, services);
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut shown = services.consumer.after(0).len();
    let mut died: Option<Instant> = None;
    loop {
        tokio::select! {
            _ = &mut interrupted => break,
            () = tokio::time::sleep(LOOK) => {}
        }
        for record in services.consumer.after(shown) {
            shown += 1;
            terminal.say(&format!(
                "{}  key {}  {}  {} ms after the commit",
                record.place(),
                record.key,
                record.value,
                record.age_ms
            ));
        }
        if services.walpost().pid().is_some() {
            continue;
        }
        let since = *died.get_or_insert_with(|| {
            terminal.harm(&format!(
                "walpost is down; as a supervisor would, the demo restarts it in {} s",
                RESTART.as_secs()
            ));
            Instant::now()
        });
        if since.elapsed() >= RESTART {
            died = None;
            services.start_walpost()?;
            let pid = services.walpost().pid().unwrap_or_default();
            terminal.good(&format!("walpost run, again (process {pid})"));
        }
    }
    if services.walpost().pid().is_none() {
        services.start_walpost()?;
        services.streaming().await;
    }
    println!();
    Ok(())
}

fn run(terminal: &Terminal, services: &Services) {
    let url = services.postgres.url();
    let pid = services.walpost().pid().unwrap_or_default();
    terminal
        .heading("Running until Ctrl-C. Records appear here as they arrive; in another terminal:");
    terminal.say(&format!("psql {url}"));
    terminal.say("  INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)");
    terminal.say("  VALUES ('order', '4711', 'order_placed', '{\"customer\": \"acme\", \"total_cents\": 9900}');");
    terminal
        .say("  SELECT active, pg_size_pretty(pg_current_wal_lsn() - confirmed_flush_lsn) AS lag");
    terminal.say("    FROM pg_replication_slots;");
    terminal.say(&format!(
        "kill -9 {pid}    (walpost; its log: {})",
        services.walpost().log_path().display()
    ));
    terminal.say(&format!("in a browser: {}", services.page()));
    terminal.say(&format!("for your own consumer: {}", services.for_consumers()));
}
