//! A role that can only create objects in `public`, in a database whose `search_path` has that
//! schema first: none of its objects are executed in walpost's sessions, or in those of a superuser
//! who runs SQL that walpost prints, ships or documents, or an example program.

mod pages;

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;
use tokio_postgres::{Client, SimpleQueryMessage};
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended};
use walpost_bed::{Endpoints, Kafka, Major, Postgres, WalpostBuilder, eventually};

const HOSTILE: &str = include_str!("hostile.sql");
const DATABASE: &str = "shop";

/// Fewer: something has kept most of it from being created.
const OBJECTS: i64 = 5000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_object_in_the_search_path_is_executed_on_postgresql_14() {
    nothing_runs(Major::V14).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_object_in_the_search_path_is_executed_on_postgresql_18() {
    nothing_runs(Major::V18).await;
}

async fn nothing_runs(major: Major) {
    let mut trap = Trap::new(major).await;
    trap.is_a_trap().await;
    let init = trap.init_prints_and_applies().await;
    trap.fixture.source = trap.superuser.replace("postgres@", "walpost@");
    trap.both_feeds_and_the_other_commands().await;
    trap.fixes_that_check_prints().await;
    trap.shipped_sql().await;
    trap.pages(&init).await;
    trap.programs().await;
}

/// The database, and a walpost for it.
struct Trap {
    fixture: Fixture,
    /// Its address for a superuser.
    superuser: String,
}

impl Trap {
    async fn new(major: Major) -> Self {
        let postgres = Postgres::builder(major).setting("max_slot_wal_keep_size", "20GB");
        let postgres = postgres.start().await;
        postgres.execute("CREATE ROLE mallory LOGIN").await;
        postgres.execute("CREATE DATABASE shop").await;
        let superuser = postgres.client_of(DATABASE).await;
        let batch = "GRANT CREATE ON SCHEMA public TO mallory; SET ROLE mallory; SET search_path = pg_catalog";
        superuser.batch_execute(batch).await.expect("mallory's session");
        superuser.batch_execute(HOSTILE).await.expect("the trap is laid");
        for whose in ["DATABASE shop", "ROLE postgres", "ROLE mallory"] {
            let sql = format!("ALTER {whose} SET search_path = public, pg_catalog");
            postgres.execute(&sql).await;
        }
        let url = format!("postgres://postgres@127.0.0.1:{}/{DATABASE}", postgres.port());
        let mut fixture = Fixture::bare(postgres, &Kafka::shared().await.bootstrap());
        fixture.source.clone_from(&url);
        let trap = Self { fixture, superuser: url };
        let objects = "SELECT count(*) FROM pg_depend d JOIN pg_namespace n ON n.oid = d.refobjid
                        WHERE n.nspname = 'public' AND d.refclassid = 'pg_namespace'::regclass";
        let objects: i64 = trap.text(objects).await.expect("a count").parse().expect("a number");
        assert!(objects > OBJECTS, "{objects} objects");
        trap
    }

    /// A session of the bed, with a safe `search_path`.
    async fn safe(&self) -> Client {
        let client = self.fixture.postgres.client_of(DATABASE).await;
        client.batch_execute("SET search_path = pg_catalog, pg_temp").await.expect("it is set");
        client
    }

    async fn execute(&self, sql: &str) {
        let done = self.safe().await.batch_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    async fn text(&self, sql: &str) -> Option<String> {
        let rows = self.safe().await.simple_query(sql).await.expect(sql);
        rows.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    }

    /// Runs statements as a superuser who pastes them into psql.
    #[track_caller]
    fn psql(&self, sql: &str) {
        let said = self.psql_says(sql, "1");
        assert!(!said.contains("ERROR:"), "{sql}\n{said}");
    }

    /// The same; returns whether it stops at an error, and its errors.
    #[track_caller]
    fn psql_says(&self, sql: &str, stop: &str) -> String {
        let mut command = Command::new("psql");
        let stop = format!("ON_ERROR_STOP={stop}");
        command.args(["-X", "-q", "-v", &stop, "-f", "-", &self.superuser]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("psql is of the package postgresql-client");
        let mut input = child.stdin.take().expect("it is piped");
        // A psql that has stopped reads no more, and reports why.
        let _ = input.write_all(sql.as_bytes());
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() || said.contains("ERROR:"), "{sql}\n{said}");
        said
    }

    /// No code of mallory's has run, not even in a transaction that was rolled back.
    async fn untouched(&self, by: &str) {
        let client = self.safe().await;
        let loot =
            "SELECT DISTINCT who || ': ' || what || ' in ' || query FROM public.loot LIMIT 20";
        let loot = client.query(loot, &[]).await.expect("it is read");
        let loot: Vec<String> = loot.iter().map(|row| row.get(0)).collect();
        assert!(loot.is_empty(), "{by}:\n{}", loot.join("\n"));
        let lured = client.query_one("SELECT is_called FROM public.lured", &[]).await;
        let lured: bool = lured.expect("it is read").get(0);
        assert!(!lured, "{by}: rolled back:\n{}", self.fixture.postgres.log_tail(20));
    }

    /// A session with an unsafe `search_path` does run mallory's code.
    async fn is_a_trap(&self) {
        self.psql("SELECT now(); SELECT 1 = 2; SELECT 'x'::text; SELECT count(*) FROM pg_roles;");
        for what in ["function now", "operator = (integer, integer)", "type text", "view pg_roles"]
        {
            let found = format!("SELECT who FROM public.loot WHERE what = '{what}'");
            assert_eq!(self.text(&found).await.as_deref(), Some("postgres"), "{what}");
        }
        self.execute("TRUNCATE public.loot; SELECT setval('public.lured', 1, false)").await;
        self.untouched("the beginning").await;
    }

    /// The output of a command that succeeded.
    async fn output(&self, command: WalpostBuilder, what: &str) -> String {
        let walpost = command.start();
        let (code, said) = ended(&walpost).await;
        self.untouched(what).await;
        assert_eq!(code, Some(0), "{what}: {said}");
        walpost.stdout().join("\n")
    }

    /// The SQL that `init` prints.
    async fn init_prints_and_applies(&self) -> String {
        let init = || self.fixture.command("init");
        self.output(init().arg("--apply"), "init --apply").await;
        self.output(init().arg("--apply"), "init --apply, again").await;
        self.execute("SELECT pg_drop_replication_slot('walpost')").await;
        self.execute("DROP PUBLICATION walpost; DROP TABLE public.outbox; DROP ROLE walpost").await;
        let sql = self.output(init(), "init").await;
        self.psql(&sql);
        self.psql(&sql);
        self.untouched("the SQL that init prints").await;
        self.execute("ALTER ROLE walpost IN DATABASE shop SET search_path = public, pg_catalog")
            .await;
        self.insert(1).await;
        self.untouched("the application").await;
        for what in ["init --publish-function", "init --publish-function, again"] {
            self.output(init().args(["--apply", "--publish-function"]), what).await;
        }
        sql
    }

    /// As an application with a safe `search_path`: the table's defaults are walpost's.
    async fn insert(&self, count: u32) {
        let sql = format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
               SELECT 'order', i::text, 'placed', '{{}}' FROM generate_series(1, {count}) i"
        );
        for _ in 0..count {
            self.execute(&sql).await;
        }
    }

    /// Treats the smallest amount of unread WAL as a backlog.
    fn command(&self, name: &str) -> WalpostBuilder {
        self.fixture.command(name).env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB")
    }

    async fn both_feeds_and_the_other_commands(&self) {
        self.insert(10).await;
        self.output(self.command("tail").args(["--from-slot", "--limit", "3"]), "tail --from-slot")
            .await;
        let dead = self.fixture.topic("dead");
        Kafka::shared().await.create_topic(&dead, 1).await;
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("walpost.toml");
        let policy =
            format!("[poison]\nmissing_field = 'dead_letter'\ndead_letter_topic = '{dead}'\n");
        std::fs::write(&file, &policy).expect("written");
        let run = self.command("run").args(["--admin-listen", "127.0.0.1:0"]);
        let run = run.arg("--config").arg(&file).start();
        run.await_line("starting a catch-up read", SHORT_TIMEOUT).await;
        let endpoints = Endpoints::of(&run).await;
        run.await_line("streaming from PostgreSQL", LONG_TIMEOUT).await;
        self.insert(5).await;
        self.execute("ALTER TABLE public.outbox ALTER aggregate_id DROP NOT NULL").await;
        self.execute(
            "INSERT INTO public.outbox (aggregate_type, event_type, payload) VALUES ('order', 'x', '{}')",
        )
        .await;
        self.fixture.confirmed(LONG_TIMEOUT).await;
        // walpost queries the slot's metrics and the publication repeatedly.
        let figures = async || endpoints.metrics().await.contains("\nwalpost_slot_");
        eventually(SHORT_TIMEOUT, "the slot's figures", figures).await;
        self.untouched("run").await;
        let status = self.command("status").args(["--admin-listen", &endpoints.address()]);
        self.output(status, "status").await;
        self.output(self.command("check"), "check, as walpost").await;
        let tail = self.command("tail").args(["--limit", "1"]).start();
        tail.await_line("showing events committed", SHORT_TIMEOUT).await;
        self.insert(1).await;
        assert_eq!(ended(&tail).await.0, Some(0));
        self.untouched("tail").await;
        run.terminate();
        assert!(
            run.wait(SHORT_TIMEOUT).await.is_some_and(|status| status.success()),
            "{:?}",
            run.stderr()
        );
        self.untouched("run").await;
        let fixed_policy = format!("{policy}[record]\nnull_keys = 'allow'\n");
        std::fs::write(&file, fixed_policy).expect("written");
        let replay = self.command("replay-dead-letters").arg("--config").arg(&file);
        self.output(replay, "replay-dead-letters").await;
    }

    /// Runs each fix, as a superuser pastes it, until there is none left.
    async fn fixes_that_check_prints(&self) {
        self.execute(
            "SELECT pg_drop_replication_slot('walpost'); DROP PUBLICATION walpost;
             ALTER TABLE public.outbox DROP id, DROP payload, DROP aggregate_type;
             ALTER TABLE public.outbox ALTER headers TYPE int USING NULL;
             TRUNCATE public.outbox; ALTER ROLE walpost NOREPLICATION",
        )
        .await;
        self.execute("CREATE PUBLICATION walpost WITH (publish = 'update')").await;
        let mut pasted = Vec::new();
        for _ in 0..10 {
            let check = self.command("check").arg("--json").start();
            check.wait(SHORT_TIMEOUT).await.expect("check ends");
            self.untouched("check").await;
            let report: Value = serde_json::from_str(&check.stdout().join("\n")).expect("JSON");
            let findings = report["findings"].as_array().expect("findings");
            let fixes = findings.iter().filter(|one| one["fix_kind"] == "sql");
            let fixes: Vec<_> =
                fixes.map(|one| (one["code"].to_string(), one["fix"].clone())).collect();
            if fixes.is_empty() {
                break;
            }
            for (code, fix) in fixes {
                self.psql(fix.as_str().expect("SQL"));
                self.untouched(&code).await;
                pasted.push(code);
            }
        }
        for code in ["column_missing", "column_type", "slot_missing", "publication_inserts"] {
            assert!(pasted.iter().any(|one| one.contains(code)), "{code} in {pasted:?}");
        }
    }

    /// The files in sql/, and the statements in their comments.
    async fn shipped_sql(&self) {
        for (name, sql) in [
            ("01-schema.sql", include_str!("../../../sql/01-schema.sql")),
            ("02-role.sql", include_str!("../../../sql/02-role.sql")),
            ("03-publication.sql", include_str!("../../../sql/03-publication.sql")),
            ("04-slot.sql", include_str!("../../../sql/04-slot.sql")),
            ("publish.sql", include_str!("../../../sql/publish.sql")),
            ("retention.sql", include_str!("../../../sql/retention.sql")),
            ("consumer_dedupe.sql", include_str!("../../../sql/consumer_dedupe.sql")),
        ] {
            self.psql(sql);
            self.untouched(name).await;
        }
        let partitioned = include_str!("../../../sql/01-schema-partitioned.sql");
        self.psql(&partitioned.replace("public.outbox", "public.parts"));
        self.untouched("01-schema-partitioned.sql").await;
        let dedupe = include_str!("../../../sql/consumer_dedupe.sql");
        let statements = dedupe.lines().filter_map(|line| line.strip_prefix("--   "));
        let statements = statements.collect::<Vec<_>>().join("\n");
        assert_eq!(statements.matches(';').count(), 3, "{statements}");
        // A function of that name that would be the better match of fewer arguments, or of texts.
        self.execute(
            "SET ROLE mallory;
             CREATE FUNCTION public.prune_processed_events(interval) RETURNS bool LANGUAGE sql AS $$ SELECT public.note('prune') $$;
             CREATE FUNCTION public.prune_processed_events(text, int) RETURNS bool LANGUAGE sql AS $$ SELECT public.note('prune') $$",
        )
        .await;
        self.psql(&statements);
        // The second run conflicts with existing rows.
        self.psql(&statements);
        self.untouched("the statements for consumers").await;
    }
}
