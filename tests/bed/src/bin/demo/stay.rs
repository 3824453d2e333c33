//! The stage stays open: a person inserts by hand, kills walpost, looks at the
//! lag, and sees every record as it comes. Ctrl-C ends it.

use std::time::{Duration, Instant};

use crate::Fault;
use crate::screen::Screen;
use crate::stage::{Stage, TOPIC};

const LOOK: Duration = Duration::from_millis(50);
/// Long enough to look at the lag while walpost is away.
const RESTART: Duration = Duration::from_secs(10);

/// Shows records until Ctrl-C; starts walpost again when it was killed.
pub(crate) async fn until_interrupted(screen: &Screen, stage: &mut Stage) -> Result<(), Fault> {
    tell(screen, stage);
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut shown = stage.watch.after(0).len();
    let mut died: Option<Instant> = None;
    loop {
        tokio::select! {
            _ = &mut interrupted => break,
            () = tokio::time::sleep(LOOK) => {}
        }
        for record in stage.watch.after(shown) {
            shown += 1;
            screen.say(&format!(
                "{}  key {}  {}  {} ms after the commit",
                record.place(),
                record.key,
                record.value,
                record.age_ms
            ));
        }
        if stage.walpost().pid().is_some() {
            continue;
        }
        let since = *died.get_or_insert_with(|| {
            screen.harm(&format!(
                "walpost is gone; a supervisor would start it again, here that takes {} s",
                RESTART.as_secs()
            ));
            Instant::now()
        });
        if since.elapsed() >= RESTART {
            died = None;
            stage.start_walpost()?;
            let pid = stage.walpost().pid().unwrap_or_default();
            screen.good(&format!("walpost run, again (process {pid})"));
        }
    }
    if stage.walpost().pid().is_none() {
        stage.start_walpost()?;
        stage.streaming().await;
    }
    println!();
    Ok(())
}

fn tell(screen: &Screen, stage: &Stage) {
    let url = stage.postgres.url();
    let pid = stage.walpost().pid().unwrap_or_default();
    screen.heading("It runs on until Ctrl-C. Records show here as they come; in another terminal:");
    screen.say(&format!("psql {url}"));
    screen.say("  INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)");
    screen.say("  VALUES ('order', '4711', 'order_placed', '{\"total\": 99}');");
    screen
        .say("  SELECT active, pg_size_pretty(pg_current_wal_lsn() - confirmed_flush_lsn) AS lag");
    screen.say("    FROM pg_replication_slots;");
    screen.say(&format!(
        "kill -9 {pid}    (walpost; its log: {})",
        stage.walpost().log_path().display()
    ));
    screen.say(&format!(
        "bootstrap servers for a consumer of your own: {}, topic {TOPIC}",
        stage.bootstrap()
    ));
}
