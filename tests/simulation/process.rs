//! walpost as an operator runs it: started, killed at any await point, stopped, restarted; and the
//! operator's decisions where one is needed.

use std::future::{Future, pending, poll_fn};
use std::mem;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use walpost::Lsn;
use walpost::outbox::{ColumnNames, Outbox, OutboxConfig, TableName};
use walpost::record::Policies;
use walpost::record::{Known, RecordConfig, Router, SchemaChoice, SchemaKind, ValueEncoding};
use walpost::relay::{
    Asking, CommitLimits, Learned, Relay, RelayError, RelaySettings, Schemas, StateSettings,
    StopHandle, Summary, Until, stop_channel,
};
use walpost::source::{CatchUp, SlotError, SourceError};
use walpost::state::ConfiguredLayout;
use walpost_core::relay::Core;

use crate::broker::SimSink;
use crate::feed::SimSource;
use crate::schedule::Schedule;
use crate::state_topic::SimStore;
use crate::trace::{Exit, TraceEvent};
use crate::wal::{Event, OUTBOXES, PARTITIONS, Poison, relation};
use crate::world::{Shared, World};

/// The topic for undeliverable events.
pub(crate) const DEAD_LETTERS: &str = "t.dead";

/// How long an operator lets it wait for Kafka if its slot is lost.
const GIVEN_UP: Duration = Duration::from_secs(30);

/// How a process ends, unless it exits before.
#[derive(Debug, Default)]
struct Life {
    killed_after_ms: Option<u64>,
    /// It is polled this many times, and killed at the await point after that.
    killed_after_wakes: Option<u64>,
    told_after_ms: Option<u64>,
    told_again_after_ms: Option<u64>,
    until: Option<Until>,
}

/// Keeps a walpost running until the schedule is over, and stops it then.
pub(crate) async fn keep_running(world: Shared, mut over: watch::Receiver<bool>) {
    while !*over.borrow() {
        if world.lock().is_restored {
            sleep(Duration::from_millis(5)).await;
            continue;
        }
        let (process, life) = world.lock().start();
        let exit = run(&world, process, &life, &mut over).await;
        let histories = {
            let mut world = world.lock();
            world.note(TraceEvent::Exited { process, exit: exit.clone() });
            world.running -= 1;
            let histories = world.lost.len();
            world.restore_if_all_ended();
            histories
        };
        let pause = world.lock().rng.u64(0..1500);
        sleep(Duration::from_millis(pause)).await;
        others_ended(&world, &exit).await;
        let mut world = world.lock();
        // Nothing is known of another history.
        if world.lost.len() == histories {
            world.put_right(&exit);
        }
    }
}

/// Waits, as an operator of an unusable slot does once all faults are over, until the other walposts have
/// ended too, unless one of them uses the slot. A position is accepted while none is running.
async fn others_ended(world: &Shared, exit: &Exit) {
    let works = |world: &World| !world.calm || world.running == 0 || world.slot_is_in_use();
    for _ in 0..3 * GIVEN_UP.as_secs() {
        if !matches!(exit, Exit::Source(SourceError::Slot(_))) || works(&world.lock()) {
            return;
        }
        sleep(Duration::from_secs(1)).await;
    }
}

impl World {
    fn start(&mut self) -> (usize, Life) {
        let process = self.trace.iter().filter(|(_, it)| matches!(it, TraceEvent::Started { .. }));
        let process = process.count();
        let mut life = Life::default();
        if !self.calm {
            let longest = [30, 1000, 10_000][self.rng.usize(0..3)];
            let some = |rng: &mut fastrand::Rng, is: bool, most: u64| is.then(|| rng.u64(0..most));
            let (kills, stops) = (self.schedule.kills, self.schedule.stops);
            let by_wakes = self.rng.bool();
            life.killed_after_ms = some(&mut self.rng, kills && !by_wakes, longest);
            life.killed_after_wakes = some(&mut self.rng, kills && by_wakes, 400);
            life.told_after_ms = some(&mut self.rng, stops, longest);
            let again = self.one_in(3);
            life.told_again_after_ms = some(&mut self.rng, again, 3000);
            life.until = (self.schedule.untils && self.one_in(2)).then_some(Until::Current);
        }
        self.running += 1;
        self.note(TraceEvent::Started { process, until: life.until.is_some() });
        (process, life)
    }

    /// Does what an operator does before the next start.
    fn put_right(&mut self, exit: &Exit) {
        if let Exit::Halted { commit, ordinal, sure, .. } = exit {
            return self.deal_with(*commit, *ordinal, *sure);
        }
        let Exit::Source(SourceError::Slot(error)) = exit else { return };
        let error = match error {
            SlotError::Undelivered { error, .. } => &**error,
            error => error,
        };
        match error {
            // It has written its own position since.
            SlotError::AheadOfState { .. } => self.adopt(),
            SlotError::MadeAgain { .. }
            | SlotError::OtherHistory { .. }
            | SlotError::BehindState { .. }
            | SlotError::OtherState { .. } => self.accept(),
            // The former configuration.
            SlotError::PartlyPublished { .. } => self.layout = 1 - self.layout,
            _ if !self.server.slot_is_there => {
                let end = self.log.end;
                self.advance(end);
                self.server.slot_is_there = true;
                self.server.save();
            }
            _ => {}
        }
    }

    /// Raises the limit that rejects the event, or gives up its transaction.
    fn deal_with(&mut self, commit: Lsn, ordinal: u32, sure: bool) {
        let is_it = |event: &&mut Event| event.commit == commit && event.ordinal == ordinal;
        let Some(event) = self.log.events.iter_mut().find(is_it) else {
            let text = format!("halted at {commit}/{ordinal}, which has no event");
            return self.note(TraceEvent::Strange(text));
        };
        match event.poison {
            Poison::Keyless if sure && !self.server.is_held() => {
                // Everything before it is delivered, so nothing else is given up.
                let item = event.item;
                self.note(TraceEvent::GivenUp { item });
                self.foreign_client_sets_the_slot(Lsn::new(commit.as_u64() + 1));
            }
            Poison::Keyless => {}
            Poison::TooLarge | Poison::TooLargeHere | Poison::Forbidden | Poison::None => {
                event.forgiven = true;
            }
        }
    }
}

impl World {
    /// Whether the destination forbids, of each partition, the first event that is not published. For
    /// walpost that is no different from an outage: every other event has to come after one of them, so
    /// none can be accepted.
    pub(crate) fn is_undecidable(&self) -> bool {
        let mut is_seen = [false; PARTITIONS];
        self.unpublished().all(|event| {
            mem::replace(&mut is_seen[event.partition()], true) || event.is(Poison::Forbidden)
        }) && is_seen.contains(&true)
    }

    /// Allows the first forbidden event, which the log names.
    pub(crate) fn allow_the_first(&mut self) {
        let first = self.unpublished().find(|event| event.is(Poison::Forbidden));
        if let Some((commit, ordinal)) = first.map(|event| (event.commit, event.ordinal)) {
            self.deal_with(commit, ordinal, true);
        }
    }

    /// What is to be read again after a failure, and not yet in a committed Kafka transaction.
    fn unpublished(&self) -> impl Iterator<Item = &Event> {
        let state = &self.broker.state;
        let committed = self.schedule.exactly_once.then_some(state.acked_upto);
        let from = committed.unwrap_or_default().max(self.server.confirmed);
        let partial = state.partial.filter(|_| committed.is_some());
        self.log.events.iter().filter(move |event| {
            let is_before = partial.is_some_and(|partial| {
                (event.commit, event.ordinal) < (partial.next.commit_lsn, partial.next.ordinal)
            });
            event.commit >= from && !is_before
        })
    }
}

/// Runs one process to its end.
async fn run(
    world: &Shared,
    process: usize,
    life: &Life,
    over: &mut watch::Receiver<bool>,
) -> Exit {
    let (handle, stop) = stop_channel();
    let (core, settings, catch_up, state) = {
        let world = world.lock();
        let drain_timeout = Duration::from_millis(world.schedule.drain_timeout_ms);
        let core = core(&world.schedule);
        let catch_up = world.schedule.threshold.map(CatchUp::above).unwrap_or_default();
        let settings = RelaySettings { drain_timeout, until: life.until, owns_thread: false };
        let state = world.schedule.state_topic.then(|| CommitLimits {
            interval: Duration::from_millis(world.schedule.commit_interval_ms),
            bytes: world.schedule.transaction_bytes,
            timeout: Duration::from_secs(10),
        });
        let core = if world.schedule.exactly_once { core.exactly_once() } else { core };
        (core, settings, catch_up, state)
    };
    let source = SimSource { world: world.clone(), process, catch_up };
    let relay = Relay::new(core, Box::new(SimSink::new(world, process)), source, settings, stop);
    let relay = match state {
        None => relay,
        Some(commits) => {
            let store = Box::new(SimStore::new(world, process));
            relay.with_state(store, state_settings(commits, world.lock().layout))
        }
    };
    let relay = if world.lock().schedule.registry_ms.is_some() {
        let (schemas, asking) = Schemas::new(relay.metrics());
        tokio::spawn(registry(world.clone(), asking));
        relay.with_schemas(schemas)
    } else {
        relay
    };
    let mut relay = Box::pin(relay.run());
    let ended = tokio::select! {
        biased;
        ended = wakes(world, &mut relay, life.killed_after_wakes) => ended,
        () = death(world, life) => None,
        () = restored(world) => None,
        () = orders(world, process, life, &handle, over) => None,
    };
    drop(relay);
    ended.map_or(Exit::Killed, exit_of)
}

/// Answers for as long as the relay asks: late, for what it wants at last, and not for ever.
async fn registry(world: Shared, (mut wants, found): Asking) {
    let within = || {
        let mut world = world.lock();
        let longest = world.schedule.registry_ms.filter(|_| !world.calm).unwrap_or_default();
        Duration::from_millis(world.rng.u64(0..=longest))
    };
    while let Some(mut wanted) = wants.recv().await {
        // What is wanted meanwhile replaces it.
        while let Ok(Some(newer)) = timeout(within(), wants.recv()).await {
            wanted = newer;
        }
        let Some(schema) = wanted else { continue };
        let known = Known::Schema { id: 7, kind: SchemaKind::Avro, has_rules: false };
        let _ = found.send(Learned::Schema(schema.clone(), Some(known)));
        if within() > Duration::from_millis(100) {
            sleep(within()).await;
            let _ = found.send(Learned::Schema(schema, None));
        }
    }
}

/// Polls the relay, at most this many times while faults are injected.
async fn wakes<F: Future>(
    world: &Shared,
    relay: &mut Pin<Box<F>>,
    most: Option<u64>,
) -> Option<F::Output> {
    let mut wakes = 0;
    poll_fn(|context| match relay.as_mut().poll(context) {
        Poll::Ready(ended) => Poll::Ready(Some(ended)),
        Poll::Pending => {
            wakes += 1;
            let dies = most.is_some_and(|most| wakes > most) && !world.lock().calm;
            if dies { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}

async fn death(world: &Shared, life: &Life) {
    if let Some(after) = life.killed_after_ms {
        sleep(Duration::from_millis(after)).await;
        if !world.lock().calm {
            return;
        }
    }
    pending::<()>().await;
}

/// Completes once the server is to be restored: it goes down, and walpost with it.
async fn restored(world: &Shared) {
    while !world.lock().is_restored {
        sleep(Duration::from_millis(7)).await;
    }
}

/// Sends stop signals as scheduled, and at the end of the schedule. Never completes.
async fn orders(
    world: &Shared,
    process: usize,
    life: &Life,
    handle: &StopHandle,
    over: &mut watch::Receiver<bool>,
) {
    let tell = |twice| {
        world.lock().note(TraceEvent::Told { process, twice });
        handle.stop();
    };
    if let Some(after) = life.told_after_ms {
        sleep(Duration::from_millis(after)).await;
        tell(false);
        if let Some(after) = life.told_again_after_ms {
            sleep(Duration::from_millis(after)).await;
            tell(true);
        }
    } else {
        tokio::select! {
            biased;
            () = all_over(over) => {}
            () = given_up(world, process) => {}
        }
        tell(false);
    }
    pending::<()>().await;
}

async fn all_over(over: &mut watch::Receiver<bool>) {
    if over.wait_for(|over| *over).await.is_err() {
        pending::<()>().await;
    }
}

/// Completes once an operator gives up the records in flight of a process whose slot is unusable:
/// they may be in a producer that is stuck for long.
async fn given_up(world: &Shared, process: usize) {
    let halts = || {
        let world = world.lock();
        let is_unusable = world.trace.iter().any(|(_, event)| {
            matches!(event, TraceEvent::NoSession { process: one, error: SourceError::Slot(_) }
                if *one == process)
        });
        world.calm && (is_unusable || !world.server.slot_is_there)
    };
    while !halts() {
        sleep(GIVEN_UP).await;
    }
    sleep(GIVEN_UP).await;
}

fn state_settings(commits: CommitLimits, layout: u8) -> StateSettings {
    StateSettings {
        delivery_id: "walpost".to_owned(),
        name: "state".to_owned(),
        place: "state topic state".to_owned(),
        layout: ConfiguredLayout {
            // Nobody writes such messages.
            plain_message_prefix: Some(layout.to_string()),
            ..ConfiguredLayout::default()
        },
        skips: false,
        lossy_store: None,
        rows: None,
        commits,
    }
}

fn core(schedule: &Schedule) -> Core {
    let Schedule { budget_bytes, policy, registry_ms, .. } = *schedule;
    let tables = (0..OUTBOXES).map(|at| TableName::from(&relation(at))).collect();
    let outbox = Outbox::new(OutboxConfig {
        tables,
        columns: ColumnNames::default(),
        message_prefix: Some("outbox".into()),
        ..OutboxConfig::default()
    });
    let subject = || "{topic}-value".parse().expect("a template");
    let framed = registry_ms.map(|_| ValueEncoding::Frame(SchemaChoice::Version(subject(), None)));
    let config = RecordConfig::to("t.{aggregate_type}".parse().expect("a template"));
    let router = Router::new(RecordConfig { encoding: framed, ..config });
    let policies = Policies {
        too_large: policy,
        missing_field: policy,
        refused: policy,
        dead_letter_topic: DEAD_LETTERS.to_owned(),
        ..Policies::default()
    };
    Core::new(outbox, router, budget_bytes).with_policies(policies)
}

fn exit_of(ended: Result<Summary, RelayError>) -> Exit {
    match ended {
        Ok(summary) => Exit::Clean(summary),
        Err(RelayError::Aborted) => Exit::Aborted,
        Err(
            RelayError::Unconfirmed(_) | RelayError::Unreached { .. } | RelayError::NeverConnected,
        ) => Exit::Unconfirmed,
        Err(RelayError::Unauthenticated { .. }) => Exit::Unauthenticated,
        Err(RelayError::Sink(_) | RelayError::Regressed { .. } | RelayError::Registry(_)) => {
            Exit::Sink
        }
        Err(RelayError::Source(error)) => Exit::Source(error),
        Err(RelayError::Halt { halt, remedy }) => {
            let sure = !remedy.starts_with("records before it were not delivered");
            let position = halt.poison().map(|poison| poison.position);
            let commit = position.map_or(Lsn::ZERO, |position| position.commit_lsn);
            let ordinal = position.map_or(0, |position| position.ordinal);
            Exit::Halted { commit, ordinal, sure, text: format!("{halt}; {remedy}") }
        }
    }
}
