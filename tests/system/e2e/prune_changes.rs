//! `walpost prune` while other sessions change rows or the table, and archives that keep rows as they
//! are.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use walpost_bed::fixture::{SHORT_TIMEOUT, ended, insert, stop};
use walpost_bed::{Major, Postgres, Walpost, eventually, under_load};

use super::prune::Kept;

/// Rows that this SQL writes, all of which are delivered. `prepare` comes before the first run.
async fn delivered(prepare: &str, rows: &str) -> (Kept, Walpost) {
    let kept = Kept::on(Major::V15, "at-least-once").await;
    kept.fixture.postgres.execute(prepare).await;
    let walpost = kept.run().await;
    kept.fixture.postgres.execute(rows).await;
    kept.delivered().await;
    (kept, walpost)
}

/// The ids of the lines, and how many there are.
fn archived(file: &Path) -> (HashSet<String>, usize) {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let ids = text.lines().map(|line| {
        let row: serde_json::Value = serde_json::from_str(line).expect("a line is a row");
        row["id"].as_str().expect("an id").to_owned()
    });
    (ids.collect(), text.lines().count())
}

async fn ids(postgres: &Postgres, sql: &str) -> HashSet<String> {
    let rows = postgres.query_rows(sql).await;
    rows.into_iter().map(|row| row[0].clone().expect("an id")).collect()
}

/// Its rows are elsewhere in the table then, and their transaction ids are the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_table_that_is_rewritten_while_a_command_runs_are_archived_or_kept() {
    let (kept, walpost) = delivered("", &insert(1_500, 5)).await;
    let postgres = &kept.fixture.postgres;
    // Space at the front, into which the others move.
    postgres.execute("DELETE FROM public.outbox WHERE n <= 200").await;
    let before = ids(postgres, "SELECT id::text FROM public.outbox").await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let (file, began, go) = (path("archive"), path("began"), path("go"));
    let command = format!(
        "cat >> '{}'; touch '{}'; while [ ! -e '{}' ]; do sleep 0.05; done",
        file.display(),
        began.display(),
        go.display()
    );
    let prune = kept.pruning();
    let prune = prune.args(["--older-than", "0s", "--batch", "300"]);
    let prune = prune.args(["--archive-command", &command]).start();
    eventually(SHORT_TIMEOUT, "the command has begun", async || began.exists()).await;
    postgres.execute("VACUUM FULL public.outbox").await;
    std::fs::write(&go, "").expect("written");
    let (code, said) = ended(&prune).await;
    assert_eq!(code, Some(0), "{said}");
    let left = ids(postgres, "SELECT id::text FROM public.outbox").await;
    let (found, lines) = archived(&file);
    let lost = before.iter().filter(|id| !left.contains(*id) && !found.contains(*id)).count();
    assert_eq!(lost, 0, "rows were deleted that the command has not got: {said}");
    assert_eq!((left.len(), found.len(), lines), (0, 1_300, 1_600), "{said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_gets_the_name_meanwhile_is_not_pruned() {
    let (kept, walpost) = delivered(
        "CREATE TABLE public.other (LIKE public.outbox INCLUDING ALL)",
        &format!("{}; {}", insert(300, 5).replace("public.outbox", "public.other"), insert(300, 5)),
    )
    .await;
    // A publication has the table, whatever its name is.
    walpost.kill9().await;
    let postgres = &kept.fixture.postgres;
    let prune = kept.pruning();
    let prune = prune.args(["--older-than", "0s", "--batch", "50", "--sleep", "1s"]).start();
    eventually(SHORT_TIMEOUT, "it has deleted some", async || kept.left().await < 300).await;
    let swap = "BEGIN; ALTER TABLE public.outbox RENAME TO old;
                ALTER TABLE public.other RENAME TO outbox; COMMIT";
    postgres.execute(swap).await;
    let (code, said) = ended(&prune).await;
    assert_eq!(kept.left().await, 300, "they were never published: {said}");
    assert!(code == Some(1) && said.contains("replaced by another table"), "{code:?} {said}");
}

/// A session that has one of the rows, and wants another, would end in a deadlock with a prune that
/// waits for rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_prune_keeps_rows_locked_for_some_seconds_and_no_writer_is_cancelled() {
    let (kept, walpost) = delivered("", &insert(30, 5)).await;
    let postgres = &kept.fixture.postgres;
    let writer = postgres.client().await;
    let update = "UPDATE public.outbox SET event_type = 'seen' WHERE n =";
    writer.batch_execute(&format!("BEGIN; {update} 30")).await.expect("updated");
    let prune = kept.pruning();
    let prune = prune.args(["--older-than", "0s"]);
    let prune = prune.env("FAILPOINTS", "rows_deleted=sleep(60000)").start();
    let idle = "SELECT count(*) FROM pg_stat_activity
                 WHERE application_name = 'walpost prune' AND state = 'idle in transaction'
                   AND query LIKE 'DELETE %'";
    eventually(SHORT_TIMEOUT, "it has deleted rows, and not committed", async || {
        postgres.query_text(idle).await.as_deref() == Some("1")
    })
    .await;
    let began = Instant::now();
    writer.batch_execute(&format!("{update} 1; COMMIT")).await.expect("no writer is cancelled");
    assert!(began.elapsed() < under_load(Duration::from_secs(15)), "{:?}", began.elapsed());
    prune.kill9().await;
    assert_eq!(kept.left().await, 30);
    stop(walpost).await;
}

/// More bytes than an answer of a small query may have, and one row that alone has more than a message
/// of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_gets_large_rows_in_parts() {
    let large = |count: u32, bytes: u32| {
        let rows = insert(count, 5).replace("payload)", "payload, filler)");
        rows.replace("('i', i)", &format!("('i', i), repeat('x', {bytes})"))
    };
    let rows = format!("{}; {}", large(600, 150_000), large(1, 20 << 20));
    let (kept, walpost) = delivered("ALTER TABLE public.outbox ADD filler text", &rows).await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("archive");
    let command = format!("cut -c 1-60 >> '{}'; echo 1 >> '{0}.runs'", file.display());
    let (code, said) = kept.prune(&["--older-than", "0s", "--archive-command", &command]).await;
    assert!(code == Some(0) && said.contains("601 rows archived"), "{code:?} {said}");
    let lines = std::fs::read_to_string(&file).expect("the archive");
    let distinct: HashSet<_> = lines.lines().collect();
    assert_eq!((lines.lines().count(), distinct.len(), kept.left().await), (601, 601, 0));
    let runs = std::fs::read_to_string(directory.path().join("archive.runs")).expect("the runs");
    assert!((3..=12).contains(&runs.lines().count()), "{}", runs.lines().count());
    stop(walpost).await;
}

/// Whatever the settings of the database are, and whatever the values are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_archived_line_is_a_row_and_has_its_values() {
    let columns =
        "ALTER TABLE public.outbox ADD note json, ADD f float8, ADD i interval, ADD b bytea;
         ALTER DATABASE postgres SET extra_float_digits = 0;
         ALTER DATABASE postgres SET bytea_output = 'escape';
         ALTER DATABASE postgres SET intervalstyle = 'sql_standard';
         ALTER DATABASE postgres SET datestyle = 'SQL, DMY'";
    let row = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, note, f, i, b)
               VALUES ('order', '1', 'placed', E'{\\n \"a\": 1,\\r\\n \"b\": \"x\\\\ny\"\\n}', 0.1::float8 + 0.2,
                       '-1 day +02:03:04', '\\x00ff5c0a27')";
    let (kept, walpost) = delivered(columns, row).await;
    let postgres = &kept.fixture.postgres;
    postgres.execute("CREATE TABLE public.same AS SELECT * FROM public.outbox").await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("archive");
    let command = format!("cat > '{}'", file.display());
    let (code, said) = kept.prune(&["--older-than", "0s", "--archive-command", &command]).await;
    assert!(code == Some(0) && said.contains("1 rows archived"), "{code:?} {said}");
    let text = std::fs::read_to_string(&file).expect("the archive");
    assert_eq!(text.lines().count(), 1, "{text}");
    let query = format!(
        "SELECT (s.f, s.i, s.b, s.created_at, s.note::jsonb) = (r.f, r.i, r.b, r.created_at, r.note::jsonb)
           FROM public.same s, json_populate_record(NULL::public.same, $x${}$x$) r",
        text.trim_end()
    );
    assert_eq!(postgres.query_text(&query).await.as_deref(), Some("t"), "{text}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_locked_or_changed_does_not_keep_the_others_in_the_table() {
    let (kept, walpost) = delivered("", &insert(10, 5)).await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let (file, began, go) = (path("archive"), path("began"), path("go"));
    let other = kept.fixture.postgres.client().await;
    let lock = "BEGIN; SELECT FROM public.outbox WHERE n = 3 FOR KEY SHARE";
    other.batch_execute(lock).await.expect("locked");
    let command = format!(
        "cat >> '{}'; touch '{}'; while [ ! -e '{}' ]; do sleep 0.05; done",
        file.display(),
        began.display(),
        go.display()
    );
    let prune = kept.pruning();
    let prune = prune.args(["--older-than", "0s", "--archive-command", &command]).start();
    eventually(SHORT_TIMEOUT, "the command has begun", async || began.exists()).await;
    let update = "UPDATE public.outbox SET event_type = 'seen' WHERE n = 5; COMMIT";
    other.batch_execute(update).await.expect("updated");
    let lock = "BEGIN; SELECT FROM public.outbox WHERE n = 3 FOR UPDATE";
    other.batch_execute(lock).await.expect("locked");
    std::fs::write(&go, "").expect("written");
    let (code, said) = ended(&prune).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("1 rows were left to the next run"), "{said}");
    assert!(said.contains("1 rows were archived and not deleted"), "{said}");
    assert_eq!((kept.left().await, archived(&file).1), (2, 9), "{said}");
    other.batch_execute("ROLLBACK").await.expect("unlocked");
    kept.delivered().await;
    let (code, said) = kept.prune(&["--older-than", "0s", "--archive-command", &command]).await;
    assert!(code == Some(0) && said.contains("2 rows archived"), "{code:?} {said}");
    let (found, lines) = archived(&file);
    assert_eq!(
        (kept.left().await, found.len(), lines),
        (0, 10, 11),
        "the changed one is there twice"
    );
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_that_would_change_or_lose_values_is_refused() {
    let columns =
        "ALTER TABLE public.outbox ADD tenant text GENERATED ALWAYS AS (payload ->> 'i') STORED,
                                              ADD code varchar(5)";
    let (kept, walpost) = delivered(columns, &insert(4, 5)).await;
    let postgres = &kept.fixture.postgres;
    let archive = ["--older-than", "0s", "--archive-to", "public.archive"];
    let dry = [&archive[..], &["--dry-run"]].concat();
    postgres.execute("CREATE UNLOGGED TABLE public.archive (LIKE public.outbox)").await;
    for (why, remedy) in [
        (
            "unlogged or temporary, and a crash empties it",
            "ALTER TABLE public.archive SET LOGGED; ALTER TABLE public.archive ALTER aggregate_type TYPE name",
        ),
        (
            "aggregate_type is text, and name in the archive",
            "ALTER TABLE public.archive ALTER aggregate_type TYPE text, ALTER created_at TYPE timestamptz(0)",
        ),
        (
            "created_at is timestamp with time zone, and timestamp(0) with time zone in the archive",
            "ALTER TABLE public.archive ALTER created_at TYPE timestamptz, ALTER code TYPE varchar;
             ALTER TABLE public.archive DROP tenant;
             ALTER TABLE public.archive ADD tenant text GENERATED ALWAYS AS (NULL) STORED",
        ),
        ("generated columns", "ALTER TABLE public.archive ALTER tenant DROP EXPRESSION"),
    ] {
        for arguments in [&dry[..], &archive[..]] {
            let (code, said) = kept.prune(arguments).await;
            assert!(code == Some(78) && said.contains(why), "{code:?} {said}");
        }
        postgres.execute(remedy).await;
    }
    let tenants = "SELECT string_agg(tenant, ',' ORDER BY n) FROM public.";
    let before = postgres.query_text(&format!("{tenants}outbox")).await;
    let (code, said) = kept.prune(&archive).await;
    assert!(code == Some(0) && said.contains("4 rows archived"), "{code:?} {said}");
    assert_eq!(postgres.query_text(&format!("{tenants}archive")).await, before);
    assert_eq!(kept.left().await, 0);
    let far = "CREATE TABLE public.history (LIKE public.outbox) PARTITION BY LIST (event_type);
               CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
               CREATE FOREIGN TABLE public.far PARTITION OF public.history DEFAULT
                   SERVER files OPTIONS (filename '/dev/null')";
    postgres.execute(far).await;
    let (code, said) = kept.prune(&["--older-than", "0s", "--archive-to", "public.history"]).await;
    assert!(code == Some(78) && said.contains("is no table of this server"), "{code:?} {said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_does_not_reach_the_table_is_told_so() {
    let (mut kept, walpost) = delivered("", &insert(3, 3)).await;
    let role =
        "CREATE ROLE pruner LOGIN; GRANT SELECT, DELETE, UPDATE (id) ON public.outbox TO pruner;
                REVOKE USAGE ON SCHEMA public FROM PUBLIC";
    kept.fixture.postgres.execute(role).await;
    kept.fixture.source = kept.fixture.postgres.url_for("pruner");
    for arguments in [&["--older-than", "0s"][..], &["--older-than", "0s", "--dry-run"]] {
        let (code, said) = kept.prune(arguments).await;
        assert!(code == Some(78) && said.contains("GRANT USAGE ON SCHEMA"), "{code:?} {said}");
    }
    stop(walpost).await;
}

/// A session that reads no answer keeps nobody from changing the rows that it was to read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prune_that_is_frozen_while_it_reads_rows_locks_none() {
    let large = insert(600, 5).replace("payload)", "payload, filler)");
    let large = large.replace("('i', i)", "('i', i), repeat('x', 100000)");
    let (kept, walpost) = delivered("ALTER TABLE public.outbox ADD filler text", &large).await;
    let postgres = &kept.fixture.postgres;
    let prune = kept.pruning();
    let prune = prune.args(["--older-than", "0s", "--archive-command", "cat > /dev/null"]);
    let prune = prune.env("FAILPOINTS", "prune_reads=sleep(60000)").start();
    let reads = "SELECT count(*) FROM pg_stat_activity
                  WHERE application_name = 'walpost prune' AND state = 'idle'
                    AND query LIKE '%COMMIT%'";
    eventually(SHORT_TIMEOUT, "it is about to read rows", async || {
        postgres.query_text(reads).await.as_deref() == Some("1")
    })
    .await;
    postgres.execute("UPDATE public.outbox SET event_type = 'seen'").await;
    prune.kill9().await;
    assert_eq!(kept.left().await, 600);
    // A change of the table waits for the statement, so the server has to end that.
    kept.delivered().await;
    let prune = kept.pruning();
    let prune = prune.args(["--older-than", "0s", "--archive-command", "cat > /dev/null"]).start();
    let sends = "SELECT count(*) FROM pg_stat_activity
                  WHERE application_name = 'walpost prune' AND wait_event = 'ClientWrite'";
    let is_sending = async || postgres.query_text(sends).await.as_deref() == Some("1");
    loop {
        prune.pause();
        tokio::time::sleep(Duration::from_millis(30)).await;
        if is_sending().await {
            break;
        }
        prune.resume();
        let still = prune.wait(Duration::from_millis(5)).await;
        assert!(still.is_none(), "it has ended before it was frozen while it read");
    }
    let change = postgres.execute("ALTER TABLE public.outbox ADD tenant text");
    tokio::time::timeout(Duration::from_secs(30), change).await.expect("it is changed");
    prune.kill9().await;
    stop(walpost).await;
}

/// A line has the values that the columns had, and another column of that name has others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_whose_columns_are_replaced_while_a_command_runs_are_kept() {
    let (kept, walpost) =
        delivered("ALTER TABLE public.outbox ADD y text DEFAULT 'a'", &insert(30, 5)).await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let (began, go) = (path("began"), path("go"));
    let command = format!(
        "cat > /dev/null; touch '{}'; while [ ! -e '{}' ]; do sleep 0.05; done",
        began.display(),
        go.display()
    );
    let prune = kept.pruning().args(["--older-than", "0s", "--archive-command", &command]).start();
    eventually(SHORT_TIMEOUT, "the command has begun", async || began.exists()).await;
    let replace = "ALTER TABLE public.outbox DROP COLUMN y;
                   ALTER TABLE public.outbox ADD COLUMN y text DEFAULT 'corrected'";
    kept.fixture.postgres.execute(replace).await;
    std::fs::write(&go, "").expect("written");
    let (code, said) = ended(&prune).await;
    assert!(code == Some(1) && said.contains("given other columns"), "{code:?} {said}");
    assert_eq!(kept.left().await, 30);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_table_is_tried_and_named() {
    let (kept, walpost) = delivered("", &insert(30, 5)).await;
    let other = kept.fixture.postgres.client().await;
    let lock = "BEGIN; LOCK TABLE public.outbox IN ACCESS EXCLUSIVE MODE";
    other.batch_execute(lock).await.expect("locked");
    let (code, said) = kept.prune(&["--older-than", "0s", "--dry-run"]).await;
    assert!(code == Some(1) && said.contains("locked (pg_blocking_pids)"), "{code:?} {said}");
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(1) && said.contains("other sessions keep"), "{code:?} {said}");
    other.batch_execute("ROLLBACK").await.expect("unlocked");
    // Writers of rows are no obstacle, and who makes an index keeps all of them away.
    let lock = "BEGIN; LOCK TABLE public.outbox IN SHARE MODE";
    other.batch_execute(lock).await.expect("locked");
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(1) && said.contains("other sessions keep"), "{code:?} {said}");
    other.batch_execute("ROLLBACK").await.expect("unlocked");
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && kept.left().await == 0, "{code:?} {said}");
    stop(walpost).await;
}

/// A column of that name has the name by which the statements call the row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_with_a_column_o_is_archived_whole() {
    let prepare = "CREATE TYPE public.pair AS (x integer, y text);
                   ALTER TABLE public.outbox ADD o public.pair DEFAULT (1, 'a')";
    let (kept, walpost) = delivered(prepare, &insert(30, 5)).await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("archive");
    let command = format!("cat >> '{}'", file.display());
    let (code, said) = kept.prune(&["--older-than", "0s", "--archive-command", &command]).await;
    assert_eq!(code, Some(0), "{said}");
    let (found, lines) = archived(&file);
    assert_eq!((found.len(), lines, kept.left().await), (30, 30, 0));
    stop(walpost).await;
}

/// The columns are read once, and those that a row is archived with are all that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_that_are_added_meanwhile_end_the_run() {
    let archive = "CREATE TABLE public.archive (LIKE public.outbox)";
    let (kept, walpost) = delivered(archive, &insert(300, 5)).await;
    let postgres = &kept.fixture.postgres;
    let start = || {
        let prune = kept.pruning();
        let prune = prune.args(["--older-than", "0s", "--batch", "50", "--sleep", "1s"]);
        prune.args(["--archive-to", "public.archive"]).start()
    };
    let prune = start();
    eventually(SHORT_TIMEOUT, "it has archived some", async || kept.left().await < 300).await;
    let add = "ALTER TABLE public.outbox ADD tenant text NOT NULL DEFAULT 'a';
               ALTER TABLE public.archive ADD tenant text";
    postgres.execute(add).await;
    let (code, said) = ended(&prune).await;
    assert!(code == Some(1) && said.contains("given other columns"), "{code:?} {said}");
    let without = "SELECT count(*) FROM public.archive WHERE tenant IS NULL";
    let before = postgres.query_text(without).await;
    let prune = start();
    eventually(SHORT_TIMEOUT, "it has archived more", async || {
        postgres.query_text("SELECT count(*) FROM public.archive WHERE tenant = 'a'").await
            != Some("0".to_owned())
    })
    .await;
    // The archive is looked at again each time too.
    postgres.execute("ALTER TABLE public.archive SET UNLOGGED").await;
    let (code, said) = ended(&prune).await;
    assert!(code == Some(78) && said.contains("a crash empties it"), "{code:?} {said}");
    assert_eq!(postgres.query_text(without).await, before);
    let all = "SELECT count(*) FROM (SELECT id FROM public.outbox UNION ALL
                                     SELECT id FROM public.archive) AS rows";
    assert_eq!(postgres.query_text(all).await.as_deref(), Some("300"));
    stop(walpost).await;
}

/// Few rows fit into the pipe, whether or not anybody reads them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_does_not_read_its_rows_has_not_archived_them() {
    let (kept, walpost) = delivered("", &insert(30, 5)).await;
    let arguments = ["--older-than", "0s", "--archive-command", "true"];
    let (code, said) = kept.prune(&arguments).await;
    assert!(code == Some(1) && said.contains("before it had read every row"), "{code:?} {said}");
    assert_eq!(kept.left().await, 30);
    let (code, said) = kept.prune(&["--older-than", "0s", "--archive-command", " "]).await;
    assert!(code == Some(2) && said.contains("it is empty"), "{code:?} {said}");
    stop(walpost).await;
}

/// Rows would be inserted into the outbox again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_above_the_outbox_cannot_be_its_archive() {
    let prepare = "CREATE TABLE public.history (LIKE public.outbox INCLUDING DEFAULTS) PARTITION BY LIST (event_type);
                   ALTER TABLE public.history ATTACH PARTITION public.outbox DEFAULT";
    let (kept, walpost) = delivered(prepare, &insert(30, 5)).await;
    let (code, said) = kept.prune(&["--older-than", "0s", "--archive-to", "public.history"]).await;
    assert!(code == Some(78) && said.contains("partitions of one table"), "{code:?} {said}");
    assert_eq!(kept.left().await, 30);
    stop(walpost).await;
}
