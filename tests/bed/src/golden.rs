//! Golden scenarios: outbox rows, and the records that the real Debezium makes of them.
//!
//! A file consists of JSON lines (format: `tests/corpus/debezium/README.md`). [`Recorder`] runs a
//! scenario through Debezium, one transaction after the other, and writes its file; a file read
//! back as a [`Scenario`] can be run again.

use std::fmt::Write as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tokio_postgres::SimpleQueryMessage;

use crate::debezium::{Connector, Debezium, Task};
use crate::{Consumed, Follower, Kafka, Major, Postgres, Topics, within};

/// How long the records of a transaction, or the task's death of it, may take.
const ARRIVAL: Duration = Duration::from_secs(20);
/// After how long without either the transaction is repeated, once.
const PATIENCE: Duration = Duration::from_secs(4);

/// Rows of one outbox, and with what settings they are relayed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The path of its file below the corpus, without the ending.
    pub name: String,
    /// Which of walpost's profiles is to give the same records.
    pub profile: String,
    /// Settings of the event router.
    pub router: Map<String, Value>,
    /// Settings of the connector, the converters among them.
    pub connector: Map<String, Value>,
    /// Makes the table `outbox`.
    pub ddl: String,
    pub steps: Vec<Step>,
}

/// One transaction.
#[derive(Clone, Debug)]
pub struct Step {
    pub sql: String,
    /// No record comes of it.
    pub is_quiet: bool,
}

impl Scenario {
    /// Reads a golden file; what Debezium made of the rows is left out.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().map(|line| {
            serde_json::from_str::<Value>(line).map_err(|error| format!("{error}: {line}"))
        });
        let head = lines.next().ok_or("an empty file")??;
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or("text is missing");
        let map = |value: &Value| value.as_object().cloned().ok_or("an object is missing");
        let steps = lines.map(|line| {
            let line = line?;
            let is_quiet = line["records"].as_array().is_some_and(Vec::is_empty);
            Ok(Step { sql: text(&line["sql"])?, is_quiet })
        });
        Ok(Self {
            name: text(&head["scenario"])?,
            profile: text(&head["profile"])?,
            router: map(&head["router"])?,
            connector: map(&head["connector"])?,
            ddl: text(&head["ddl"])?,
            steps: steps.collect::<Result<_, String>>()?,
        })
    }
}

/// A PostgreSQL, a Kafka and a Debezium to play scenarios on, one after the other.
#[derive(Debug)]
pub struct Recorder {
    follower: Follower,
    debezium: Debezium,
    postgres: Postgres,
    _kafka: Kafka,
    connectors: u32,
    /// How many records belong to what was played.
    attributed: usize,
}

/// The result of a step.
enum RowOutcome {
    Records(Vec<Consumed>),
    Dies(String),
    /// Neither a record nor an error comes.
    Hangs,
}

impl RowOutcome {
    /// As a member of a golden file's line.
    fn text(&self, scenario: &Scenario) -> String {
        match self {
            Self::Records(records) => {
                let records: Vec<_> =
                    records.iter().map(|one| record_text(one, scenario)).collect();
                format!("\"records\":[{}]", records.join(","))
            }
            Self::Dies(error) => format!("\"dies\":{}", json!(error)),
            Self::Hangs => "\"hangs\":true".to_owned(),
        }
    }
}

impl Recorder {
    pub async fn start() -> Self {
        let postgres = Postgres::start(Major::V17).await;
        let kafka = Kafka::start().await;
        let debezium = Debezium::start(&postgres, &kafka).await;
        let follower = Follower::start(&kafka.bootstrap(), Topics::starting_with(""));
        Self { follower, debezium, postgres, _kafka: kafka, connectors: 0, attributed: 0 }
    }

    /// Plays a scenario; the text of its golden file.
    pub async fn record(&mut self, scenario: &Scenario) -> String {
        self.postgres
            .execute(&format!(
                "DROP PUBLICATION IF EXISTS golden; DROP SCHEMA public CASCADE;
                 CREATE SCHEMA public; {}; CREATE PUBLICATION golden FOR TABLE outbox",
                scenario.ddl
            ))
            .await;
        let mut text = self.head(scenario).await;
        let mut running = None;
        for step in &scenario.steps {
            let connector = match running.take() {
                Some(name) => Ok(name),
                None => self.connect(scenario).await,
            };
            let rows = self.commit(&step.sql).await;
            let outcome = match connector {
                Err(reason) => format!("\"refused\":{}", json!(reason)),
                Ok(connector) => {
                    // What inserts nothing and is not quiet is to kill the task.
                    let awaited = if step.is_quiet { 0 } else { rows.len().max(1) };
                    let outcome = self.outcome(&connector, &step.sql, awaited).await;
                    if let RowOutcome::Records(_) = outcome {
                        running = Some(connector);
                    } else {
                        self.disconnect(&connector).await;
                    }
                    outcome.text(scenario)
                }
            };
            writeln!(text, "{{\"sql\":{},\"rows\":{},{outcome}}}", json!(step.sql), json!(rows))
                .expect("a String takes every text");
        }
        if let Some(connector) = running {
            self.disconnect(&connector).await;
        }
        assert_eq!(self.follower.count(), self.attributed, "{}: a late record", scenario.name);
        text
    }

    /// The first line: the scenario, and the table's columns as pgoutput describes them.
    async fn head(&self, scenario: &Scenario) -> String {
        // Types that are not PostgreSQL's own have another number each time.
        let columns = self
            .postgres
            .query_text(
                "SELECT json_agg(json_build_array(attname, format_type(atttypid, atttypmod),
                     CASE WHEN atttypid < 16384 THEN atttypid::int8 END, atttypmod)
                   ORDER BY attnum)
                 FROM pg_attribute WHERE attrelid = 'outbox'::regclass AND attnum > 0",
            )
            .await
            .expect("a table has columns");
        let columns: Value = serde_json::from_str(&columns).expect("PostgreSQL writes JSON");
        let columns: Vec<_> = columns
            .as_array()
            .expect("it is an array")
            .iter()
            .map(|one| {
                format!(
                    "{{\"name\":{},\"type\":{},\"oid\":{},\"modifier\":{}}}",
                    one[0], one[1], one[2], one[3]
                )
            })
            .collect();
        format!(
            "{{\"scenario\":{},\"profile\":{},\"router\":{},\"connector\":{},\"ddl\":{},\
             \"columns\":[{}]}}\n",
            json!(scenario.name),
            json!(scenario.profile),
            json!(scenario.router),
            json!(scenario.connector),
            json!(scenario.ddl),
            columns.join(",")
        )
    }

    /// A connector on a new slot: it sees what is committed from now on.
    async fn connect(&mut self, scenario: &Scenario) -> Result<String, String> {
        self.connectors += 1;
        let name = format!("golden_{}", self.connectors);
        let slot = format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')");
        self.postgres.execute(&slot).await;
        let mut connector = Connector::new(&name, &name, "golden");
        let text = |value: &Value| value.as_str().expect("settings are text").to_owned();
        for (name, value) in &scenario.connector {
            connector = connector.setting(name, &text(value));
        }
        for (name, value) in &scenario.router {
            connector = connector.router(name, &text(value));
        }
        if let Err(reason) = self.debezium.try_add(&self.postgres, connector).await {
            self.disconnect(&name).await;
            return Err(cause(&reason));
        }
        Ok(name)
    }

    async fn disconnect(&self, connector: &str) {
        self.debezium.remove(&self.postgres, connector).await;
        self.postgres.execute(&format!("SELECT pg_drop_replication_slot('{connector}')")).await;
    }

    /// Runs a transaction; the rows that it inserted, each value as PostgreSQL sends it.
    async fn commit(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        let returning = if sql.starts_with("INSERT") { " RETURNING *" } else { "" };
        let answer = self.postgres.client().await.simple_query(&format!("{sql}{returning}")).await;
        let messages = answer.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        rows.map(|row| (0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()).collect()
    }

    /// Awaits so many records, or the task's death.
    async fn outcome(&mut self, connector: &str, sql: &str, awaited: usize) -> RowOutcome {
        let (from, mut looks) = (self.attributed, 0_u32);
        let (begin, mut is_repeated) = (Instant::now(), false);
        let outcome = within(ARRIVAL, async || {
            if self.follower.count() >= from + awaited {
                return Some(RowOutcome::Records(self.follower.records().split_off(from)));
            }
            // A worker looks at what became of a record when it has another one to send.
            if begin.elapsed() > PATIENCE && !std::mem::replace(&mut is_repeated, true) {
                let _ = self.postgres.client().await.simple_query(sql).await;
            }
            // The worker is queried less often than the consumer, since that costs more.
            looks += 1;
            if looks % 5 != 0 {
                return None;
            }
            match self.debezium.task(connector).await {
                Task::Failed(trace) => Some(RowOutcome::Dies(cause(&trace))),
                Task::Running | Task::Absent => None,
            }
        });
        let outcome = outcome.await.unwrap_or(RowOutcome::Hangs);
        if let RowOutcome::Records(records) = &outcome {
            assert_eq!(records.len(), awaited, "more records than rows: {records:?}");
            self.attributed += awaited;
        }
        outcome
    }
}

/// The last cause of a stack trace, which is where it began: its first sentence, since
/// what follows may name the time of the day.
fn cause(trace: &str) -> String {
    let mut causes = trace.lines().filter_map(|line| line.strip_prefix("Caused by: "));
    let last = causes.next_back().or_else(|| trace.lines().next()).unwrap_or_default();
    last.split(". ").next().unwrap_or_default().to_owned()
}

fn record_text(record: &Consumed, scenario: &Scenario) -> String {
    let mut text = format!("{{\"topic\":{}", json!(record.topic));
    let placement = scenario.router.get("table.fields.additional.placement");
    let is_placed = placement.and_then(Value::as_str).is_some_and(|it| it.contains(":partition"));
    let key = record.key.as_deref().map(String::from_utf8_lossy);
    // Without a key any partition will do, and an address is another at each run.
    if is_placed || key.is_some_and(|key| without_addresses(&key) == key) {
        let _ = write!(text, ",\"partition\":{}", record.partition);
    }
    // The default is the time at which Debezium read the row.
    if let Some(timestamp) = record.timestamp_ms.filter(|it| !is_of_this_run(*it)) {
        let _ = write!(text, ",\"timestamp\":{timestamp}");
    }
    let headers: Vec<_> = record
        .headers
        .iter()
        .map(|(name, value)| format!("[{},{}]", json!(name), bytes_text(value.as_deref())))
        .collect();
    let _ = write!(
        text,
        ",\"key\":{},\"value\":{},\"headers\":[{}]}}",
        bytes_text(record.key.as_deref()),
        bytes_text(record.value.as_deref()),
        headers.join(",")
    );
    text
}

fn is_of_this_run(timestamp_ms: i64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    i64::try_from(now).is_ok_and(|now| now.abs_diff(timestamp_ms) < 600_000)
}

/// Text where the bytes are UTF-8, else an object with their hexadecimal form.
fn bytes_text(bytes: Option<&[u8]>) -> Value {
    let Some(bytes) = bytes else { return Value::Null };
    if let Ok(text) = std::str::from_utf8(bytes) {
        return json!(without_addresses(text));
    }
    let hex = bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    json!({ "hex": hex })
}

/// Java names some objects by `type@address`, which is another at each run: `type@?`.
fn without_addresses(text: &str) -> String {
    let mut pieces = text.split('@');
    let mut whole = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let is_object = whole.ends_with("[B") || whole.ends_with("[Ljava.lang.String;");
        let digits = piece.bytes().take_while(u8::is_ascii_hexdigit).count();
        let rest = if is_object && digits > 0 { &piece[digits..] } else { piece };
        whole.push('@');
        if rest.len() < piece.len() {
            whole.push('?');
        }
        whole.push_str(rest);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_object_addresses_are_masked() {
        for (text, kept) in [
            ("Struct{scale=0,value=[B@1ffe7929}", "Struct{scale=0,value=[B@?}"),
            ("[[Ljava.lang.String;@4b, [B@9]", "[[Ljava.lang.String;@?, [B@?]"),
            ("a@b [B@ @", "a@b [B@ @"),
            ("", ""),
        ] {
            assert_eq!(without_addresses(text), kept);
        }
    }

    #[test]
    fn root_cause_of_a_trace_is_the_last_cause() {
        let trace = "A: first\n\tat x\nCaused by: B: second\n\tat y\nCaused by: C: third\n\tat z";
        assert_eq!(cause(trace), "C: third");
        assert_eq!(cause("A: alone. At 12:00\n\tat x"), "A: alone");
    }
}
