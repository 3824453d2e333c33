//! PostgreSQL has no disk space for its WAL (57).

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert};
use walpost_bed::{Kafka, Major, Postgres, within};

use crate::case::{Case, CaseReport};

/// Room for a fresh cluster and a few files of its log.
const DISK_BYTES: u64 = 128 << 20;

pub fn cases() -> Vec<Case> {
    vec![Case::new(57, "full_wal_disk_is_survived", full).long()]
}

async fn full(report: CaseReport) {
    let postgres = Postgres::builder(Major::V15).disk(DISK_BYTES);
    // PostgreSQL must not free WAL: what is written stays.
    let postgres = postgres.setting("wal_keep_size", "10GB").setting("restart_after_crash", "off");
    let fixture = Fixture::with_brokers(postgres, &Kafka::shared().await.bootstrap()).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let ballast = fixture.postgres.data_dir().join("ballast");
    std::fs::write(&ballast, vec![0; 48 << 20]).expect("room for ballast");
    let mark = walpost.mark();
    let client = fixture.postgres.client().await;
    let mut written = 0;
    let died = within(LONG_TIMEOUT, async || {
        let failed = client.batch_execute(&insert(5000, 3)).await.is_err();
        written += 1;
        if failed { Ok(()) } else { Err(written) }
    })
    .await;
    assert!(died.is_ok(), "{written} transactions found room");
    drop(client);
    assert!(
        fixture.postgres.stopped(SHORT_TIMEOUT).await,
        "it runs:\n{}",
        fixture.postgres.log_tail(5)
    );
    let log = fixture.postgres.log_tail(40);
    assert!(log.contains("PANIC") && log.contains("No space left on device"), "{log}");
    walpost.await_line_after(mark, "cannot connect to PostgreSQL; retrying", SHORT_TIMEOUT).await;
    // Without room it does not start either.
    assert!(fixture.postgres.try_start_again().await.is_err());
    report.still_running(&walpost);
    let mark = walpost.mark();
    std::fs::remove_file(&ballast).expect("ballast thrown off");
    fixture.postgres.start_again().await;
    walpost.await_line_after(mark, "streaming from PostgreSQL", SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    report.ok(&fixture.judge().await);
    report.still_running(&walpost);
}
