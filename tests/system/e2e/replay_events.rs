//! `walpost replay`: chosen rows are inserted again, and their events published again, in order.

use std::collections::HashMap;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended};
use walpost_bed::{Consumed, eventually};

/// 12,000 rows in the order of their times, a minute from the first to the last, 10,000 of them from
/// the 5th second to before the 55th; a second table references them, and a trigger counts.
const HISTORY: &str = "
    ALTER TABLE public.outbox ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY,
        ADD COLUMN twice bigint GENERATED ALWAYS AS (length(aggregate_id) * 2) STORED;
    CREATE TABLE public.receipts (event uuid REFERENCES public.outbox);
    CREATE TABLE public.fired (operation text);
    CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN INSERT INTO public.fired VALUES (TG_OP); RETURN NULL; END$$;
    INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
    SELECT 'order', 'k' || i % 7, 'placed', jsonb_build_object('i', i),
           '2026-03-01T10:00Z'::timestamptz + i * interval '5 ms'
      FROM generate_series(0, 11999) AS i;
    INSERT INTO public.receipts SELECT id FROM public.outbox;
    CREATE TRIGGER counted AFTER INSERT OR DELETE ON public.outbox
        FOR EACH ROW EXECUTE FUNCTION public.note()";

/// The exit status and all output of `walpost replay`.
async fn replay(fixture: &Fixture, arguments: &[&str]) -> (Option<i32>, String) {
    let replay = fixture.command("replay").args(arguments).start();
    let (status, said) = ended(&replay).await;
    (status, format!("{said}\n{}", replay.stdout().join("\n")))
}

async fn deliver(fixture: &Fixture) -> Vec<Consumed> {
    let (status, said) = fixture.run_to_its_end(&["--until", "current"]).await;
    assert_eq!(status, Some(0), "{said}");
    fixture.records().await
}

fn number(record: &Consumed) -> u64 {
    let value: serde_json::Value =
        serde_json::from_slice(record.value.as_deref().expect("a value")).expect("JSON");
    value["i"].as_u64().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_a_time_are_published_again_in_order() {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(HISTORY).await;
    let first = deliver(&fixture).await;
    assert_eq!(first.len(), 12_000);
    let times = ["--since", "2026-03-01T10:00:05Z", "--until", "2026-03-01 11:00:55+01"];

    let (status, said) = replay(&fixture, &times).await;
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("public.outbox: 10000 events, written from 2026-03-01"), "{said}");
    assert!(
        said.contains("trigger counted fires") && said.contains("nothing was changed"),
        "{said}"
    );
    assert_eq!(deliver(&fixture).await.len(), 12_000, "a dry run changes nothing");

    let (status, said) = replay(&fixture, &[&times[..], &["--apply"]].concat()).await;
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("public.outbox: 10000 events inserted again"), "{said}");
    let all = deliver(&fixture).await;
    assert_eq!(all.len(), 22_000);
    // Behind the first deliveries, in the order of each key, with the ids and values that they had.
    let mut last: HashMap<_, u64> = HashMap::new();
    let mut before: HashMap<_, &Consumed> = HashMap::new();
    for record in &first {
        before.insert(record.header("id").expect("an id").to_owned(), record);
    }
    let again: Vec<_> = all.iter().filter(|record| !first.contains(record)).collect();
    assert_eq!(again.len(), 10_000);
    for record in again {
        let i = number(record);
        assert!((1_000..11_000).contains(&i), "{i}");
        let former = before.remove(record.header("id").expect("an id")).expect("once");
        assert_eq!((&record.key, &record.value), (&former.key, &former.value));
        assert!(last.insert(record.key.clone(), i).is_none_or(|last| last < i), "{i} comes late");
    }
    let counts = "SELECT count(*) FILTER (WHERE operation = 'DELETE') || ' ' ||
                         count(*) FILTER (WHERE operation = 'INSERT') FROM public.fired";
    assert_eq!(fixture.postgres.query_text(counts).await.as_deref(), Some("10000 10000"));
    let kept = "SELECT count(*) || ' ' || count(DISTINCT number) FROM public.receipts
                  JOIN public.outbox ON id = event";
    assert_eq!(fixture.postgres.query_text(kept).await.as_deref(), Some("12000 12000"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_with_ids_are_published_again_marked_or_as_copies() {
    let fixture = Fixture::new().await;
    let ids = ["a1", "b2", "c3"].map(|end| format!("00000000-0000-4000-8000-0000000000{end}"));
    for id in &ids {
        let row = format!(
            "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
             VALUES ('{id}', 'order', 'k', 'placed', '{{\"i\": 1}}', '{{\"tenant\": \"acme\"}}')"
        );
        fixture.postgres.execute(&row).await;
    }
    assert_eq!(deliver(&fixture).await.len(), 3);
    let upper = ids[1].to_uppercase();
    let (status, said) =
        replay(&fixture, &["--id", &ids[0], "--id", &upper, "--id", &ids[1], "--mark", "--apply"])
            .await;
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("public.outbox: 2 events"), "{said}");
    let records = deliver(&fixture).await;
    let marked: Vec<_> =
        records.iter().filter(|record| record.header("replayed_at").is_some()).collect();
    let marked_ids: Vec<_> = marked.iter().filter_map(|record| record.header("id")).collect();
    assert_eq!((records.len(), marked_ids), (5, vec![ids[0].as_str(), ids[1].as_str()]));
    assert!(marked.iter().all(|record| record.header("tenant") == Some("acme")));

    let (status, said) = replay(&fixture, &["--id", &ids[2], "--new-ids", "--apply"]).await;
    assert_eq!(status, Some(0), "{said}");
    let records = deliver(&fixture).await;
    let copy =
        records.iter().max_by_key(|record| record.header("walpost.position").map(str::to_owned));
    let id = copy.and_then(|record| record.header("id")).expect("an id");
    assert!(records.len() == 6 && !ids.iter().any(|known| known == id), "{id}");
    assert_eq!(fixture.committed().await.len(), 4, "the row and its copy");
}

/// Of equal times and random ids, so that positions alone have the order in which rows were committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_published_again_by_the_positions_of_their_records() {
    let fixture = Fixture::new().await;
    for i in 0..40 {
        let row = format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
             VALUES ('order', 'k', 'placed', '{{\"i\": {i}}}', '2026-03-01T10:00Z')"
        );
        fixture.postgres.execute(&row).await;
    }
    let records = deliver(&fixture).await;
    let position = |i: u64| {
        let record = records.iter().find(|record| number(record) == i).expect("it was published");
        record.header("walpost.position").expect("a position")
    };
    let topic = fixture.topic("order");
    fixture.postgres.execute("DELETE FROM public.outbox WHERE payload @> '{\"i\": 20}'").await;
    let range = format!("{}..{}", position(10), position(29));
    let arguments = ["--position", &range, "--read-topic", &topic];
    let (status, said) = replay(&fixture, &arguments).await;
    assert_eq!(status, Some(0), "{said}");
    for part in [
        "reading 40 records of",
        "1 of the published events have no row any more",
        "public.outbox: 19 events",
        "nothing was changed",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (status, said) = replay(&fixture, &[&arguments[..], &["--apply"]].concat()).await;
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("public.outbox: 19 events inserted again"), "{said}");
    let all = deliver(&fixture).await;
    let again = all.iter().filter(|record| !records.contains(record)).map(number);
    let expected: Vec<u64> = (10..30).filter(|i| *i != 20).collect();
    assert_eq!(again.collect::<Vec<_>>(), expected);

    let nowhere = "0000000000000001/00000000";
    let (status, said) = replay(&fixture, &["--position", nowhere, "--read-topic", &topic]).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("has such a position") && said.contains(&topic), "{said}");
    let (status, said) =
        replay(&fixture, &["--position", position(3), "--read-topic", "none"]).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("topic none does not exist"), "{said}");
    for wrong in
        [&["--position", position(3)][..], &["--position", "0/16B3748", "--read-topic", &topic]]
    {
        let (status, said) = replay(&fixture, wrong).await;
        assert_eq!(status, Some(2), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn positions_of_records_that_have_no_ids_are_refused() {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(&walpost_bed::fixture::insert(1, 1)).await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, "record.headers = ['walpost.position']").expect("it can be written");
    let config = ["--until", "current", "--config", file.to_str().expect("UTF-8")];
    let (status, said) = fixture.run_to_its_end(&config).await;
    assert_eq!(status, Some(0), "{said}");
    let records = fixture.records().await;
    let position = records[0].header("walpost.position").expect("a position");
    let (topic, from) = (records[0].topic.clone(), format!("{position}..{position}"));
    let (status, said) = replay(&fixture, &["--position", &from, "--read-topic", &topic]).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("1 records with such positions have no header `id`"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_replayed_is_refused_and_left_as_it_is() {
    let mut fixture = Fixture::new().await;
    let known = "00000000-0000-4000-8000-0000000000a1";
    fixture
        .postgres
        .execute(&format!(
            "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload)
             VALUES ('{known}', 'order', 'k', 'placed', '1');
             CREATE TABLE public.receipts (event uuid REFERENCES public.outbox ON DELETE CASCADE);
             CREATE ROLE reader LOGIN; GRANT SELECT ON public.outbox TO reader"
        ))
        .await;
    let other = "00000000-0000-4000-8000-0000000000ff";
    for (arguments, expected) in [
        (&["--id", known][..], "references public.outbox ON DELETE CASCADE"),
        (&["--id", known, "--id", other, "--new-ids"], other),
        (&["--id", "no uuid", "--new-ids"], "invalid input syntax for type uuid"),
        (&["--since", "teatime", "--new-ids"], "invalid input syntax for type timestamp"),
        (
            &["--since", "now", "--new-ids", "--time-column", "payload"],
            "times with the name payload",
        ),
        (&["--id", known, "--new-ids", "--order-by", "none"], "the order, none"),
        (&["--since", "now", "--new-ids", "--table", "public.none"], "does not exist"),
    ] {
        let (status, said) = replay(&fixture, &[arguments, &["--apply"]].concat()).await;
        assert_eq!(status, Some(1), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    assert_eq!(deliver(&fixture).await.len(), 1);
    fixture.source = fixture.source.replace("postgres@", "reader@");
    let (status, said) = replay(&fixture, &["--id", known, "--new-ids", "--apply"]).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("connect as its owner"), "{said}");
}

/// Triggers that change or drop rows, ids of a fixed length, and times without a zone: each row once,
/// or none at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_inserted_again_once_whatever_triggers_do() {
    let fixture = Fixture::empty().await;
    fixture
        .postgres
        .execute(
            "CREATE TABLE public.outbox (id char(26) PRIMARY KEY, aggregate_type text NOT NULL,
                 aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, headers jsonb,
                 created_at timestamp NOT NULL, n bigint GENERATED BY DEFAULT AS IDENTITY);
             CREATE FUNCTION public.touch() RETURNS trigger LANGUAGE plpgsql AS
                 $$BEGIN NEW.created_at := clock_timestamp(); RETURN NEW; END$$;
             CREATE FUNCTION public.drop_some() RETURNS trigger LANGUAGE plpgsql AS
                 $$BEGIN RETURN CASE WHEN NEW.aggregate_id <> 'k2' THEN NEW END; END$$",
        )
        .await;
    let fixture = fixture.over("SELECT 1").await;
    let rows = "INSERT INTO public.outbox
        SELECT lpad(i::text, 26, '0'), 'order', 'k' || i % 3, 'placed', jsonb_build_object('i', i),
               CASE i % 2 WHEN 0 THEN 'null'::jsonb END, timezone('UTC', now()) - interval '1 hour'
          FROM generate_series(1, 2500) AS i";
    fixture.postgres.execute(rows).await;
    assert_eq!(deliver(&fixture).await.len(), 2500);
    let tomorrow = ["--since", "yesterday", "--until", "tomorrow"];
    let apply =
        async |more: &[&str]| replay(&fixture, &[&tomorrow[..], &["--apply"], more].concat()).await;

    let trigger = |function| {
        format!(
            "DROP TRIGGER IF EXISTS t ON public.outbox; CREATE TRIGGER t BEFORE INSERT ON public.outbox
             FOR EACH ROW EXECUTE FUNCTION public.{function}()"
        )
    };
    fixture.postgres.execute(&trigger("drop_some")).await;
    let (status, said) = apply(&[]).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("a trigger or a rule keeps the others out"), "{said}");
    assert!(
        said.contains("the rest: --table public.outbox --since '-infinity'")
            || said.contains("--since '2"),
        "{said}"
    );
    let count = "SELECT count(*) FROM public.outbox";
    assert_eq!(fixture.postgres.query_text(count).await.as_deref(), Some("2500"));
    assert_eq!(deliver(&fixture).await.len(), 2500, "nothing was inserted");

    fixture.postgres.execute(&trigger("touch")).await;
    let (status, said) = apply(&["--mark", "--order-by", "n"]).await;
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("public.outbox: 2500 events inserted again"), "{said}");
    let records = deliver(&fixture).await;
    let marked = records.iter().filter(|record| record.header("replayed_at").is_some()).count();
    assert_eq!((records.len(), marked), (5000, 2500));
    assert_eq!(fixture.postgres.query_text(count).await.as_deref(), Some("2500"));

    let ids: Vec<_> = [7, 2400].iter().map(|i| format!("{i:026}")).collect();
    let (status, said) = replay(&fixture, &["--id", &ids[0], "--id", &ids[1], "--apply"]).await;
    assert_eq!(status, Some(0), "{said}");
    let records = deliver(&fixture).await;
    let again: Vec<_> = ids
        .iter()
        .map(|id| records.iter().filter(|record| record.header("id") == Some(id)).count())
        .collect();
    assert_eq!((records.len(), again), (5002, vec![3, 3]));
    let (status, said) = apply(&["--aggregate-id", "k1"]).await;
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("public.outbox: 834 events inserted again"), "{said}");
}

/// A foreign key to a partition would act; one replay at a time; several tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_and_several_tables_are_looked_at() {
    let fixture = Fixture::empty().await;
    let columns = "aggregate_type text NOT NULL, aggregate_id text NOT NULL,
                   event_type text NOT NULL, payload jsonb, created_at timestamptz DEFAULT now()";
    let tables = format!(
        "CREATE TABLE public.parts (id uuid NOT NULL, {columns}) PARTITION BY RANGE (created_at);
         CREATE TABLE public.part PARTITION OF public.parts (PRIMARY KEY (id)) DEFAULT;
         CREATE TABLE public.others (id bigint PRIMARY KEY, {columns});
         INSERT INTO public.parts VALUES ('00000000-0000-4000-8000-0000000000a1', 'order', 'k', 'e', '1');
         INSERT INTO public.others VALUES (7, 'order', 'k', 'e', '2')"
    );
    fixture.postgres.execute(&tables).await;
    let both = ["--table", "public.parts", "--table", "public.others"];
    let of_both =
        async |arguments: &[&str]| replay(&fixture, &[&both[..], arguments].concat()).await;
    let uuid = "00000000-0000-4000-8000-0000000000a1";
    let (status, said) = of_both(&["--id", uuid]).await;
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("public.parts: 1 event, written") && said.contains("public.others: 0"));
    assert!(said.contains("nobody would publish the events"), "{said}");
    let (status, said) = of_both(&["--id", uuid, "--id", "7"]).await;
    assert_eq!(status, Some(1), "{said}");

    let blocker = fixture.postgres.client().await;
    let lock = "SELECT pg_advisory_lock(x'57507270'::int, 'public.others'::regclass::oid::int)";
    blocker.batch_execute(lock).await.expect("locked");
    let (status, said) = of_both(&["--since", "yesterday", "--apply"]).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("public.parts: 1 events inserted again"), "{said}");
    assert!(said.contains("another `walpost replay` works on public.others"), "{said}");
    assert!(said.contains("the rest: --table public.others --since"), "{said}");
    drop(blocker);

    let reference =
        "CREATE TABLE public.receipts (event uuid REFERENCES public.part ON DELETE CASCADE)";
    fixture.postgres.execute(reference).await;
    let (status, said) = of_both(&["--since", "yesterday"]).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("references public.parts ON DELETE CASCADE"), "{said}");
}

/// What it has read of the table holds in none of its transactions by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_changed_or_replaced_meanwhile_keeps_its_rows() {
    let mut fixture = Fixture::new().await;
    fixture.source = fixture.postgres.url_for("hurried");
    let postgres = &fixture.postgres;
    // It waits for longer than statements of the role may take.
    let prepare = "CREATE ROLE hurried SUPERUSER LOGIN REPLICATION;
                   ALTER ROLE hurried SET statement_timeout = '200ms';
                   INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
                   SELECT 'order', 'k', 'placed', '{}' FROM generate_series(1, 20);
                   CREATE TABLE public.fresh (LIKE public.outbox INCLUDING ALL);
                   ALTER TABLE public.fresh ADD more text";
    postgres.execute(prepare).await;
    let added = "ALTER TABLE public.outbox ADD extra text; UPDATE public.outbox SET extra = 'kept'";
    let swapped = "INSERT INTO public.fresh SELECT o.id, o.aggregate_type, o.aggregate_id, o.event_type,
                          o.payload, o.headers, o.created_at FROM public.outbox o;
                   UPDATE public.fresh SET more = 'kept';
                   ALTER TABLE public.outbox RENAME TO former; ALTER TABLE public.fresh RENAME TO outbox";
    for (change, kept) in [(added, "extra"), (swapped, "more")] {
        let other = postgres.client().await;
        let lock = "BEGIN; LOCK TABLE public.outbox IN SHARE MODE";
        other.batch_execute(lock).await.expect("locked");
        let replay = fixture.command("replay").args(["--since", "1970-01-01", "--apply"]).start();
        let waiting = "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                        WHERE NOT l.granted AND a.application_name = 'walpost replay'
                          AND clock_timestamp() > a.query_start + interval '500 ms')";
        eventually(LONG_TIMEOUT, "it waits for the table", async || {
            postgres.query_text(waiting).await.as_deref() == Some("t")
        })
        .await;
        other.batch_execute(&format!("{change}; COMMIT")).await.expect("changed");
        let status = replay.wait(SHORT_TIMEOUT).await.expect("it ends");
        let said = replay.stderr().join("\n");
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains("given other columns meanwhile"), "{said}");
        let count = format!("SELECT count({kept}) FROM public.outbox");
        assert_eq!(postgres.query_text(&count).await.as_deref(), Some("20"), "{said}");
    }
}
