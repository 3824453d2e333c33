//! What the relay knows of schemas, and where it asks for those that it needs: a task on the other side of two
//! channels, so that a registry that is away holds up one message, and no keepalive.

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::record::{Known, SchemaRef};
use crate::sink::BoxFuture;
use walpost_core::relay::Core;

/// What was found out about a schema.
#[derive(Debug)]
pub enum Learned {
    /// What the registry has; `None`: it is to be asked again when the schema is needed.
    Schema(SchemaRef, Option<Known>),
    /// The registry refuses walpost's credentials, for this reason; it is asked again.
    Denied(String),
}

/// The relay's side.
#[derive(Debug)]
pub struct Schemas {
    wants: UnboundedSender<Option<SchemaRef>>,
    learned: UnboundedReceiver<Learned>,
    /// What [`Schemas::arrived`] has received.
    ready: Option<Learned>,
    asked: Option<SchemaRef>,
    held_since: Option<Instant>,
    has_learned: bool,
    metrics: Arc<Metrics>,
    /// The task, until it is started.
    task: Option<Task>,
}

/// A task in a form that can be named.
struct Task(BoxFuture<'static, ()>);

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task")
    }
}

/// The side of the task that asks the registry: it takes what is wanted now, or that nothing is any more, which
/// replaces what was wanted before, and sends what it finds out.
pub type Asking = (UnboundedReceiver<Option<SchemaRef>>, UnboundedSender<Learned>);

impl Schemas {
    /// Both sides.
    pub fn new(metrics: Arc<Metrics>) -> (Self, Asking) {
        let (wants, wanted) = unbounded_channel();
        let (found, learned) = unbounded_channel();
        let (ready, asked, held_since, has_learned, task) = (None, None, None, false, None);
        let own = Self { wants, learned, ready, asked, held_since, has_learned, metrics, task };
        (own, (wanted, found))
    }

    /// The same, with the task that asks, which runs with the relay.
    #[must_use]
    pub(crate) fn asking_by(self, task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { task: Some(Task(Box::pin(task))), ..self }
    }

    /// Hands the core what was learned, and asks for what it wants. `is_starting`: credentials that are refused
    /// were never accepted, which is the error.
    pub(super) fn serve(&mut self, core: &mut Core, is_starting: bool) -> Result<(), String> {
        if let Some(Task(task)) = self.task.take() {
            tokio::spawn(task);
        }
        while let Some(learned) = self.ready.take().or_else(|| self.learned.try_recv().ok()) {
            match learned {
                Learned::Schema(schema, known) => {
                    self.has_learned |= known.is_some();
                    self.asked.take_if(|asked| *asked == schema);
                    core.learn(schema, known);
                    self.metrics.schemas.known.set(core.schemas() as u64);
                }
                Learned::Denied(reason) if is_starting && !self.has_learned => return Err(reason),
                Learned::Denied(_) => {}
            }
        }
        let wanted = core.wanted_schema();
        if wanted.is_none() && self.asked.is_none() && self.held_since.is_none() {
            return Ok(());
        }
        self.note_wait(wanted.is_some());
        if wanted != self.asked.as_ref() {
            self.asked = wanted.cloned();
            // The task ends with the relay.
            let _ = self.wants.send(self.asked.clone());
        }
        Ok(())
    }

    /// Counts the time for which a message waits.
    fn note_wait(&mut self, waits: bool) {
        let now = Instant::now();
        if let Some(since) = self.held_since {
            let held = now.saturating_duration_since(since).as_micros();
            self.metrics.schemas.wait_micros.add(u64::try_from(held).unwrap_or(u64::MAX));
        }
        self.held_since = waits.then_some(now);
    }

    /// Completes once something was learned. Cancel-safe.
    pub(super) async fn arrived(&mut self) {
        if self.ready.is_none() {
            match self.learned.recv().await {
                Some(learned) => self.ready = Some(learned),
                None => std::future::pending().await,
            }
        }
    }
}
