//! The tables of `docs/from-polling.md`, which common pollers use: walpost publishes what an
//! application inserts, with the page's configuration, and nothing of what a poller changes.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, ended, program};
use walpost_bed::page::blocks;
use walpost_bed::{Consumed, Kafka, Major, Postgres, Walpost, WalpostBuilder, read_all};

use crate::migration::TABLES;

const PAGE: &str = include_str!("../../../docs/from-polling.md");

/// Key, value, and some of the headers.
type Record = (Option<&'static str>, &'static [u8], &'static [(&'static str, &'static str)]);

/// A table of the page, and those who use it. `TYPE` stands for a text that no other test uses.
struct Poller {
    /// The section's heading.
    heading: &'static str,
    /// What the application inserts.
    insert: &'static str,
    /// What the poller does to it, several times.
    changes: &'static [&'static str],
    topic: &'static str,
    /// By key.
    records: &'static [Record],
}

const ID: &str = "c4ca4238-a0b9-2382-0dcc-509a6f75849b";

const POLLERS: [Poller; 5] = [
    Poller {
        heading: "Status and retry count",
        insert: "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                 VALUES ('c4ca4238-a0b9-2382-0dcc-509a6f75849b', 'TYPE', 'A-7', 'OrderPlaced', '{\"n\": 1}')",
        changes: &[
            "UPDATE outbox_events SET status = 'PROCESSING', retry_count = retry_count + 1",
            "UPDATE outbox_events SET status = 'FAILED', last_error = 'no broker'",
            "UPDATE outbox_events SET status = 'SENT', processed_at = now()",
        ],
        topic: "outbox.event.TYPE",
        records: &[(Some("A-7"), b"{\"n\": 1}", &[("id", ID), ("event_type", "OrderPlaced")])],
    },
    Poller {
        heading: "Topic and key in the row",
        insert: "INSERT INTO outbox_messages (topic, partition_key, headers, payload)
                 VALUES ('TYPE', 'A-7', '{\"tenant\": \"acme\"}', 'plain text'), ('TYPE', NULL, NULL, 'no key')",
        changes: &[
            "UPDATE outbox_messages SET processed = true",
            "DELETE FROM outbox_messages WHERE processed",
        ],
        topic: "TYPE",
        records: &[
            (None, b"no key", &[("id", "2")]),
            (Some("A-7"), b"plain text", &[("id", "1"), ("tenant", "acme")]),
        ],
    },
    Poller {
        heading: "Lease of a worker",
        insert: "INSERT INTO outbox_jobs (id, message_type, payload)
                 VALUES ('c4ca4238-a0b9-2382-0dcc-509a6f75849b', 'TYPE', '\\x00ff')",
        changes: &[
            "WITH claimed AS (
                 SELECT id FROM outbox_jobs WHERE delivered_at IS NULL ORDER BY created_at
                 LIMIT 10 FOR UPDATE SKIP LOCKED)
             UPDATE outbox_jobs SET locked_by = 'worker 1', locked_until = now() + interval '1 minute',
                    attempts = attempts + 1
             FROM claimed WHERE outbox_jobs.id = claimed.id",
            "UPDATE outbox_jobs SET delivered_at = now(), locked_by = NULL, locked_until = NULL",
            "DELETE FROM outbox_jobs",
        ],
        topic: "TYPE",
        records: &[(Some(ID), b"\x00\xff", &[("id", ID), ("event_type", "TYPE")])],
    },
    Poller {
        heading: "Names in mixed case",
        insert: r#"INSERT INTO "OutboxMessages" ("Id", "Type", "AggregateId", "Content", "OccurredOnUtc")
                   VALUES ('c4ca4238-a0b9-2382-0dcc-509a6f75849b', 'TYPE',
                           '54c8cdde-0c04-42a6-b2ae-75fb9a1074ba', '{"n":1}', now() AT TIME ZONE 'utc')"#,
        changes: &[
            r#"UPDATE "OutboxMessages" SET "Error" = 'no broker'"#,
            r#"UPDATE "OutboxMessages" SET "ProcessedOnUtc" = now() AT TIME ZONE 'utc'"#,
        ],
        topic: "TYPE",
        records: &[(
            Some("54c8cdde-0c04-42a6-b2ae-75fb9a1074ba"),
            b"{\"n\":1}",
            &[("id", ID), ("event_type", "TYPE")],
        )],
    },
    Poller {
        heading: "Spring Modulith",
        insert: "INSERT INTO event_publication
                   (id, listener_id, event_type, serialized_event, publication_date)
                 VALUES ('c4ca4238-a0b9-2382-0dcc-509a6f75849b', 'shop.Mail.on(OrderPlaced)', 'TYPE',
                         '{\"n\":1}', now())",
        changes: &[
            "UPDATE event_publication SET completion_date = now()",
            "DELETE FROM event_publication WHERE completion_date IS NOT NULL",
        ],
        topic: "TYPE",
        records: &[(
            Some(ID),
            b"{\"n\":1}",
            &[("id", ID), ("event_type", "TYPE"), ("listener", "shop.Mail.on(OrderPlaced)")],
        )],
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_of_each_common_poller_is_published_and_its_updates_are_not() {
    let (_, tables) = PAGE.split_once(TABLES).expect("the tables");
    let headings = tables.lines().filter_map(|line| line.strip_prefix("### "));
    assert!(headings.eq(POLLERS.iter().map(|poller| poller.heading)), "a table without a test");
    for (number, poller) in POLLERS.iter().enumerate() {
        let section = tables.split("\n### ").nth(number + 1).expect("a section");
        assert!(section.starts_with(poller.heading));
        poller.is_published(section, &format!("poller.{number}-{}", std::process::id())).await;
    }
}

impl Poller {
    async fn is_published(&self, section: &str, unique: &str) {
        let parts = blocks(section);
        let [(sql, table), (toml, settings)] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!((&**sql, &**toml), ("sql", "toml"), "{}", self.heading);
        let postgres = Postgres::start(Major::V15).await;
        let topic = self.topic.replace("TYPE", unique);
        Kafka::shared().await.create_topic(&topic, 1).await;
        postgres.execute(table).await;
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("walpost.toml");
        std::fs::write(&file, settings).unwrap();
        let brokers = Kafka::shared().await.bootstrap();
        let command = |name: &str| -> WalpostBuilder {
            let walpost = Walpost::builder(program()).arg(name).arg("--config").arg(&file);
            walpost.args(["--source", &postgres.url(), "--bootstrap-servers", &brokers])
        };
        let init = command("init").arg("--apply").start();
        let (code, said) = ended(&init).await;
        assert_eq!(code, Some(0), "{}: {said}", self.heading);
        let walpost = command("run").start();
        walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
        postgres.execute(&self.insert.replace("TYPE", unique)).await;
        for change in self.changes {
            // In transactions of their own, as a poller makes them.
            postgres.execute(change).await;
        }
        postgres.confirmed("walpost", LONG_TIMEOUT).await;
        self.assert_records(read_all(&brokers, &*topic).await, unique);
    }

    fn assert_records(&self, mut records: Vec<Consumed>, unique: &str) {
        records.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(records.len(), self.records.len(), "{}: {records:?}", self.heading);
        for (record, (key, value, headers)) in records.iter().zip(self.records) {
            assert_eq!(record.key_text(), *key, "{}", self.heading);
            assert_eq!(record.value.as_deref(), Some(*value), "{}", self.heading);
            for (name, expected) in *headers {
                let expected = expected.replace("TYPE", unique);
                assert_eq!(record.header(name), Some(&*expected), "{}: {name}", self.heading);
            }
        }
    }
}
