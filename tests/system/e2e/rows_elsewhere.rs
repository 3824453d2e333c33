//! Rows of the outbox that PostgreSQL stores where it never sends them from.

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, counted, ended, insert, stop};

use super::recover::Lost;

/// A table as a trigger that routes rows has it.
const CHILD: &str = "CREATE TABLE public.outbox_2026 () INHERITS (public.outbox)";
const REFUSED: &str = "public.outbox_2026 inherits from table public.outbox, and PostgreSQL never \
                       sends its rows";

fn insert_into_child(count: u32) -> String {
    insert(count, 3).replace("INTO public.outbox ", "INTO public.outbox_2026 ")
}

async fn ids(fixture: &Fixture) -> Option<String> {
    fixture.postgres.query_text("SELECT count(DISTINCT id) FROM public.outbox").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_tables_that_inherit_are_refused_by_run_and_found_by_recover() {
    let lost = Lost::new("at-least-once").await;
    let (fixture, postgres) = (&lost.fixture, &lost.fixture.postgres);
    postgres.execute(&insert(10, 3)).await;
    lost.run_until_there_is_a_bookmark().await;
    postgres.execute(&format!("{CHILD}; {}", insert_into_child(7))).await;
    postgres.execute(&insert(5, 3)).await;
    let (code, said) = fixture.run_to_its_end(&lost.arguments()).await;
    assert!(code == Some(78) && said.contains(REFUSED), "{code:?}: {said}");
    for choice in [&[][..], &["--all"]] {
        let (code, said) = lost.recover(choice).await;
        assert_eq!((code, counted(&said, "missing")), (Some(1), 7), "{said}");
        assert_eq!(counted(&said, "waiting in the slot, not compared"), 5, "{said}");
        assert!(said.contains("never sends its 7 rows"), "{said}");
    }
    let (code, said) = lost.recover(&["--apply"]).await;
    assert!(code == Some(0) && said.contains("7 events published"), "{said}");
    let (code, said) = lost.recover(&["--all"]).await;
    assert_eq!((code, counted(&said, "missing")), (Some(0), 0), "{said}");
    // What it stores is old now.
    postgres.execute("ALTER TABLE public.outbox_2026 NO INHERIT public.outbox").await;
    let arguments = lost.arguments();
    let walpost = fixture.run_with(&arguments).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    postgres.execute("ALTER TABLE public.outbox_2026 INHERIT public.outbox").await;
    assert_eq!(ids(fixture).await.as_deref(), Some("22"));
    assert_eq!(fixture.records().await.len(), 22);
    // What is confirmed is looked at before.
    postgres.execute(&insert(1, 3)).await;
    let (code, said) = ended(&walpost).await;
    assert!(code == Some(3) && said.contains(REFUSED), "{code:?}: {said}");
    // More may be written there until that is remedied.
    let (code, said) = lost.recover(&["--all", "--apply"]).await;
    let then = "`walpost run` starts after `walpost adopt --apply`";
    assert!(code == Some(0) && said.contains(then), "{code:?}: {said}");
    postgres.execute("ALTER TABLE public.outbox_2026 NO INHERIT public.outbox").await;
    let (code, said) = fixture.run_to_its_end(&arguments).await;
    assert!(code == Some(3) && said.contains("walpost adopt --apply"), "{code:?}: {said}");
    fixture.adopt(&lost.topic).await;
    stop(fixture.run_with(&arguments).await).await;
}

/// With an entry of its own in outbox.tables, and in the publication.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_that_inherits_may_be_an_outbox_table_itself() {
    let fixture = Fixture::empty().await;
    let table = "CREATE TABLE public.outbox (id text PRIMARY KEY, aggregate_type text,
                   aggregate_id text, event_type text, payload text)";
    let fixture =
        fixture.option("--table", "public.outbox").option("--table", "public.outbox_2026");
    let fixture = fixture.over(&format!("{table}; {CHILD}")).await;
    let walpost = fixture.run().await;
    let row =
        |table: &str| format!("INSERT INTO public.{table} VALUES ('{table}', 'a', 'k', 't', 'p')");
    fixture.postgres.execute(&format!("{}; {}", row("outbox"), row("outbox_2026"))).await;
    let rows = fixture.rows("SELECT id, aggregate_id FROM public.outbox").await;
    fixture.assert_published(&rows, LONG_TIMEOUT).await;
    stop(walpost).await;
}
