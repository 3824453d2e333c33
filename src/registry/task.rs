//! Asks the registry for what the relay wants, again and again until it answers, and from time to time for
//! what may have changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

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

/// Maximum number of schemas that are asked for again.
const KEPT_MAX: usize = 1000;

/// How long the same kind of failure is not logged again.
const LOG_AGAIN: Duration = Duration::from_secs(300);

/// What may change, and when it is asked for again.
#[derive(Debug)]
struct Kept {
    known: Known,
    again: Instant,
}

/// Why an event waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Missing,
    Denied,
    Unavailable,
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
    /// What was logged, and when, until the registry answers.
    logged: Option<(Wait, Instant)>,
    /// Whether a schema in use could not be asked for again.
    is_stale: bool,
}

impl Task {
    pub(super) fn new(
        source: RegistrySource,
        (waits, refresh): (bool, Duration),
        metrics: Arc<Metrics>,
    ) -> Self {
        let (wanted, kept, logged, is_stale) = (None, HashMap::new(), None, false);
        Self { source, waits, refresh, metrics, wanted, kept, logged, is_stale }
    }

    /// Works until the relay has ended.
    pub(super) async fn run(mut self, (mut wants, found): Asking) {
        loop {
            let due = self.due();
            tokio::select! {
                biased;
                wanted = wants.recv() => match wanted {
                    None => return,
                    Some(wanted) => self.want(wanted),
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    for learned in self.ask().await {
                        if found.send(learned).is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }

    fn want(&mut self, wanted: Option<SchemaRef>) {
        self.wanted = wanted.map(|schema| (schema, Instant::now(), 0));
        if self.wanted.is_none() {
            // Nothing waits any more.
            self.logged = None;
            self.metrics.set_schema_trouble(None);
        }
    }

    /// When something is to be asked for.
    fn due(&self) -> Option<Instant> {
        let wanted = self.wanted.as_ref().map(|(_, at, _)| *at);
        wanted.into_iter().chain(self.kept.values().map(|kept| kept.again)).min()
    }

    /// Asks for what is due: first what the relay waits for.
    async fn ask(&mut self) -> Vec<Learned> {
        let now = Instant::now();
        match self.wanted.take() {
            Some((schema, at, times)) if at <= now => self.ask_wanted(schema, times).await,
            wanted => {
                self.wanted = wanted;
                self.ask_again(now).await
            }
        }
    }

    async fn ask_wanted(&mut self, schema: SchemaRef, times: u32) -> Vec<Learned> {
        let (learned, again) = match self.get(&schema).await {
            Ok(Known::Missing(why)) if self.waits => {
                let text = format!("the schema registry does not have {schema}: {why}");
                self.waits_for(Wait::Missing, &schema, &text);
                (Vec::new(), MISSING_AGAIN)
            }
            Ok(known) => {
                self.answers();
                let mut learned = self.keep(&schema, &known);
                learned.push(Learned::Schema(schema, Some(known)));
                return learned;
            }
            Err(failure) => {
                let is_denied = matches!(failure, Failure::Denied(_));
                let wait = if is_denied { Wait::Denied } else { Wait::Unavailable };
                let text = format!("{schema} cannot be read from the schema registry: {failure}");
                self.waits_for(wait, &schema, &text);
                let learned = is_denied.then(|| Learned::Denied(failure.to_string()));
                let again = AGAIN[0] * 2_u32.saturating_pow(times.min(10));
                (learned.into_iter().collect(), again.min(AGAIN[1]))
            }
        };
        self.wanted = Some((schema, Instant::now() + again, times.saturating_add(1)));
        learned
    }

    /// Asks again for what is the longest due: a latest version, or a schema that was missing, for which the relay
    /// asks itself if it is needed.
    async fn ask_again(&mut self, now: Instant) -> Vec<Learned> {
        let due = self.kept.iter().filter(|(_, kept)| kept.again <= now);
        let Some((schema, _)) = due.min_by_key(|(_, kept)| kept.again) else { return Vec::new() };
        let schema = schema.clone();
        let Some(Kept { known: before, .. }) = self.kept.remove(&schema) else { return Vec::new() };
        if matches!(before, Known::Missing(_)) {
            return vec![Learned::Schema(schema, None)];
        }
        let answer = self.get(&schema).await;
        self.note_stale(&schema, answer.as_ref().err());
        match answer {
            Ok(Known::Missing(_)) => vec![Learned::Schema(schema, None)],
            Ok(known) => {
                let mut learned = self.keep(&schema, &known);
                if known != before {
                    learned.push(Learned::Schema(schema, Some(known)));
                }
                learned
            }
            // What is known stays in use.
            Err(_) => self.keep(&schema, &before),
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

    /// Keeps what may change. What there is no room for is to be asked for again when it is needed.
    fn keep(&mut self, schema: &SchemaRef, known: &Known) -> Vec<Learned> {
        let again = match (schema, known) {
            (_, Known::Missing(_)) => MISSING_AGAIN,
            (SchemaRef::Version(_, None), _) | (_, Known::Unusable(_)) => self.refresh,
            _ => return Vec::new(),
        };
        let again = Instant::now() + again;
        self.kept.insert(schema.clone(), Kept { known: known.clone(), again });
        if self.kept.len() <= KEPT_MAX {
            return Vec::new();
        }
        let first = self.kept.iter().min_by_key(|(_, kept)| kept.again);
        let first = first.map(|(schema, _)| schema.clone());
        self.kept.retain(|schema, _| Some(schema) != first.as_ref());
        first.map(|schema| Learned::Schema(schema, None)).into_iter().collect()
    }

    /// Shows why an event waits, and logs each kind of reason once in some minutes.
    fn waits_for(&mut self, wait: Wait, schema: &SchemaRef, reason: &str) {
        let now = Instant::now();
        if self.logged.is_none_or(|(kind, at)| kind != wait || now - at >= LOG_AGAIN) {
            tracing::warn!(%schema, reason, "an event waits for its schema; asking the registry again");
            self.logged = Some((wait, now));
        }
        self.metrics.set_schema_trouble(Some(reason));
    }

    fn answers(&mut self) {
        if self.logged.take().is_some() {
            tracing::info!("the schema registry answers again");
        }
        self.metrics.set_schema_trouble(None);
    }

    /// Logs that what is in use cannot be asked for again, and that it can.
    fn note_stale(&mut self, schema: &SchemaRef, failure: Option<&Failure>) {
        match (std::mem::replace(&mut self.is_stale, failure.is_some()), failure) {
            (false, Some(failure)) => tracing::warn!(
                %schema,
                reason = %failure,
                "cannot ask for the latest schemas; keeping those that are known"
            ),
            (true, None) => tracing::info!("the latest schemas are read again"),
            _ => {}
        }
    }
}
