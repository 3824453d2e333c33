//! How a publication has a table is what PostgreSQL's own view shows. No test here needs a broker.

use tokio_postgres::Client;
use walpost::outbox::TableName;
use walpost::source::published_tables;
use walpost_bed::{Major, Postgres};

/// A table of every kind, and partitions of two levels in two schemas.
const TABLES: &str = "
    CREATE SCHEMA one; CREATE SCHEMA two;
    CREATE TABLE one.plain (a int, b int, dropped int, g int GENERATED ALWAYS AS (a + 1) STORED);
    ALTER TABLE one.plain DROP COLUMN dropped;
    CREATE TABLE two.plain (a int);
    CREATE TABLE one.top (a int, b int) PARTITION BY LIST (a);
    CREATE TABLE two.middle PARTITION OF one.top FOR VALUES IN (1) PARTITION BY LIST (b);
    CREATE TABLE one.leaf PARTITION OF two.middle FOR VALUES IN (1);
    CREATE TABLE one.parent (a int); CREATE TABLE one.child () INHERITS (one.parent)";

const NAMES: [&str; 7] =
    ["one.plain", "two.plain", "one.top", "two.middle", "one.leaf", "one.parent", "one.child"];

/// What publications are for, from this version on.
const PUBLICATIONS: [(i32, &str); 12] = [
    (14, ""),
    (14, "FOR ALL TABLES"),
    (14, "FOR TABLE one.plain, ONLY one.parent"),
    (14, "FOR TABLE one.top"),
    (14, "FOR TABLE two.middle, two.plain"),
    (14, "FOR TABLE one.leaf"),
    (15, "FOR TABLE one.plain (a), one.top (b)"),
    (15, "FOR TABLE one.top, two.middle, one.leaf WHERE (a > 1)"),
    (15, "FOR TABLES IN SCHEMA one"),
    (15, "FOR TABLES IN SCHEMA two"),
    (15, "FOR TABLES IN SCHEMA two, TABLE one.plain"),
    (18, "FOR TABLE one.plain (a, g)"),
];

/// What the view shows of a table: whether it is published, and its columns, all before PostgreSQL
/// 15. Before 18 it shows generated ones too, which are not sent.
const SHOWN: &str = "
    SELECT coalesce(string_agg(
               (SELECT jsonb_agg(attname ORDER BY attnum) FROM pg_attribute
                 WHERE attrelid = format('%I.%I', schemaname, tablename)::regclass
                   AND attnum > 0 AND NOT attisdropped
                   AND coalesce(to_jsonb(t) -> 'attnames' ? attname::text, true)
                   AND (attgenerated = '' OR current_setting('server_version_num')::int >= 180000)
               )::text, ''), 'no')
      FROM pg_publication_tables t
     WHERE pubname = 'p' AND schemaname || '.' || tablename = $1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn membership_matches_pg_publication_tables_of_postgresql_14() {
    as_shown(Major::V14).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn membership_matches_pg_publication_tables_of_postgresql_15() {
    as_shown(Major::V15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn membership_matches_pg_publication_tables_of_postgresql_18() {
    as_shown(Major::V18).await;
}

async fn as_shown(major: Major) {
    let postgres = Postgres::start(major).await;
    let client = postgres.client().await;
    client.batch_execute(TABLES).await.expect("tables");
    let (mut yes, mut no) = (0, 0);
    for (_, what) in PUBLICATIONS.iter().filter(|(since, _)| *since <= i32::from(major.number())) {
        for options in options(major) {
            let make = format!("CREATE PUBLICATION p {what} WITH ({options})");
            if let Err(error) = client.batch_execute(&make).await {
                // A list or a filter of a partitioned table needs its root.
                let text = error.as_db_error().expect("an answer").message().to_owned();
                assert!(text.contains("cannot use"), "{make}: {text}");
                continue;
            }
            for name in NAMES {
                let row = client.query_one(SHOWN, &[&name]).await.expect("the view");
                let shown: String = row.get(0);
                let found = found(&client, name).await;
                *(if found == "no" { &mut no } else { &mut yes }) += 1;
                assert_eq!(found, shown, "{name} of {make} on {major:?}");
            }
            client.batch_execute("DROP PUBLICATION p").await.expect("dropped");
        }
    }
    assert!(yes > 20 && no > 20, "{yes} {no}");
}

fn options(major: Major) -> Vec<String> {
    let roots = [false, true].map(|root| format!("publish_via_partition_root = {root}"));
    let generated = roots.iter().map(|root| format!("{root}, publish_generated_columns = stored"));
    match major {
        Major::V18 => generated.chain(roots.clone()).collect(),
        _ => roots.to_vec(),
    }
}

/// The same, as walpost has it.
async fn found(client: &Client, name: &str) -> String {
    let table: TableName = name.parse().expect("a name");
    // A table from which others inherit is refused, whatever the publication has of it.
    let alone = "BEGIN; ALTER TABLE one.child NO INHERIT one.parent";
    client.batch_execute(alone).await.expect("no child");
    let found = published_tables(client, "p", &[table], false).await;
    client.batch_execute("ROLLBACK").await.expect("as before");
    match found {
        Ok(tables) => {
            let columns = tables[0].relation.columns.iter();
            let names: Vec<_> = columns.map(|column| format!("\"{}\"", column.name)).collect();
            format!("[{}]", names.join(", "))
        }
        Err(error) => {
            assert!(error.to_string().contains("does not publish table"), "{error}");
            "no".to_owned()
        }
    }
}
