//! The position in the key beside a Redis stream: see [`crate::sink`]'s `redis` for its fields.
//!
//! A thread of its own has a connection of its own. Opening the key writes a claim, by which the
//! sink's entries and this store's writes are those of one process.

use std::future::Future;
use std::pin::Pin;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{State, StateEvent, StateFailure, StateKey, StateStore};
use crate::sink::redis::{
    Claims, Connection, EntryId, Failure, Opened, RedisConfig, RedisSource, adopt, connect, nonce,
    open, require_replicas, write_state,
};

/// Timeout for each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// The state key of a stream.
pub struct RedisStateStore {
    commands: mpsc::UnboundedSender<Command>,
    events: mpsc::UnboundedReceiver<StateEvent>,
    /// Received by [`StateStore::wait`].
    next: Option<StateEvent>,
}

enum Command {
    Open(StateKey),
    Write(State),
    Adopt(State),
}

impl RedisStateStore {
    /// A store on this server, whose openings `claims` has. `checks`: a stream that somebody else
    /// has written to, or deleted, cannot be opened; otherwise it can, to be adopted.
    pub(crate) fn new(source: RedisSource, claims: Claims, checks: bool) -> Self {
        let (commands, orders) = mpsc::unbounded_channel();
        let (reports, events) = mpsc::unbounded_channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // Without it the channel is closed, which is seen with the first order.
            let Ok(runtime) = runtime else { return };
            let worker = Worker { source, claims, checks, open: None };
            runtime.block_on(worker.work(orders, &reports));
            runtime.shutdown_background();
        });
        Self { commands, events, next: None }
    }

    fn order(&mut self, command: Command) {
        if self.commands.send(command).is_err() {
            let reason = "the thread of the state key has ended".to_owned();
            self.next = Some(StateEvent::Failed(StateFailure::Unavailable(reason)));
        }
    }
}

impl StateStore for RedisStateStore {
    fn open(&mut self, key: &StateKey) {
        self.order(Command::Open(key.clone()));
    }

    fn write(&mut self, state: &State) {
        self.order(Command::Write(state.clone()));
    }

    fn adopt(&mut self, state: &State) {
        self.order(Command::Adopt(state.clone()));
    }

    fn take_event(&mut self) -> Option<StateEvent> {
        self.next.take().or_else(|| self.events.try_recv().ok())
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            if self.next.is_none() {
                match self.events.recv().await {
                    Some(event) => self.next = Some(event),
                    None => std::future::pending().await,
                }
            }
        })
    }
}

struct Worker {
    source: RedisSource,
    claims: Claims,
    checks: bool,
    open: Option<OpenKey>,
}

/// The key that is open, and the connection to it.
struct OpenKey {
    connection: Connection,
    config: RedisConfig,
    owner: String,
    claim: String,
    /// The highest generation that was used, as far as known.
    generation: u8,
    /// The stream's last id when it was opened.
    found: Option<EntryId>,
}

impl Worker {
    /// Executes orders until the store is gone.
    async fn work(
        mut self,
        mut orders: mpsc::UnboundedReceiver<Command>,
        reports: &mpsc::UnboundedSender<StateEvent>,
    ) {
        while let Some(command) = orders.recv().await {
            let step = async {
                match command {
                    Command::Open(key) => self.open(&key).await,
                    Command::Write(state) => self.write(&state).await,
                    Command::Adopt(state) => self.adopt(&state).await,
                }
            };
            let late = || {
                let reason = format!("Redis has not answered for {STEP_TIMEOUT:?}");
                Err(StateFailure::Unavailable(reason))
            };
            let done = timeout(STEP_TIMEOUT, step).await.unwrap_or_else(|_| late());
            let event = done.unwrap_or_else(|failure| {
                self.open = None;
                StateEvent::Failed(failure)
            });
            if reports.send(event).is_err() {
                return;
            }
        }
    }

    async fn open(&mut self, key: &StateKey) -> Result<StateEvent, StateFailure> {
        self.open = None;
        let config = self.source.read().map_err(StateFailure::Unavailable)?;
        let connection = connect(&config).await?;
        let (owner, claim) = (key.names().to_string(), nonce());
        let mut client = connection.client.clone();
        let opened = open(&mut client, &config, &owner, &claim).await?;
        let (state, published, generation, found) = match opened {
            Opened::None(found) => {
                let generation = found.map(EntryId::generation).unwrap_or_default();
                (None, None, generation, found)
            }
            Opened::Others(other) => {
                return Err(StateFailure::Unreadable(format!(
                    "stream {} belongs to another walpost, or another server or slot of this one: \
                     {other}, and this is {owner}. Set redis.stream to another stream; or, if the \
                     other one is gone for good, delete the state key {} and run `walpost adopt \
                     --apply`",
                    config.stream,
                    crate::sink::redis::owner_key(&config.stream)
                )));
            }
            Opened::Ours(contents) => {
                if self.checks {
                    contents.check(&config.stream)?;
                }
                let state = State::of_json(contents.state.as_bytes())
                    .map_err(|error| StateFailure::Unreadable(error.to_string()))?;
                let found = contents.found;
                let highest = found.map(EntryId::generation).unwrap_or_default();
                let generation = highest.max(contents.generation);
                // An earlier generation says nothing of this one's positions.
                let last = contents.last;
                let is_this = last.generation() == contents.generation;
                (Some(state), last.position().filter(|_| is_this), generation, found)
            }
        };
        if state.is_some() {
            require_replicas(&mut client, &config).await?;
            self.claims.set(Some(claim.clone()));
        }
        self.open = Some(OpenKey { connection, config, owner, claim, generation, found });
        Ok(StateEvent::Opened { state, cluster: None, published })
    }

    async fn write(&mut self, state: &State) -> Result<StateEvent, StateFailure> {
        let OpenKey { connection, config, claim, .. } = self.open.as_ref().ok_or_else(not_open)?;
        let mut client = connection.client.clone();
        write_state(&mut client, config, claim, &state.to_json()).await?;
        require_replicas(&mut client, config).await?;
        Ok(StateEvent::Written)
    }

    /// Everything from now on has a higher generation than what is in the stream.
    async fn adopt(&mut self, state: &State) -> Result<StateEvent, StateFailure> {
        let OpenKey { connection, config, owner, claim, generation, found } =
            self.open.as_ref().ok_or_else(not_open)?;
        let next = generation.checked_add(1).ok_or_else(|| {
            StateFailure::Unreadable(format!(
                "stream {} has had all 255 generations of ids, or an id that is as high: set \
                 redis.stream to another stream",
                config.stream
            ))
        })?;
        let mut client = connection.client.clone();
        let (who, behind) = ((owner.as_str(), claim.as_str()), (*found, next));
        adopt(&mut client, config, who, behind, &state.to_json()).await?;
        require_replicas(&mut client, config).await?;
        Ok(StateEvent::Written)
    }
}

fn not_open() -> StateFailure {
    StateFailure::Unavailable("it is not open".to_owned())
}

impl From<Failure> for StateFailure {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreachable(reason) | Failure::Unusable(reason) => Self::Unavailable(reason),
            Failure::Unauthenticated(reason) => Self::Unauthenticated(reason),
            Failure::Unauthorized(reason) => Self::Unauthorized(reason),
            Failure::Fenced => Self::Fenced,
            Failure::Stream(reason) => Self::Unreadable(reason),
        }
    }
}
