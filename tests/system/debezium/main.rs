//! Moves a slot from a real Debezium to walpost and back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use walpost_bed::debezium::Connector;
use walpost_bed::fixture::program;
use walpost_bed::{Consumed, Debezium, Follower, Kafka, Major, Postgres, Walpost, eventually};

const MINUTE: Duration = Duration::from_secs(60);

/// Migrates as docs/from-debezium.md says, and back, while the application keeps writing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts Kafka Connect: make debezium"]
async fn slot_moves_from_debezium_to_walpost_and_back_under_load() {
    let (postgres, kafka) = (Postgres::start(Major::V17).await, Kafka::start().await);
    postgres
        .execute(
            "CREATE TABLE outbox (n bigserial, id uuid, aggregatetype text, aggregateid text,
                                  type text, amount numeric(12,2), payload jsonb);
             CREATE PUBLICATION dbz_publication FOR TABLE outbox",
        )
        .await;
    postgres.execute("SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')").await;
    let debezium = Debezium::start(&postgres, &kafka).await;
    let placement = "type:header:eventType,amount:header,n:envelope";
    let connector = Connector::new("moved", "debezium", "dbz_publication")
        .router("table.fields.additional.placement", placement)
        .setting("decimal.handling.mode", "string");
    debezium.add(&postgres, connector).await;

    let follower = Follower::start(&kafka.bootstrap(), "outbox.event.order");
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write(postgres.client().await, Arc::clone(&stop)));
    let more = async |count: usize| {
        let wanted = follower.count() + count;
        follower.until_count(wanted, MINUTE).await;
    };
    more(200).await;
    let of_slot = async |what: &str| {
        let from = "FROM pg_replication_slots WHERE slot_name = 'debezium'";
        postgres.query_text(&format!("SELECT {what} {from}")).await
    };
    let is_free = async || of_slot("active").await.as_deref() == Some("f");

    let text = format!(
        "connector.class=io.debezium.connector.postgresql.PostgresConnector\nplugin.name=pgoutput\n\
         database.hostname=127.0.0.1\ndatabase.port={}\ndatabase.user=postgres\n\
         database.dbname=postgres\ntable.include.list=public.outbox\nbootstrap.servers={}\n\
         decimal.handling.mode=string\ntransforms=outbox\n\
         transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n\
         transforms.outbox.table.fields.additional.placement={placement}\n\
         key.converter=org.apache.kafka.connect.storage.StringConverter\n\
         value.converter=org.apache.kafka.connect.storage.StringConverter\n",
        postgres.port(),
        kafka.bootstrap()
    );
    let folder = tempfile::tempdir().unwrap();
    let properties = folder.path().join("connector.properties");
    fs::write(&properties, text).unwrap();
    let import = Walpost::builder(program()).arg("import-debezium").arg(&properties).start();
    assert!(import.wait(MINUTE).await.expect("it ends").success(), "{:?}", import.stderr());
    let config = folder.path().join("walpost.toml");
    fs::write(&config, import.stdout().join("\n")).unwrap();
    let walpost = |arguments: &[&str]| {
        let walpost = Walpost::builder(program()).args(arguments);
        walpost.arg("--config").arg(&config).keeps_position().start()
    };
    // There and back, and there again.
    for _ in 0..2 {
        // Not paused first: its queues still hold events.
        debezium.turn("moved", "stop").await;
        eventually(MINUTE, "a free slot", is_free).await;
        let left = of_slot("confirmed_flush_lsn::text").await.expect("a position");
        let adopt = walpost(&["adopt", "--apply"]);
        assert!(adopt.wait(MINUTE).await.expect("it ends").success(), "{:?}", adopt.stderr());
        let run = walpost(&["run", "-X", "allow.auto.create.topics=true"]);
        more(200).await;
        // After some time no slot reaches back to the offset that Debezium has stored.
        eventually(MINUTE, "the slot begins later", async || {
            postgres.execute("CHECKPOINT").await;
            of_slot(&format!("restart_lsn > '{left}'")).await.as_deref() == Some("t")
        })
        .await;
        run.terminate();
        let status = run.wait(MINUTE).await.expect("walpost stops");
        assert!(status.success(), "{:?}", run.stderr());
        debezium.forget_offsets("moved").await;
        debezium.turn("moved", "resume").await;
        debezium.streams(&postgres).await;
        more(200).await;
    }
    stop.store(true, Ordering::Relaxed);
    let written = writer.await.expect("the writer ends");
    let records =
        follower.until("all that was written", MINUTE, |seen| numbers(seen).len() == written).await;
    assert_orderly(&records, written);
    println!("{written} rows, {} records", records.len());
}

/// Writes one row after the other until it is stopped; returns their number.
async fn write(client: tokio_postgres::Client, stop: Arc<AtomicBool>) -> usize {
    let mut written = 0;
    while !stop.load(Ordering::Relaxed) {
        let row = format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, amount, payload) VALUES
             (md5('{written}')::uuid, 'order', 'key-{}', 'Placed', {written}.5, '{{\"a\": 1.50}}')",
            written % 7
        );
        client.batch_execute(&row).await.expect("a row is written");
        written += 1;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    written
}

/// The number of a record's row.
fn number(record: &Consumed) -> usize {
    let value = record.value_text().and_then(|text| text.rsplit_once("n=")?.1.strip_suffix('}'));
    value.and_then(|number| number.parse().ok()).expect("the writer's own values")
}

fn numbers(records: &[Consumed]) -> BTreeSet<usize> {
    records.iter().map(number).collect()
}

/// All rows are there, those of a key in their order where they come first, and what
/// comes again is the same to the byte, whoever wrote it.
fn assert_orderly(records: &[Consumed], written: usize) {
    assert_eq!(numbers(records), (1..=written).collect());
    let mut last: BTreeMap<&[u8], usize> = BTreeMap::new();
    let mut firsts: BTreeMap<usize, &Consumed> = BTreeMap::new();
    for record in records {
        let number = number(record);
        if let Some(first) = firsts.get(&number) {
            let parts = |it: &Consumed| {
                (it.partition, it.key.clone(), it.value.clone(), it.headers.clone())
            };
            assert_eq!(parts(record), parts(first), "row {number} came again otherwise");
            continue;
        }
        firsts.insert(number, record);
        let before = last.insert(record.key.as_deref().expect("a key"), number);
        assert!(before.is_none_or(|before| before < number), "row {number} after {before:?}");
    }
}
