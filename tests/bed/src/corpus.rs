//! What is recorded of pgoutput: transactions that make it send every kind of message.

use std::collections::HashMap;

use crate::postgres::Postgres;

/// The publication of all their tables, and the slot that is before them.
pub const NAME: &str = "corpus";

const TABLES: &str = r#"
    CREATE TYPE mood AS ENUM ('calm', 'wild');
    CREATE TYPE pair AS (a int, b text);
    CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text,
        event_type text, payload jsonb, headers jsonb, traceparent text, tracestate text,
        written_at timestamptz);
    CREATE TABLE outbox_bytes (id bigint PRIMARY KEY, aggregatetype varchar(40),
        aggregateid text, type text, payload bytea);
    CREATE TABLE kinds (id int PRIMARY KEY, truth boolean, small smallint, number numeric,
        double float8, many int[], mood mood, pair pair, "when" timestamptz, "on" date,
        who uuid, json json, bytes bytea, span int4range, nothing text);
    CREATE SCHEMA "Odd, name";
    CREATE TABLE "Odd, name"."größe ""1""" ("größe" int PRIMARY KEY, "a b" text);
    CREATE TABLE bare ();
    CREATE TABLE toasted (id int PRIMARY KEY, n int, wide text);
    ALTER TABLE toasted ALTER wide SET STORAGE EXTERNAL;
    CREATE TABLE whole (id int PRIMARY KEY, n int, wide text);
    ALTER TABLE whole REPLICA IDENTITY FULL;
    CREATE TABLE by_index (id int NOT NULL, k int NOT NULL UNIQUE);
    ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_k_key;
    CREATE TABLE no_identity (id int);
    ALTER TABLE no_identity REPLICA IDENTITY NOTHING;
    CREATE TABLE parted (id int PRIMARY KEY, n text) PARTITION BY RANGE (id);
    CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (1) TO (10);
    CREATE TABLE parent (id int PRIMARY KEY);
    CREATE TABLE child (id serial PRIMARY KEY, parent int REFERENCES parent);
    SELECT pg_replication_origin_create('elsewhere');
    CREATE PUBLICATION corpus FOR ALL TABLES"#;

/// What each transaction is for, and its statements.
const TRANSACTIONS: [(&str, &str); 24] = [
    (
        "an outbox row with every column",
        r#"INSERT INTO outbox VALUES ('6e8bc430-9c3a-11d9-9669-0800200c9a66', 'order', '7',
            'OrderPlaced', '{"total": 12.50, "note": "caf\u00e9 \"x\""}',
            '{"tenant": "eu", "retries": 3, "none": null, "nested": {"a": [1, "b"]}}',
            '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', 'a=1,b=2',
            '2026-11-21 14:55:01.123456+00')"#,
    ),
    (
        "an outbox row of NULLs, where they may be",
        "INSERT INTO outbox VALUES ('00000000-0000-0000-0000-000000000000', 'order')",
    ),
    (
        "an outbox row of empty texts",
        r#"INSERT INTO outbox VALUES ('00000000-0000-0000-0000-000000000001', '', '', '', '""',
            '{}', '', '', '-infinity')"#,
    ),
    (
        "a wide outbox row, and two more of the same relation",
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, payload)
            SELECT ('00000000-0000-0000-0000-00000000001' || n)::uuid, 'order', n,
                jsonb_build_object('fill', repeat('wide ', 300 * (n = 1)::int)) FROM generate_series(1, 3) n",
    ),
    (
        "outbox rows with bytes, and Debezium's names",
        r"INSERT INTO outbox_bytes VALUES (1, 'order', '7', 'OrderPlaced', '\x00ff10'),
            (-9223372036854775808, 'order', '7', NULL, ''), (2, NULL, NULL, NULL, NULL)",
    ),
    (
        "a value of every kind",
        r#"INSERT INTO kinds VALUES (-1, true, -32768, 'NaN', 'Infinity', '{1,NULL,3}', 'wild',
            '(1,"a ""b""")', '294276-12-31 23:59:59.999999+00', '4713-01-01 BC',
            '6e8bc430-9c3a-11d9-9669-0800200c9a66', '{"a":  1}', '\xdeadbeef', '[1,5)', NULL)"#,
    ),
    ("names that need quotes", r#"INSERT INTO "Odd, name"."größe ""1""" VALUES (1, 'ä€😀')"#),
    ("a row without a column", "INSERT INTO bare DEFAULT VALUES"),
    ("a row of a partition", "INSERT INTO parted VALUES (1, 'one')"),
    ("a row without an identity", "INSERT INTO no_identity VALUES (1)"),
    ("a TOASTed value", "INSERT INTO toasted VALUES (1, 1, repeat('0123456789', 210))"),
    ("an update that leaves it as it was", "UPDATE toasted SET n = 2"),
    ("an update of a key beside it", "UPDATE toasted SET id = 2"),
    ("rows that are their own identity", "INSERT INTO whole VALUES (1, 1, 'x'), (2, NULL, '')"),
    ("an update with the whole old row", "UPDATE whole SET n = n + 1"),
    ("a delete with the whole old row", "DELETE FROM whole"),
    ("a delete by key", "DELETE FROM toasted"),
    (
        "an identity by an index",
        "INSERT INTO by_index VALUES (1, 10); UPDATE by_index SET k = 11; DELETE FROM by_index",
    ),
    (
        "truncates, alone and of several with options",
        "TRUNCATE whole; INSERT INTO parent VALUES (1); INSERT INTO child (parent) VALUES (1);
         TRUNCATE child RESTART IDENTITY; TRUNCATE parent RESTART IDENTITY CASCADE;
         TRUNCATE outbox, outbox_bytes",
    ),
    (
        "logical messages inside a transaction",
        r#"SELECT pg_logical_emit_message(true, 'outbox', '{"id": 1, "aggregate_type": "order",
                "aggregate_id": "7", "payload": {"a": 1.50}, "headers": {"h": "1"}}');
            SELECT pg_logical_emit_message(true, 'other', '\x00ff'::bytea);
            SELECT pg_logical_emit_message(true, '', '')"#,
    ),
    (
        "logical messages that a rollback does not take back",
        "SELECT pg_logical_emit_message(false, 'outbox', 'outside');
         INSERT INTO parted VALUES (2, 'beside them')",
    ),
    (
        "a transaction that came from elsewhere",
        "SELECT pg_replication_origin_session_setup('elsewhere');
         INSERT INTO parted VALUES (3, 'from elsewhere')",
    ),
    (
        "a relation that changes between two rows",
        "INSERT INTO parted VALUES (4, 'before'); ALTER TABLE parted ADD added mood DEFAULT 'calm';
         INSERT INTO parted VALUES (5, 'after')",
    ),
    (
        "a rollback to a savepoint",
        "INSERT INTO parted VALUES (6, 'kept'); SAVEPOINT s; INSERT INTO parted VALUES (7, 'not');
         ROLLBACK TO s; INSERT INTO parted VALUES (8, 'kept too')",
    ),
];

/// Makes the tables, the publication and the slot, and runs the transactions; returns what each is for,
/// by its id.
pub async fn write(postgres: &Postgres) -> HashMap<String, &'static str> {
    postgres.execute(TABLES).await;
    postgres.execute("SELECT pg_create_logical_replication_slot('corpus', 'pgoutput')").await;
    let mut titles = HashMap::new();
    for (title, sql) in TRANSACTIONS {
        let step = format!("BEGIN; SELECT pg_current_xact_id()::xid; {sql}; COMMIT");
        let xid = postgres.query_text(&step).await.expect("a transaction has an id");
        titles.insert(xid, title);
    }
    titles
}
