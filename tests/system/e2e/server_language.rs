//! A server whose messages are not in English: what walpost decides depends on no text.

use tokio_postgres::error::DbError;
use walpost_bed::fixture::{Fixture, insert, stop};
use walpost_bed::{Major, Postgres};

/// A server with German messages.
async fn german() -> Fixture {
    let major = Major::of_the_system().expect("a packaged PostgreSQL, which has translations");
    let fixture = Fixture::with(Postgres::builder(major).language("de_DE")).await;
    let failed = fixture.postgres.client().await.batch_execute("SELECT 1/0").await;
    let error = failed.expect_err("a division by zero");
    assert_eq!(error.as_db_error().map(DbError::message), Some("Division durch Null"));
    fixture
}

/// Before PostgreSQL 18, which skips a publication that did not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publication_made_after_rows_halts_whatever_the_servers_language() {
    let fixture = german().await;
    let walpost = fixture.run().await;
    stop(walpost).await;
    let steps = [
        "DROP PUBLICATION walpost",
        &insert(5, 3),
        "CREATE PUBLICATION walpost FOR TABLE public.outbox WITH (publish = 'insert')",
    ];
    for step in steps {
        fixture.postgres.execute(step).await;
    }
    let (code, said) = fixture.run_to_its_end(&[]).await;
    assert!(code == Some(3) && said.contains("publish by hand"), "{code:?}: {said}");
}
