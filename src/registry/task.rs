//! Asks the registry for what the relay wants, again and again until it answers, and from time to time for
//! what may have changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep_until};

use super::RegistrySource;
use super::answer::Failure;
use super::client;
use crate::metrics::Metrics;
use crate::record::{Known, SchemaRef};
use crate::relay::{Asking, Learned};

/// How soon the registry is asked again that does not answer: first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];

/// How soon it is asked again for a schema that it does not have.
const MISSING_AGAIN: Duration = Duration::from_secs(5);

/// Maximum number of subjects whose latest version is asked for again.
const LATEST_MAX: usize = 1000;

/// What may change, and when it is asked for again.
#[derive(Debug)]
struct Kept {
    known: Known,
    again: Instant,
}

pub(super) struct Task {
    source: RegistrySource,
    /// Whether a schema that is missing is waited for.
    waits: bool,
    refresh: Duration,
    metrics: Arc<Metrics>,
    /// What the relay waits for, when to ask for it again, and how often that was in vain.
    wanted: Option<(SchemaRef, Instant, u32)>,
    kept: HashMap<SchemaRef, Kept>,
    /// The failure that was logged, until the registry answers.
    logged: Option<String>,
}

impl Task {
    pub(super) fn new(
        source: RegistrySource,
        (waits, refresh): (bool, Duration),
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { source, waits, refresh, metrics, wanted: None, kept: HashMap::new(), logged: None }
    }

    /// Works until the relay has ended.
    pub(super) async fn run(mut self, (mut wants, found): Asking) {
        loop {
            let due = self.due();
            tokio::select! {
                biased;
                wanted = wants.recv() => match wanted {
                    None => return,
                    Some(schema) => self.wanted = Some((schema, Instant::now(), 0)),
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    if self.ask(&found).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// When something is to be asked for.
    fn due(&self) -> Option<Instant> {
        let wanted = self.wanted.as_ref().map(|(_, at, _)| *at);
        wanted.into_iter().chain(self.kept.values().map(|kept| kept.again)).min()
    }

    /// Asks for what is due: first what the relay waits for. Fails once the relay has ended.
    async fn ask(&mut self, found: &UnboundedSender<Learned>) -> Result<(), ()> {
        let now = Instant::now();
        let learned = match self.wanted.take() {
            Some((schema, at, times)) if at <= now => self.ask_wanted(schema, times).await,
            wanted => {
                self.wanted = wanted;
                self.ask_again(now).await
            }
        };
        learned.map_or(Ok(()), |learned| found.send(learned).map_err(drop))
    }

    async fn ask_wanted(&mut self, schema: SchemaRef, times: u32) -> Option<Learned> {
        let (answer, wait) = match self.get(&schema).await {
            Ok(Known::Missing(why)) if self.waits => {
                let text = format!("the schema registry does not have {schema}: {why}");
                self.fails(&schema, &text);
                (None, MISSING_AGAIN)
            }
            Ok(known) => {
                self.answers();
                self.keep(&schema, &known);
                return Some(Learned::Schema(schema, Some(known)));
            }
            Err(failure) => {
                let denied = matches!(failure, Failure::Denied(_));
                let text = format!("{schema} cannot be read from the schema registry: {failure}");
                self.fails(&schema, &text);
                let answer = denied.then(|| Learned::Denied(failure.to_string()));
                (answer, (AGAIN[0] * 2_u32.saturating_pow(times.min(10))).min(AGAIN[1]))
            }
        };
        self.wanted = Some((schema, Instant::now() + wait, times.saturating_add(1)));
        answer
    }

    /// Asks again for what is the longest due: a latest version, or a schema that was missing, for which the relay
    /// asks itself if it is needed.
    async fn ask_again(&mut self, now: Instant) -> Option<Learned> {
        let due = self.kept.iter().filter(|(_, kept)| kept.again <= now);
        let (schema, _) = due.min_by_key(|(_, kept)| kept.again)?;
        let schema = schema.clone();
        let before = self.kept.remove(&schema)?.known;
        if matches!(before, Known::Missing(_)) {
            return Some(Learned::Schema(schema, None));
        }
        match self.get(&schema).await {
            Ok(Known::Missing(_)) => Some(Learned::Schema(schema, None)),
            Ok(known) => {
                self.keep(&schema, &known);
                (known != before).then_some(Learned::Schema(schema, Some(known)))
            }
            // What is known stays in use.
            Err(_) => {
                self.keep(&schema, &before);
                None
            }
        }
    }

    async fn get(&self, schema: &SchemaRef) -> Result<Known, Failure> {
        let answer = match self.source.read() {
            Ok(config) => client::ask(&config, schema).await,
            Err(reason) => Err(Failure::Unusable(reason)),
        };
        self.metrics.schemas.requested(match &answer {
            Ok(Known::Missing(_)) => "missing",
            Ok(_) => "ok",
            Err(Failure::Denied(_)) => "denied",
            Err(_) => "failed",
        });
        answer
    }

    /// Keeps what may change.
    fn keep(&mut self, schema: &SchemaRef, known: &Known) {
        let again = match (schema, known) {
            (_, Known::Missing(_)) => MISSING_AGAIN,
            (SchemaRef::Version(_, None), _) => self.refresh,
            _ => return,
        };
        if self.kept.len() >= LATEST_MAX {
            self.kept.clear();
        }
        let again = Instant::now() + again;
        self.kept.insert(schema.clone(), Kept { known: known.clone(), again });
    }

    /// Shows why the relay waits, and logs each reason once.
    fn fails(&mut self, schema: &SchemaRef, text: &str) {
        if self.logged.as_deref() != Some(text) {
            tracing::warn!(%schema, reason = text, "an event waits for its schema; asking the registry again");
            self.logged = Some(text.to_owned());
        }
        self.metrics.set_schema_trouble(Some(text));
    }

    fn answers(&mut self) {
        if self.logged.take().is_some() {
            tracing::info!("the schema registry has what was waited for");
        }
        self.metrics.set_schema_trouble(None);
    }
}
