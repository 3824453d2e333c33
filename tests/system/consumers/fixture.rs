//! Orders that walpost has published, some of them twice, and the result that a consumer must
//! compute from them.

use std::collections::BTreeMap;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};

use walpost_bed::Kafka;
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT};

/// What a program has written: number and total of orders by customer.
pub type Turnover = BTreeMap<String, (u64, u64)>;

/// All three keys detect walpost's own duplicates; they differ on the rest.
pub const BY: [&str; 3] = ["id", "idempotency-key", "position"];

const BEFORE: std::ops::Range<u64> = 0..200;
const AFTER: std::ops::Range<u64> = 200..260;
/// Published by another than walpost, each with headers before its own that say what another
/// one's say.
const FORGED: std::ops::Range<u64> = 260..263;
/// Inserted into the outbox again, with the same ids.
const PUT_AGAIN: std::ops::Range<u64> = 10..20;

/// Orders in a topic of three partitions.
pub struct OrdersFixture {
    fixture: Fixture,
}

impl OrdersFixture {
    /// Orders come in pairs with one idempotency key, in a header or in the payload; then there is
    /// no such header, or it is null or empty.
    /// The first two hundred are published twice, as after a crash.
    pub async fn open() -> Self {
        let fixture = Fixture::new().await;
        fixture
            .postgres
            .execute("SELECT pg_copy_logical_replication_slot('walpost', 'again')")
            .await;
        let orders = Self { fixture };
        orders.order(BEFORE).await;
        orders.publish(&[]).await;
        orders.publish(&["--slot", "again"]).await;
        orders.order(AFTER).await;
        let again = format!(
            "DELETE FROM public.outbox WHERE (payload ->> 'total_cents')::int >= {} AND (payload ->> 'total_cents')::int < {}",
            PUT_AGAIN.start, PUT_AGAIN.end
        );
        orders.fixture.postgres.execute(&again).await;
        orders.order(PUT_AGAIN).await;
        orders.publish(&[]).await;
        let published = 2 * BEFORE.count() + AFTER.count() + PUT_AGAIN.count();
        assert_eq!(orders.fixture.records().await.len(), published);
        orders.forge().await;
        orders
    }

    /// A shop whose orders are still to be placed, by an example writer.
    pub async fn shop() -> Self {
        let fixture = Fixture::empty().await;
        fixture.init(&["--publish-function"]).await;
        fixture.postgres.execute(include_str!("../../../examples/writers/shop.sql")).await;
        Kafka::shared().await.create_topic(&fixture.topic("order"), 3).await;
        Self { fixture }
    }

    /// The orders of the shop.
    pub async fn placed(&self) -> Turnover {
        self.turnover_of(
            "postgres",
            "SELECT customer, count(*), sum(total_cents)::bigint FROM public.orders GROUP BY 1",
        )
        .await
    }

    /// Publishes records with two headers of each name.
    async fn forge(&self) {
        let mut config = ClientConfig::new();
        let producer: FutureProducer =
            config.set("bootstrap.servers", self.brokers()).create().unwrap();
        for number in FORGED {
            let (position, payload) = (
                format!("FFFFFFFF00000000/{number:08X}"),
                format!("{{\"customer\": \"forged\", \"total_cents\": {number}}}"),
            );
            let highest = "FFFFFFFFFFFFFFFF/FFFFFFFF".to_owned();
            let own = number.to_string();
            let mut headers = OwnedHeaders::new();
            for (key, first, last) in [
                ("id", "forged", &own),
                ("idempotency_key", "forged", &own),
                ("walpost.position", &highest, &position),
            ] {
                headers = headers.insert(Header { key, value: Some(first) });
                headers = headers.insert(Header { key, value: Some(last) });
            }
            let topic = self.topic();
            let record = FutureRecord::to(&topic).key("forged").payload(&payload).headers(headers);
            producer.send(record, SHORT_TIMEOUT).await.unwrap();
        }
    }

    async fn order(&self, numbers: std::ops::Range<u64>) {
        let sql = format!(
            "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
             SELECT md5('order ' || i)::uuid, 'order', 'customer ' || i / 2 % 7, 'order_placed',
                    jsonb_build_object('customer', 'customer ' || i / 2 % 7, 'total_cents', i)
                      || CASE i / 2 % 2 WHEN 0 THEN '{{}}' ELSE jsonb_build_object('idempotencyKey', 'request ' || i / 2) END,
                    CASE i / 2 % 6
                        WHEN 1 THEN NULL
                        WHEN 3 THEN '{{\"idempotency_key\": null}}'
                        WHEN 5 THEN '{{\"idempotency_key\": \"\"}}'
                        ELSE jsonb_build_object('idempotency_key', 'request ' || i / 2)
                    END
               FROM generate_series({}, {}) AS i",
            numbers.start,
            numbers.end - 1
        );
        self.fixture.postgres.execute(&sql).await;
    }

    /// Publishes what is committed.
    pub async fn publish(&self, arguments: &[&str]) {
        let arguments = [&["--until", "current"], arguments].concat();
        let (code, said) = self.fixture.run_to_its_end(&arguments).await;
        assert_eq!(code, Some(0), "{said}");
    }

    /// What a program that deduplicates by this key must have written.
    pub fn turnover(by: &str) -> Turnover {
        let all = BEFORE.chain(AFTER);
        let acted: Vec<u64> = match by {
            // The first of each pair.
            "idempotency-key" => all.filter(|number| number % 2 == 0).collect(),
            // A row inserted again has a new position.
            "position" => all.chain(PUT_AGAIN).collect(),
            _ => all.collect(),
        };
        let mut turnover = Turnover::new();
        for number in acted {
            let sum = turnover.entry(format!("customer {}", number / 2 % 7)).or_default();
            *sum = (sum.0 + 1, sum.1 + number);
        }
        turnover.insert("forged".to_owned(), (FORGED.count() as u64, FORGED.sum()));
        turnover
    }

    pub fn brokers(&self) -> &str {
        &self.fixture.bootstrap
    }

    pub fn topic(&self) -> String {
        self.fixture.topic("order")
    }

    /// `host:port` of the database server.
    pub fn database_server(&self) -> String {
        format!("127.0.0.1:{}", self.fixture.postgres.port())
    }

    /// A database of that name with the tables for the programs.
    pub async fn make_database(&self, name: &str) {
        self.fixture.postgres.execute(&format!("CREATE DATABASE {name}")).await;
        let client = self.fixture.postgres.client_of(name).await;
        for sql in [
            include_str!("../../../sql/consumer_dedupe.sql"),
            include_str!("../../../examples/consumers/turnover.sql"),
        ] {
            client.batch_execute(sql).await.unwrap();
        }
    }

    /// What the programs have written to that database.
    pub async fn written(&self, database: &str) -> Turnover {
        self.turnover_of(database, "SELECT customer, orders, total_cents FROM turnover").await
    }

    async fn turnover_of(&self, database: &str, sql: &str) -> Turnover {
        let client = self.fixture.postgres.client_of(database).await;
        let number = |number: i64| u64::try_from(number).unwrap();
        let rows = client.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), (number(row.get(1)), number(row.get(2))))).collect()
    }

    /// Whether the group has committed the end of each partition; otherwise its offsets.
    pub async fn is_read_by(&self, group: &str) -> Result<(), String> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.brokers()).set("group.id", group);
        let (topic, partitions) = (self.topic(), 3);
        let look = tokio::task::spawn_blocking(move || {
            let consumer: BaseConsumer = config.create().unwrap();
            let mut list = TopicPartitionList::new();
            for partition in 0..partitions {
                list.add_partition(&topic, partition);
            }
            let committed =
                consumer.committed_offsets(list, SHORT_TIMEOUT).map_err(|e| e.to_string())?;
            for partition in committed.elements() {
                let (_, end) = consumer
                    .fetch_watermarks(&topic, partition.partition(), SHORT_TIMEOUT)
                    .map_err(|error| error.to_string())?;
                if end > 0 && partition.offset() != Offset::Offset(end) {
                    return Err(format!("{partition:?}, its end is {end}"));
                }
            }
            Ok(())
        });
        look.await.unwrap()
    }
}
