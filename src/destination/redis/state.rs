//! The position in the key beside a Redis stream: see `script` for its fields.
//!
//! A thread of its own has a connection of its own. Opening the key writes a claim, by which the
//! sink's entries and this store's writes are those of one process. A lost connection does not end the
//! claim, since a new one makes the sink produce again what is in flight: the position is then written
//! over another connection.

use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::{sleep, timeout};

use super::script::Opened;
use crate::destination::parts::Failure;
use crate::destination::parts::claims::{Claims, nonce};
use crate::destination::redis::{
    Connection, EntryId, LogSync, RedisConfig, RedisSource, adopt, connect, lacks_replicas, open,
    owner_key, ping, write_state,
};
use crate::position::EventPosition;
use crate::state::handle::{MayLose, Order, StoreHandle};
use crate::state::{State, StateEvent, StateFailure, StateKey, StoredPosition};

/// Timeout for each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// How often an idle connection is tried.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// A store in the state key of a stream of this server, whose openings `claims` has. `checks`: a
/// stream that somebody else has written to, or deleted, cannot be opened; otherwise it can, to be
/// adopted.
pub(crate) fn redis_state(
    source: RedisSource,
    claims: Claims<EntryId>,
    checks: bool,
) -> StoreHandle {
    let (handle, (orders, reports)) = StoreHandle::new("state key");
    let may_lose = handle.loss();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        // Without it the channel is closed, which is seen with the first order.
        let Ok(runtime) = runtime else { return };
        let (synced, next, open) = (LogSync::default(), None, None);
        let mut worker = Worker { source, claims, checks, may_lose, synced, orders, next, open };
        runtime.block_on(async {
            while let Some(order) = worker.next_order().await {
                let event = worker.execute(order).await;
                if reports.send(event).is_err() {
                    return;
                }
            }
        });
        runtime.shutdown_background();
    });
    handle
}

struct Worker {
    source: RedisSource,
    claims: Claims<EntryId>,
    checks: bool,
    may_lose: MayLose,
    synced: LogSync,
    orders: UnboundedReceiver<Order>,
    /// Received already.
    next: Option<Order>,
    open: Option<OpenKey>,
}

/// The key that is open, and the connection to it.
struct OpenKey {
    /// `None`: it was lost.
    connection: Option<Connection>,
    config: RedisConfig,
    owner: String,
    claim: String,
    /// How many writes were tried under this claim. One that Redis executes late, over a lost
    /// connection, does not replace a later one.
    serial: u64,
    /// The highest generation that was used, as far as known.
    generation: u8,
    /// The stream's last id when it was opened.
    found: Option<EntryId>,
}

impl Worker {
    /// The next order; `None`: the store is gone.
    async fn next_order(&mut self) -> Option<Order> {
        if let Some(order) = self.next.take() {
            return Some(order);
        }
        loop {
            let open = self.open.as_mut().filter(|open| open.connection.is_some());
            tokio::select! {
                biased;
                order = self.orders.recv() => return order,
                () = sleep(PING_INTERVAL), if open.is_some() => {}
            }
            // A write would find out too, and take as long as this.
            if let Some(OpenKey { connection, config, .. }) = open
                && let Some(used) = connection
                && ping(&mut used.client, config).await.is_err()
            {
                *connection = None;
            }
        }
    }

    async fn execute(&mut self, order: Order) -> StateEvent {
        let done = match order {
            Order::Open(key) => self.open(&key).await,
            Order::Write(state) => self.write(&state).await,
            Order::Adopt(state) => self.adopt(&state).await,
        };
        done.unwrap_or_else(|failure| {
            self.open = None;
            StateEvent::Failed(failure.into())
        })
    }

    async fn open(&mut self, key: &StateKey) -> Result<StateEvent, Failure> {
        self.open = None;
        let config = self.source.read().map_err(Failure::Unusable)?;
        let connection = within(connect(&config)).await?;
        let (owner, claim) = (key.names().to_string(), nonce());
        let mut client = connection.client.clone();
        let opened = within(open(&mut client, &config, &owner, Some(&claim))).await?;
        let Contents { state, published, generation, found, is_diverged } =
            judged(opened, &config, &owner, self.checks)?;
        if state.is_some() {
            // Also if what follows fails: no other claim is in the key.
            self.claims.set(claim.clone());
            self.replicated(&mut client, &config).await?;
            self.may_lose.set(within(self.synced.wait(&mut client)).await?);
        }
        let connection = Some(connection);
        self.open =
            Some(OpenKey { connection, config, owner, claim, serial: 0, generation, found });
        Ok(StateEvent::Opened {
            state,
            cluster: None,
            published,
            is_diverged,
            transaction_timeout: None,
        })
    }

    async fn write(&mut self, state: &State) -> Result<StateEvent, Failure> {
        match self.try_write(state).await {
            // Once more: the connection may have been lost long ago.
            Err(Failure::Unreachable(_)) => self.try_write(state).await,
            other => other,
        }
    }

    async fn try_write(&mut self, state: &State) -> Result<StateEvent, Failure> {
        let open = self.open.as_mut().ok_or_else(not_open)?;
        let connection = if let Some(connection) = open.connection.take() {
            connection
        } else {
            open.config = self.source.read().map_err(Failure::Unusable)?;
            within(connect(&open.config)).await?
        };
        open.serial += 1;
        let mut client = connection.client.clone();
        let config = open.config.clone();
        let (under, json) = ((open.claim.as_str(), open.serial), state.to_json());
        let known = self.claims.last();
        within(write_state(&mut client, &config, under, &json, known)).await?;
        self.replicated(&mut client, &config).await?;
        self.may_lose.set(within(self.synced.wait(&mut client)).await?);
        if let Some(open) = &mut self.open {
            open.connection = Some(connection);
        }
        Ok(StateEvent::Written)
    }

    /// Waits until enough replicas have what this connection has written, or for another order. A
    /// failure would have the key opened again, which makes nothing quicker. An operator's command does
    /// not wait.
    async fn replicated(
        &mut self,
        client: &mut redis::aio::MultiplexedConnection,
        config: &RedisConfig,
    ) -> Result<(), Failure> {
        while let Some(reason) = lacks_replicas(client, config).await? {
            match self.orders.try_recv() {
                Ok(order) => self.next = Some(order),
                Err(TryRecvError::Empty) if self.checks => continue,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
            return Err(Failure::Unusable(reason));
        }
        Ok(())
    }

    /// Everything from now on has a higher generation than what is in the stream.
    async fn adopt(&mut self, state: &State) -> Result<StateEvent, Failure> {
        let OpenKey { connection, config, owner, claim, generation, found, .. } =
            self.open.as_ref().ok_or_else(not_open)?;
        let next = EntryId::next_generation(*generation).ok_or_else(|| {
            Failure::Unsupported(format!(
                "stream {} has had all 127 generations of ids, or an id that is as high: set \
                 redis.stream to another stream",
                config.stream
            ))
        })?;
        let mut client = connection.as_ref().ok_or_else(not_open)?.client.clone();
        let (who, behind) = ((owner.as_str(), claim.as_str()), (*found, next));
        let state = state.to_json();
        within(adopt(&mut client, config, who, behind, &state)).await?;
        match lacks_replicas(&mut client, config).await? {
            None => Ok(StateEvent::Written),
            Some(reason) => Err(Failure::Unusable(reason)),
        }
    }
}

/// The usable contents of a state key.
struct Contents {
    state: Option<State>,
    /// The last event of this generation.
    published: Option<EventPosition>,
    /// The highest generation that was used, as far as known.
    generation: u8,
    /// The stream's last id.
    found: Option<EntryId>,
    /// Whether the stream does not end with an entry of walpost's.
    is_diverged: bool,
}

/// Judges what `owner` has found. `checks`: the stream must end with an entry of walpost's.
fn judged(
    opened: Opened,
    config: &RedisConfig,
    owner: &str,
    checks: bool,
) -> Result<Contents, Failure> {
    match opened {
        Opened::None(found) => {
            let generation = found.map(EntryId::generation).unwrap_or_default();
            Ok(Contents { state: None, published: None, generation, found, is_diverged: false })
        }
        Opened::Others(other) => Err(Failure::Unsupported(format!(
            "stream {} belongs to another walpost, or another server or slot of this one: {other}, \
             and this is {owner}. Set redis.stream to another stream; or, if the other one is gone \
             for good, delete the state key {} and run `walpost adopt --apply`",
            config.stream,
            owner_key(&config.stream)
        ))),
        Opened::Ours(contents) => {
            let checked = contents.check(&config.stream);
            let is_diverged = checked.is_err();
            if checks {
                checked?;
            }
            let state = State::of_json(contents.state.as_bytes())
                .map_err(|error| Failure::Unsupported(error.to_string()))?;
            let found = contents.found;
            let highest = found.map(EntryId::generation).unwrap_or_default();
            let generation = highest.max(contents.generation);
            // An earlier generation says nothing of this one's positions.
            let last = contents.last;
            let is_this = last.generation() == contents.generation;
            let published = last.position().filter(|_| is_this);
            Ok(Contents { state: Some(state), published, generation, found, is_diverged })
        }
    }
}

/// Reads what opening the key of `key` would find, and changes nothing.
pub(crate) async fn read_redis_state(
    connection: &Connection,
    config: &RedisConfig,
    key: &StateKey,
) -> Result<Option<StoredPosition>, StateFailure> {
    let owner = key.names().to_string();
    // A replica may lack what the primary has.
    if matches!(connection.greeting.role.as_str(), "replica" | "slave") {
        let reason = "this server is a replica: name the primary in redis.url";
        return Err(Failure::Unusable(reason.to_owned()).into());
    }
    let mut client = connection.client.clone();
    let opened = within(open(&mut client, config, &owner, None)).await?;
    let Contents { state, published, .. } = judged(opened, config, &owner, true)?;
    Ok(state.map(|state| StoredPosition { state, published }))
}

/// The same within the time of a step.
async fn within<T>(step: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = || Err(Failure::Unreachable(format!("Redis has not answered for {STEP_TIMEOUT:?}")));
    timeout(STEP_TIMEOUT, step).await.unwrap_or_else(|_| late())
}

fn not_open() -> Failure {
    Failure::Unusable("it is not open".to_owned())
}
