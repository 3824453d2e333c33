//! The state topic: created, and its first position written.

use rdkafka::admin::{NewTopic, TopicReplication};
use std::pin::Pin;
use std::time::{Duration, Instant};

use super::new_slot::Doubt;
use crate::assembly;
use crate::config::Config;
use crate::conninfo::ConnInfo;
use crate::destination;
use crate::destination::kafka::{KafkaConfig, MetadataClient, TopicAt, kafka};
use crate::destination::parts::settings::layout;
use crate::lsn::Lsn;
use crate::outbox::TableName;
use crate::position::EventPosition;
use crate::source::{
    self, CatalogState, Control, Limit, Silent, SourceError, SqlClient, identify_server,
};
use crate::state::{
    Facts, Layout, Partial, State, StateEvent, StateFailure, StateKey, StateStore, UnfinishedRows,
    end_of_published, with_publication,
};

/// Timeout for each request to the brokers.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How soon a topic that was created is looked for again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of replicas.
const REPLICAS_MAX: usize = 3;

/// Why the position was not read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdoptError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Silent(#[from] Silent),
    #[error(
        "a walpost or another client uses replication slot \"{slot}\"{}: stop it first",
        server_process(*.pid)
    )]
    InUse {
        slot: String,
        /// `None`: it holds the lock on the slot's name.
        pid: Option<i32>,
    },
    #[error(
        "state topic {topic} cannot be created: {reason}; create it with \
         `{create} --partitions 1 --config cleanup.policy=compact`"
    )]
    Topic { topic: String, reason: String, create: String },
    #[error("{place} cannot be used: {failure}")]
    State { place: String, failure: StateFailure },
    #[error("the brokers cannot be reached: {0}")]
    Brokers(String),
    #[error("delivery.state_topic is off")]
    Off,
    #[error(
        "with sink.kind = \"{0}\" walpost keeps no position of its own: there is nothing to adopt"
    )]
    NoStore(&'static str),
    #[error(
        "{place} has no position for this slot, server and delivery.id: run \
         `walpost adopt --apply` first"
    )]
    NoPosition { place: String },
    #[error(
        "rows that the slot does not send are being published ({place}), and their positions \
         change with each run: repair the row, or delete it, or set a policy for such events (poison.*), \
         then run the command again"
    )]
    Rows { place: String },
    #[error(
        "the event at {position} is published already, as far as {place} tells: it cannot be skipped"
    )]
    Published { place: String, position: EventPosition },
    #[error(
        "the event at {position} is not to come any more: walpost has passed everything that \
         commits before {acked} ({place})"
    )]
    Passed { place: String, position: EventPosition, acked: Lsn },
}

/// How many positions of skipped events are kept, at least those that are still to come.
const SKIPPED_MAX: usize = 100;

/// The rows of how many of them are known: each has up to some hundred bytes of the state's record.
const SKIPPED_ROWS_MAX: usize = 1000;

/// The positions of slot and state topic. No walpost begins to work with the slot while this exists.
pub(crate) struct Positions {
    /// The session that holds the lock on the slot's name.
    control: Control,
    /// The slot's `confirmed_flush_lsn`; `None`: there is no such slot.
    found: Option<Lsn>,
    /// The position in the state topic, if there is one.
    pub(crate) state: Option<State>,
    cluster: Option<String>,
    /// The last published event, if the store knows it.
    published: Option<EventPosition>,
    /// Whether what is at the destination is not what walpost has published.
    pub(crate) is_diverged: bool,
    /// The server's.
    pub(crate) timeline: u32,
    /// The end of the server's WAL.
    flushed: Lsn,
    /// What numbers the events now.
    layout: Layout,
    key: StateKey,
    store: Box<dyn StateStore>,
    /// What the place of the position is called.
    pub(crate) place: String,
}

/// What is to be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The command's name, for the sessions.
    pub(crate) command: &'a str,
    /// Create the topic if it is missing; otherwise a missing topic has no position.
    pub(crate) create: bool,
    /// The slot may be missing.
    pub(crate) may_lack_slot: bool,
    /// Without a store of the position, keep it as long as this exists.
    pub(crate) may_lack_store: bool,
}

impl Positions {
    /// Reads both, for a slot that nobody uses.
    pub(crate) async fn read(
        config: &Config,
        conninfo: &ConnInfo,
        wanted: Wanted<'_>,
    ) -> Result<Self, AdoptError> {
        let Wanted { command, create, may_lack_slot, may_lack_store } = wanted;
        let slot = &config.source.slot;
        let control = source::control(conninfo, command).await.map_err(SourceError::from)?;
        let mut limit = Limit::new(conninfo, &control);
        // The session holds the lock for as long as the command works.
        let lifted = limit.first(source::lift_limits(&control.client)).await?;
        lifted.map_err(|error| SourceError::query("preparing the session", &error))?;
        let facts = limit.on(CatalogState::read(&control.client, slot)).await??;
        let found = match &facts.slot {
            None if may_lack_slot && !facts.in_recovery => None,
            _ => Some(facts.require_slot(slot)?),
        };
        if let Some(pid) = facts.slot.as_ref().and_then(|slot| slot.active_pid) {
            return Err(AdoptError::InUse { slot: slot.clone(), pid: Some(pid) });
        }
        // In a catch-up, and between two sessions, a walpost holds only the lock on the slot's name.
        if !limit.first(source::try_lock_slot(&control.client, slot)).await?? {
            return Err(AdoptError::InUse { slot: slot.clone(), pid: None });
        }
        let (system_identifier, timeline) =
            identify_server(conninfo, &control, command).await.map_err(SourceError::from)?;
        let key = StateKey {
            delivery_id: config.delivery.id.clone(),
            system_identifier,
            database_oid: facts.database_oid,
            slot: slot.clone(),
        };
        let none = || match config.sink {
            _ if config.is_kafka() => AdoptError::Off,
            other => AdoptError::NoStore(other),
        };
        let destination = destination::of(config);
        let kept = destination.store(config).zip(destination.place_of_position(config));
        let in_memory = || (Box::<InMemory>::default() as Box<dyn StateStore>, String::new());
        let kept = kept.or_else(|| may_lack_store.then(in_memory));
        let (mut store, place) = kept.ok_or_else(none)?;
        let mut opened = open(&mut *store, &key).await;
        if opened == StateEvent::Missing
            && create
            && let Some(topic) = &config.delivery.state_topic
        {
            let (kafka, topic) = (kafka(config), topic.clone());
            let created = tokio::task::spawn_blocking(move || create_topic(&kafka, &topic));
            created.await.map_err(|error| AdoptError::Brokers(error.to_string()))??;
            opened = open(&mut *store, &key).await;
            // Brokers know of it a moment later.
            let deadline = Instant::now() + REQUEST_TIMEOUT;
            while opened == StateEvent::Missing && Instant::now() < deadline {
                tokio::time::sleep(RETRY_INTERVAL).await;
                opened = open(&mut *store, &key).await;
            }
        }
        let (state, cluster, published, is_diverged) = read_from(opened, &place)?;
        let source = assembly::source(config);
        let source = source.map_err(|error| SourceError::Setup(error.to_string()))?;
        let fingerprint = source::publication_fingerprint(&control.client, facts.version, &source);
        let layout = layout(config).with(&limit.on(fingerprint).await??);
        let flushed = facts.flushed;
        Ok(Self {
            control,
            found,
            state,
            cluster,
            published,
            is_diverged,
            timeline,
            flushed,
            layout,
            key,
            store,
            place,
        })
    }

    /// The slot's position.
    pub(crate) fn slot(&self) -> Lsn {
        self.found.unwrap_or_default()
    }

    /// Whether the slot exists.
    pub(crate) fn has_slot(&self) -> bool {
        self.found.is_some()
    }

    /// The session that holds the lock.
    pub(crate) fn client(&self) -> &SqlClient {
        &self.control.client
    }

    /// What speaks against the slot's position, for a slot without one in the state topic.
    pub(crate) async fn doubt(
        &self,
        config: &Config,
        conninfo: &ConnInfo,
        is_created: bool,
        former: Option<TableName>,
    ) -> Result<Option<Doubt>, AdoptError> {
        let (slot, tables) = (&config.source.slot, &config.outbox.tables);
        let doubt = Doubt::of(&self.control.client, slot, tables, is_created, former);
        let doubt = Limit::new(conninfo, &self.control).on(doubt).await?;
        doubt.map_err(|error| {
            SourceError::query("looking at the slot and the outbox", &error).into()
        })
    }

    /// Reads the position in the state topic again, after another process has written it, and fences
    /// that one.
    pub(crate) async fn read_again(&mut self) -> Result<(), AdoptError> {
        let opened = open(&mut *self.store, &self.key).await;
        (self.state, self.cluster, self.published, self.is_diverged) =
            read_from(opened, &self.place)?;
        Ok(())
    }

    /// The record to write for these rows, which are published from `start` on.
    pub(crate) fn publishing(&self, start: Lsn, rows: UnfinishedRows) -> State {
        let last = self.state.as_ref().and_then(|state| state.last);
        State { last, rows_upto: rows.next, rows: Some(rows), ..self.at(start) }
    }

    /// The record to write for a slot that is read from this position on.
    pub(crate) fn at(&self, position: Lsn) -> State {
        let former = self.state.as_ref();
        let skipped = former.map(|state| state.skipped.clone()).unwrap_or_default();
        State {
            generation: former.map_or(1, |state| state.generation + 1),
            cluster: self.cluster.clone(),
            skipped,
            skipped_rows: former.map(|state| state.skipped_rows.clone()).unwrap_or_default(),
            delivered: former.and_then(|state| state.delivered.clone()),
            rows_upto: former.map(|state| state.rows_upto).unwrap_or_default(),
            skips: former.is_some_and(|state| state.skips),
            layout: former.and_then(|state| state.layout.clone()),
            begun: former.and_then(|state| state.begun.clone()),
            ending: former.and_then(|state| state.ending),
            at_ms: crate::state::unix_ms(),
            // This command compares nothing.
            ..State::accepted(self.timeline, position)
        }
    }

    /// Whether rows may have been committed without the publication while walpost worked with it.
    pub(crate) fn may_lack_rows(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.may_lack_rows(&self.layout))
    }

    /// The end of what is published, if that is behind the position.
    pub(crate) fn published_beyond(&self) -> Option<Lsn> {
        let end = self.end_of_published()?;
        (end > self.state.as_ref()?.acked_upto).then_some(end)
    }

    /// The end of what is published, as far as known.
    pub(crate) fn end_of_published(&self) -> Option<Lsn> {
        Some(end_of_published(self.state.as_ref()?, self.published))
    }

    /// The commit of the last published event, if that is known.
    pub(crate) fn last_published(&self) -> Option<Lsn> {
        let partial = self.state.as_ref().and_then(|state| state.partial);
        let last = self.published.or(partial.map(|partial| partial.next));
        last.map(|last| last.commit_lsn)
    }

    /// The state to write if only the publication as it is now has to be accepted.
    pub(crate) fn with_publication(&self) -> Option<State> {
        let state = self.state.as_ref().filter(|state| state.timeline == self.timeline)?;
        let facts = Facts {
            // This command compares nothing.
            server_started: 0,
            fork: None,
            is_standby: false,
            layout: &self.layout,
            rows: None,
            is_own: false,
            awaited: None,
            timeline: self.timeline,
            flushed: self.flushed,
            slot: self.slot(),
            cluster: self.cluster.as_deref(),
            published: self.published,
        };
        let accepted = with_publication(state, &facts)?;
        Some(State { generation: state.generation + 1, at_ms: crate::state::unix_ms(), ..accepted })
    }

    /// Accepts the publication as it is now, if nothing else stands against the position, which stays;
    /// otherwise writes the slot's position. Returns from where `run` continues.
    pub(crate) async fn adopt(mut self) -> Result<Lsn, AdoptError> {
        // The end of a stream that is not walpost's is adopted too.
        let from = match self.with_publication().filter(|_| !self.is_diverged) {
            Some(state) => {
                self.write(&state).await?;
                state.acked_upto
            }
            None => self.write_slot().await?,
        };
        // The server notices the end of a session late, and the next command may need the lock at once.
        let unlocked =
            self.control.client.batch_execute("SELECT pg_catalog.pg_advisory_unlock_all()").await;
        unlocked.map_err(|error| SourceError::query("releasing the slot", &error))?;
        Ok(from)
    }

    async fn write_slot(&mut self) -> Result<Lsn, AdoptError> {
        let slot = self.slot();
        let state = self.at(slot);
        let state = State {
            skipped: passed(state.skipped, slot),
            // Rows between the former position and this one may not be.
            delivered: None,
            layout: None,
            begun: None,
            ending: None,
            ..state
        };
        self.store.adopt(&state);
        self.written(&state).await?;
        Ok(slot)
    }

    /// What is to be written to skip the event at `position` no more.
    pub(crate) fn not_skipping(&self, position: EventPosition) -> Result<State, AdoptError> {
        let mut state = self.next_state(position)?;
        state.skipped.retain(|skipped| *skipped != position);
        state.skipped_rows.remove(&position);
        Ok(state)
    }

    /// What is to be written to skip the event at `position`.
    pub(crate) fn skipping(&self, position: EventPosition) -> Result<State, AdoptError> {
        let mut state = self.next_state(position)?;
        let acked = state.acked_upto;
        let is_published = |Partial { next, .. }: Partial| {
            next.commit_lsn == position.commit_lsn && position < next
        };
        if state.partial.is_some_and(is_published) {
            return Err(AdoptError::Passed { place: self.place.clone(), position, acked });
        }
        if self.published.is_some_and(|published| position <= published) {
            return Err(AdoptError::Published { place: self.place.clone(), position });
        }
        if let Err(at) = state.skipped.binary_search(&position) {
            state.skipped.insert(at, position);
        }
        let is_passed = |skipped: &&EventPosition| skipped.commit_lsn < acked;
        let passed = state.skipped.iter().take_while(is_passed).count();
        let many = passed.min(state.skipped.len().saturating_sub(SKIPPED_MAX));
        // Without their ids, their rows cannot be distinguished from others.
        let is_known = |position| state.skipped_rows.contains_key(&position);
        state.skips |= !state.skipped.drain(..many).all(is_known);
        while state.skipped_rows.len() > SKIPPED_ROWS_MAX {
            state.skips |= state.skipped_rows.pop_first().is_some();
        }
        Ok(state)
    }

    /// The state to change and write, for an order on the event at `position`, which has to be still
    /// to come.
    fn next_state(&self, position: EventPosition) -> Result<State, AdoptError> {
        let place = self.place.clone();
        let Some(state) = self.state.clone() else {
            return Err(AdoptError::NoPosition { place });
        };
        if state.rows.is_some() {
            return Err(AdoptError::Rows { place });
        }
        let acked = state.acked_upto;
        if position.commit_lsn < acked {
            return Err(AdoptError::Passed { place, position, acked });
        }
        let (generation, at_ms) = (state.generation + 1, crate::state::unix_ms());
        Ok(State { generation, at_ms, ..state })
    }

    /// Writes a state from which on events are new to the destination. One that knows the last event by its
    /// position takes those before it for published: it gets a new generation if it has published something
    /// behind this position, or another one could still do so while rows are published.
    pub(crate) async fn begin(&mut self, state: &State) -> Result<(), AdoptError> {
        let is_passed = |last: EventPosition| last.commit_lsn >= state.acked_upto;
        let is_new = self.state.is_none() || self.is_diverged || state.rows.is_some();
        if is_new || self.published.is_some_and(is_passed) {
            self.store.adopt(state);
            return self.written(state).await;
        }
        self.write(state).await
    }

    /// Writes this state to the state topic.
    pub(crate) async fn write(&mut self, state: &State) -> Result<(), AdoptError> {
        self.store.write(state);
        self.written(state).await
    }

    async fn written(&mut self, state: &State) -> Result<(), AdoptError> {
        match event(&mut *self.store).await {
            StateEvent::Written => {
                self.state = Some(state.clone());
                Ok(())
            }
            StateEvent::Failed(failure) => {
                Err(AdoptError::State { place: self.place.clone(), failure })
            }
            StateEvent::Opened { .. } | StateEvent::Missing => {
                let failure = StateFailure::Unavailable("it is gone".to_owned());
                Err(AdoptError::State { place: self.place.clone(), failure })
            }
        }
    }
}

/// Keeps the position for as long as the command works.
#[derive(Default)]
struct InMemory {
    state: Option<State>,
    event: Option<StateEvent>,
}

impl StateStore for InMemory {
    fn open(&mut self, _: &StateKey) {
        self.event = Some(StateEvent::Opened {
            state: self.state.clone(),
            cluster: None,
            published: None,
            is_diverged: false,
            transaction_timeout: None,
        });
    }

    fn write(&mut self, state: &State) {
        self.state = Some(state.clone());
        self.event = Some(StateEvent::Written);
    }

    fn take_event(&mut self) -> Option<StateEvent> {
        self.event.take()
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }
}

/// The events that were passed before this position: others may be at the positions from it on.
fn passed(skipped: Vec<EventPosition>, upto: Lsn) -> Vec<EventPosition> {
    skipped.into_iter().filter(|position| position.commit_lsn < upto).collect()
}

fn server_process(pid: Option<i32>) -> String {
    pid.map(|pid| format!(" (server process {pid})")).unwrap_or_default()
}

/// The position, the cluster's id, and the last published event, as far as the store has them; and whether the
/// destination has something else.
type Read = (Option<State>, Option<String>, Option<EventPosition>, bool);

/// What was read.
fn read_from(opened: StateEvent, place: &str) -> Result<Read, AdoptError> {
    match opened {
        StateEvent::Opened { state, cluster, published, is_diverged, .. } => {
            Ok((state, cluster, published, is_diverged))
        }
        StateEvent::Failed(failure) => Err(AdoptError::State { place: place.to_owned(), failure }),
        StateEvent::Missing | StateEvent::Written => Ok((None, None, None, false)),
    }
}

async fn open(store: &mut dyn StateStore, key: &StateKey) -> StateEvent {
    store.open(key);
    event(store).await
}

async fn event(store: &mut dyn StateStore) -> StateEvent {
    loop {
        if let Some(event) = store.take_event() {
            return event;
        }
        store.wait().await;
    }
}

/// Creates the topic: compacted, one partition, up to three replicas. Blocks.
fn create_topic(kafka: &KafkaConfig, topic: &str) -> Result<(), AdoptError> {
    let create = TopicAt { topic, servers: &kafka.bootstrap_servers }.create();
    let failed =
        |reason| AdoptError::Topic { topic: topic.to_owned(), reason, create: create.clone() };
    let metadata = MetadataClient::open(kafka).map_err(|error| failed(error.to_string()))?;
    let brokers = metadata
        .brokers(REQUEST_TIMEOUT)
        .map_err(|error| AdoptError::Brokers(format!("{error:?}")))?;
    let replicas = brokers.ids.len().clamp(1, REPLICAS_MAX);
    let min_insync = if replicas == REPLICAS_MAX { "2" } else { "1" };
    let new =
        NewTopic::new(topic, 1, TopicReplication::Fixed(i32::try_from(replicas).unwrap_or(1)))
            .set("cleanup.policy", "compact")
            // Each start reads it from its beginning, and the newest segment is never compacted.
            .set("segment.bytes", "16777216")
            .set("segment.ms", "3600000")
            .set("min.cleanable.dirty.ratio", "0.1")
            .set("min.insync.replicas", min_insync);
    metadata.create_topic(&new).map(drop).map_err(|not| failed(not.reason))
}
