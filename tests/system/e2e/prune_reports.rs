//! What `walpost prune` reports and refuses: triggers that keep rows, archives, slots, rights.

use std::time::{Duration, Instant};

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert, stop};
use walpost_bed::{Major, Walpost, eventually, repository};

use super::prune::Kept;

/// Rows that are delivered, and the walpost that has published them.
async fn delivered(major: Major, rows: u32) -> (Kept, Walpost) {
    let kept = Kept::on(major, "at-least-once").await;
    let walpost = kept.run().await;
    kept.fixture.postgres.execute(&insert(rows, 5)).await;
    kept.delivered().await;
    (kept, walpost)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_ends_a_pause_at_once() {
    let (kept, walpost) = delivered(Major::V15, 30).await;
    let slowly = ["--older-than", "0s", "--batch", "10", "--sleep", "1h"];
    let prune = kept.pruning();
    let prune = prune.args(slowly).start();
    eventually(SHORT_TIMEOUT, "it pauses", async || kept.left().await == 20).await;
    // Another one would begin at the same rows.
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    let other = "public.outbox: another `walpost prune` works on it (process ";
    assert!(code == Some(1) && said.contains(other) && !said.contains("process 0 "), "{said}");
    assert_eq!(kept.left().await, 20);
    let (code, said) = kept.prune(&["--dry-run", "--older-than", "0s"]).await;
    assert_eq!(code, Some(0), "{said}");
    let asked = Instant::now();
    prune.terminate();
    let (code, said) = ended(&prune).await;
    let took = asked.elapsed();
    let said = format!("{}\n{said}", prune.stdout().join("\n"));
    assert!(took < Duration::from_secs(5), "it took {took:?}: {said}");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("10 rows deleted") && said.contains("stopped by a signal"), "{said}");
    // Nor is a pause longer than the run.
    let (code, said) = kept.prune(&[&slowly[..], &["--max-duration", "1s"]].concat()).await;
    assert!(code == Some(0) && said.contains("stopped after --max-duration"), "{said}");
    assert_eq!(kept.left().await, 10, "{said}");
    let (code, said) = kept.prune(&["--sleep", "2d"]).await;
    assert!(code == Some(2) && said.contains("it is not from 0s to 1d"), "{code:?} {said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_were_deleted_before_an_error_are_reported() {
    let (kept, walpost) = delivered(Major::V15, 30).await;
    let others = "CREATE TABLE public.note (event uuid REFERENCES public.outbox (id));
                  INSERT INTO public.note SELECT id FROM public.outbox WHERE n = 25";
    kept.fixture.postgres.execute(others).await;
    let (code, said) = kept.prune(&["--older-than", "0s", "--batch", "10"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("public.outbox: 20 rows deleted"), "{said}");
    assert!(said.contains("Rows that others refer to cannot be deleted"), "{said}");
    assert_eq!(kept.left().await, 10, "{said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn triggers_and_rules_that_keep_rows_end_it() {
    let (kept, walpost) = delivered(Major::V15, 30).await;
    let postgres = &kept.fixture.postgres;
    let trigger = "CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS
                   'BEGIN RETURN CASE WHEN OLD.n % 2 = 0 THEN NULL ELSE OLD END; END';
                   CREATE TRIGGER keep BEFORE DELETE ON public.outbox
                          FOR EACH ROW EXECUTE FUNCTION public.keep()";
    postgres.execute(trigger).await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("only 15 of 30 rows were deleted"), "{said}");
    assert!(said.contains("trigger keep of the table"), "{said}");
    assert!(said.contains("public.outbox: 15 rows deleted"), "{said}");
    // Its batches end too, though each has as many rows as it may.
    let (code, said) = kept.prune(&["--older-than", "0s", "--batch", "5"]).await;
    assert!(code == Some(1) && said.contains("only 0 of 5 rows were deleted"), "{said}");
    postgres.execute("DROP TRIGGER keep ON public.outbox").await;
    // A trigger that only looks does no harm.
    let looks = "CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN RETURN OLD; END';
                 CREATE TRIGGER look BEFORE DELETE ON public.outbox
                        FOR EACH ROW EXECUTE FUNCTION public.look();
                 CREATE RULE keep_all AS ON DELETE TO public.outbox DO INSTEAD NOTHING";
    postgres.execute(looks).await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(1) && said.contains("only 0 of 15 rows were deleted"), "{said}");
    assert!(said.contains("rule keep_all"), "{said}");
    postgres.execute("DROP RULE keep_all ON public.outbox").await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && said.contains("15 rows deleted"), "{said}");
    stop(walpost).await;
}

/// A row that another session changes at the same time is not deleted, whatever the trigger does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_is_not_blamed_for_what_other_sessions_do() {
    let (kept, walpost) = delivered(Major::V15, 10).await;
    let postgres = &kept.fixture.postgres;
    let looks = "CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN RETURN OLD; END';
                 CREATE TRIGGER look BEFORE DELETE ON public.outbox
                        FOR EACH ROW EXECUTE FUNCTION public.look();
                 CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN RETURN NULL; END';
                 CREATE TRIGGER off BEFORE DELETE ON public.outbox
                        FOR EACH ROW EXECUTE FUNCTION public.keep();
                 ALTER TABLE public.outbox DISABLE TRIGGER off;
                 CREATE TRIGGER statement BEFORE DELETE ON public.outbox
                        FOR EACH STATEMENT EXECUTE FUNCTION public.keep()";
    postgres.execute(looks).await;
    let other = postgres.client().await;
    let update = "BEGIN; UPDATE public.outbox SET event_type = 'seen' WHERE n = 3";
    other.batch_execute(update).await.expect("updated");
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && !said.contains("trigger"), "{code:?} {said}");
    assert!(said.contains("9 rows deleted"), "{said}");
    assert!(said.contains("1 rows were left to the next run"), "{said}");
    other.batch_execute("COMMIT").await.expect("committed");
    kept.delivered().await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && said.contains("1 rows deleted"), "{code:?} {said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_do_not_exist_are_reported() {
    let (kept, walpost) = delivered(Major::V15, 3).await;
    let other = "SELECT pg_create_logical_replication_slot('other', 'test_decoding')";
    kept.fixture.postgres.execute(other).await;
    let (code, said) = kept.prune(&["--older-than", "0s", "--ignore-slot", "othre"]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("no logical slot of that name; it has other, walpost"), "{said}");
    let (code, said) = kept.prune(&["--older-than", "0s", "--slot", "nosuch"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("replication slot \"nosuch\" does not exist"), "{said}");
    let prune = kept.fixture.command("prune").args(["--state-topic", "nosuch"]).start();
    let (code, said) = ended(&prune).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("state topic nosuch does not exist: create it"), "{said}");
    assert_eq!(kept.left().await, 3);
    stop(walpost).await;
}

/// What the consumer of a lost slot has missed may have to come from the rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_slot_keeps_rows_until_it_is_dropped_or_ignored() {
    let kept = Kept::on(Major::V15, "at-least-once").await;
    let postgres = &kept.fixture.postgres;
    let other = "SELECT pg_create_logical_replication_slot('other', 'test_decoding')";
    postgres.execute(other).await;
    let walpost = kept.run().await;
    postgres.execute(&insert(10, 5)).await;
    postgres.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '48MB'").await;
    postgres.execute("SELECT pg_reload_conf()").await;
    eventually(LONG_TIMEOUT, "the other slot is lost", async || {
        postgres.execute("SELECT pg_logical_emit_message(true, '', '')").await;
        postgres.execute("SELECT pg_switch_wal()").await;
        kept.fixture.confirmed(LONG_TIMEOUT).await;
        postgres.execute("CHECKPOINT").await;
        let status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'other'";
        let status = postgres.query_text(status).await;
        if status.as_deref() == Some("lost") { Ok(()) } else { Err(status) }
    })
    .await;
    kept.delivered().await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("\"other\" is lost") && said.contains("--ignore-slot"), "{said}");
    assert_eq!(kept.left().await, 10);
    let (code, said) = kept.prune(&["--older-than", "0s", "--ignore-slot", "other"]).await;
    assert!(code == Some(0) && said.contains("10 rows deleted"), "{said}");
    stop(walpost).await;
}

/// The exact rights that the page on retention names for the role.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_with_the_documented_rights_prunes_and_archives() {
    let (mut kept, walpost) = delivered(Major::V18, 30).await;
    let page = repository().join("docs/retention.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let blocks: Vec<_> = page.split("```sql\n").skip(1).collect();
    let block = blocks.iter().find(|block| block.starts_with("CREATE ROLE outbox_prune"));
    let block = block.and_then(|block| block.split("```").next()).expect("the role's rights");
    kept.fixture.postgres.execute(block).await;
    kept.fixture.source = kept.fixture.postgres.url_for("outbox_prune");
    let archive = ["--older-than", "0s", "--archive-to", "public.outbox_archive"];
    let dry = [&archive[..], &["--dry-run"]].concat();
    for (repair, what) in [
        ("REVOKE UPDATE (id) ON public.outbox FROM outbox_prune", "UPDATE of one to lock rows"),
        (
            "GRANT UPDATE (id) ON public.outbox TO outbox_prune",
            "the archive does not exist: create it",
        ),
        (
            "CREATE TABLE public.outbox_archive AS SELECT id, n FROM public.outbox LIMIT 0",
            "lacks columns of public.outbox",
        ),
        (
            "DROP TABLE public.outbox_archive;
             CREATE TABLE public.outbox_archive (LIKE public.outbox)",
            "GRANT INSERT ON public.outbox_archive",
        ),
    ] {
        kept.fixture.postgres.execute(repair).await;
        for arguments in [&dry[..], &archive[..]] {
            let (code, said) = kept.prune(arguments).await;
            assert!(code == Some(78) && said.contains(what), "{code:?} {said}");
        }
    }
    let grant = "GRANT INSERT ON public.outbox_archive TO outbox_prune";
    assert!(page.contains(grant), "the page has it");
    kept.fixture.postgres.execute(grant).await;
    let (code, said) = kept.prune(&dry).await;
    assert_eq!(code, Some(0), "{said}");
    let oldest = "SELECT min(created_at)::text FROM public.outbox";
    let oldest = kept.fixture.postgres.query_text(oldest).await.expect("a time");
    assert!(said.contains(&format!("oldest row:                          {oldest}")), "{said}");
    let (code, said) = kept.prune(&[&archive[..], &["--batch", "20"]].concat()).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("30 rows archived") && said.contains("no row with a time is left"));
    let count = "SELECT count(*) FROM public.outbox_archive";
    assert_eq!(kept.fixture.postgres.query_text(count).await.as_deref(), Some("30"));
    kept.fixture.postgres.execute(&insert(4, 1)).await;
    kept.delivered().await;
    kept.fixture.postgres.execute(&insert(1, 1)).await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && said.contains("4 rows deleted"), "{said}");
    assert!(said.contains("the oldest row that is left is from 20"), "{said}");
    stop(walpost).await;
}

/// Reading the publication's row filter opens no other table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_table_of_the_publication_does_not_delay_it() {
    let kept = Kept::on(Major::V18, "at-least-once").await;
    let postgres = &kept.fixture.postgres;
    let tables = "CREATE TABLE public.other (id int);
                  ALTER PUBLICATION walpost SET TABLE public.outbox WHERE (n % 2 = 0)";
    postgres.execute(tables).await;
    postgres.execute("ALTER PUBLICATION walpost ADD TABLE public.other").await;
    // The filter needs no replica identity, since only inserts are published.
    let walpost = kept.run().await;
    postgres.execute(&insert(10, 5)).await;
    kept.delivered().await;
    let other = postgres.client().await;
    let lock = "BEGIN; LOCK TABLE public.other IN ACCESS EXCLUSIVE MODE";
    other.batch_execute(lock).await.expect("locked");
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && said.contains("public.outbox: 5 rows deleted"), "{said}");
    assert_eq!(kept.left().await, 5);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archive_command_gets_rows_before_they_are_deleted() {
    let (kept, walpost) = delivered(Major::V15, 30).await;
    let postgres = &kept.fixture.postgres;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("archive");
    let place = file.display();
    let lines = || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let all = "SELECT row_to_json(o)::text FROM public.outbox o ORDER BY n";
    let all = postgres.query_rows(&format!("SET timezone = 'UTC'; {all}")).await;
    let all: Vec<_> = all.into_iter().map(|row| row[0].clone().expect("JSON")).collect();
    let prune = async |command: &str| {
        let arguments = ["--older-than", "0s", "--batch", "20", "--archive-command", command];
        kept.prune(&arguments).await
    };
    for (command, why) in [
        ("exit 3", "ended with exit status: 3"),
        ("no-such-program", "ended with exit status: 127"),
        ("kill -9 $$", "ended with signal: 9"),
    ] {
        let (code, said) = prune(command).await;
        assert!(code == Some(1) && said.contains(why), "{command}: {said}");
        assert!(said.contains("the rows that it was given were not deleted"), "{said}");
        assert!(said.contains("public.outbox: 0 rows archived"), "{said}");
    }
    assert_eq!(kept.left().await, 30);
    // Killed between archiving and deleting: `prune` is the shell's parent.
    let (code, _) = prune(&format!("cat >> '{place}'; kill -9 $PPID")).await;
    assert_eq!(code, None, "it was killed");
    assert_eq!((kept.left().await, lines()), (30, all[..20].to_vec()));
    let table = directory.path().join("table");
    let command = format!("echo $WALPOST_TABLE > '{}' && cat >> '{place}'", table.display());
    let (code, said) = prune(&command).await;
    assert!(code == Some(0) && said.contains("30 rows archived"), "{said}");
    assert_eq!(kept.left().await, 0);
    assert_eq!(lines(), [&all[..20], &all[..]].concat(), "the first rows twice, none is lost");
    let name = std::fs::read_to_string(&table).expect("the table's name");
    assert_eq!(name, "public.outbox\n");
    // What was archived can be inserted again.
    let back = format!(
        "CREATE TABLE public.back (LIKE public.outbox);
         INSERT INTO public.back SELECT r.* FROM (SELECT DISTINCT line FROM
             pg_catalog.unnest(ARRAY[{}]) line) l,
             LATERAL json_populate_record(NULL::public.outbox, line::json) r",
        lines().iter().map(|line| format!("$x${line}$x$")).collect::<Vec<_>>().join(", ")
    );
    postgres.execute(&back).await;
    let rows = "SELECT row_to_json(o)::text FROM public.back o ORDER BY n";
    let rows = postgres.query_rows(&format!("SET timezone = 'UTC'; {rows}")).await;
    let rows: Vec<_> = rows.into_iter().map(|row| row[0].clone().expect("JSON")).collect();
    assert_eq!(rows, all);
    stop(walpost).await;
}
