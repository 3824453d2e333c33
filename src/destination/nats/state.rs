//! The position in the key-value bucket beside a stream of NATS: see `state_key` for
//! its members.
//!
//! A thread of its own has a connection of its own. Opening the key writes a claim, by which the
//! sink's messages and this store's writes are those of one process.

use std::thread;
use std::time::Duration;

use async_nats::Client;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::timeout;

use crate::destination::nats::{
    Connection, Entry, KEY, Last, NatsConfig, NatsSource, StreamInfo, adopt, bucket, connect,
    last_event, open, read, usable_stream, write_state,
};
use crate::destination::parts::Failure;
use crate::destination::parts::claims::{Claims, nonce};
use crate::state::handle::{MayLose, Order, StoreHandle};
use crate::state::{State, StateEvent, StateFailure, StateKey, StoredPosition};

/// Timeout for each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// A store in the state key of a stream on these servers, whose openings `claims` has. `checks`: a
/// stream that somebody else has published to, or set back, cannot be opened; otherwise it can, to be
/// adopted.
pub(crate) fn nats_state(
    source: NatsSource,
    claims: Claims<Option<Last>>,
    checks: bool,
) -> StoreHandle {
    let (handle, (orders, reports)) = StoreHandle::new("state key");
    let may_lose = handle.loss();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        // Without it the channel is closed, which is seen with the first order.
        let Ok(runtime) = runtime else { return };
        let worker = Worker { source, claims, checks, may_lose, open: None };
        runtime.block_on(worker.work(orders, &reports));
        runtime.shutdown_background();
    });
    handle
}

struct Worker {
    source: NatsSource,
    claims: Claims<Option<Last>>,
    checks: bool,
    may_lose: MayLose,
    open: Option<OpenKey>,
}

/// The key that is open, and the connection to it.
struct OpenKey {
    connection: Connection,
    config: NatsConfig,
    owner: String,
    claim: String,
    entry: Option<Entry>,
    /// Whether the stream had lost acknowledged messages. The sink sees that too, and ends the run: until
    /// then no position is written past what is left.
    is_behind: bool,
}

impl Worker {
    /// Executes orders until the store is gone.
    async fn work(
        mut self,
        mut orders: UnboundedReceiver<Order>,
        reports: &UnboundedSender<StateEvent>,
    ) {
        while let Some(order) = orders.recv().await {
            let step = async {
                match order {
                    Order::Open(key) => self.open(&key).await,
                    Order::Write(state) => self.write(&state).await,
                    Order::Adopt(state) => self.adopt(&state).await,
                }
            };
            let late = || {
                let reason = format!("NATS has not answered for {STEP_TIMEOUT:?}");
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
        // The sync itself takes a moment.
        self.may_lose.set(config.sync_interval + config.sync_interval / 8);
        let connection = connect(&config).await?;
        let (owner, claim) = (key.names().to_string(), nonce());
        let client = &connection.client;
        let opened = connection.or_failed(open(client, &config, &owner, &claim)).await?;
        let Some(entry) = opened.entry else {
            let entry = None;
            self.open = Some(OpenKey { connection, config, owner, claim, entry, is_behind: false });
            return Ok(StateEvent::Opened {
                state: None,
                cluster: None,
                published: None,
                is_diverged: false,
                transaction_timeout: None,
            });
        };
        let acknowledged = self.claims.last().map_or(0, |last| last.seq);
        let is_behind = opened.stream.state.last_seq < acknowledged;
        let known = (&entry, &opened.stream);
        let judged = judged(client, &config, &owner, known, self.checks);
        let (state, last, is_diverged) = connection.or_failed(judged).await?;
        self.claims.set_last(last);
        self.claims.set(claim.clone());
        let entry = Some(entry);
        self.open = Some(OpenKey { connection, config, owner, claim, entry, is_behind });
        let published = last.map(|last| last.position);
        Ok(StateEvent::Opened {
            state: Some(state),
            cluster: None,
            published,
            is_diverged,
            transaction_timeout: None,
        })
    }

    async fn write(&mut self, state: &State) -> Result<StateEvent, StateFailure> {
        let last = self.claims.last();
        let OpenKey { connection, config, entry, is_behind, .. } =
            self.open.as_mut().ok_or_else(not_open)?;
        if *is_behind {
            let reason = format!("stream {} has lost acknowledged messages", config.stream);
            return Err(StateFailure::Unavailable(reason));
        }
        let entry = entry.as_mut().ok_or_else(not_open)?;
        let write = write_state(&connection.client, config, entry, (state.to_json(), last));
        connection.or_failed(write).await?;
        Ok(StateEvent::Written)
    }

    /// Everything from now on has a higher generation than what is in the stream.
    async fn adopt(&mut self, state: &State) -> Result<StateEvent, StateFailure> {
        let OpenKey { connection, config, owner, claim, entry, .. } =
            self.open.as_mut().ok_or_else(not_open)?;
        let who = (owner.as_str(), claim.as_str());
        let adopted = adopt(&connection.client, config, who, entry.take(), state.to_json());
        *entry = Some(connection.or_failed(adopted).await?);
        Ok(StateEvent::Written)
    }
}

/// Judges what `owner` has found: the position, the last event, and whether the stream does not end with a
/// message of walpost's, which is an error if it `checks` that.
async fn judged(
    client: &Client,
    config: &NatsConfig,
    owner: &str,
    (entry, stream): (&Entry, &StreamInfo),
    checks: bool,
) -> Result<(State, Option<Last>, bool), Failure> {
    if entry.owner() != owner {
        return Err(Failure::Unsupported(format!(
            "stream {} belongs to another walpost, or another server or slot of this one: {}, and \
             this is {owner}. Set nats.stream to another stream; or, if the other one is gone for \
             good, delete the state key {KEY} in the bucket {} and run `walpost adopt --apply`",
            config.stream,
            entry.owner(),
            bucket(&config.stream)
        )));
    }
    let (last, is_diverged) = match last_event(client, config, entry, stream).await {
        Err(Failure::Stream(_)) if !checks => (None, true),
        found => (found?, false),
    };
    let state = State::of_json(entry.state().as_bytes())
        .map_err(|error| Failure::Unsupported(error.to_string()))?;
    let state = match entry.reached(last) {
        Some(reached) => state.set_back(reached),
        None => state,
    };
    Ok((state, last, is_diverged))
}

/// Reads what opening the key of `key` would find, and changes nothing.
pub(crate) async fn read_nats_state(
    connection: &Connection,
    config: &NatsConfig,
    key: &StateKey,
) -> Result<Option<StoredPosition>, StateFailure> {
    let owner = key.names().to_string();
    let client = &connection.client;
    let reading = async {
        // A walpost at work publishes before it writes the key.
        let entry = read(client, config).await?;
        let stream = usable_stream(client, config).await?;
        let Some(entry) = entry else { return Ok(None) };
        let (state, last, _) = judged(client, config, &owner, (&entry, &stream), true).await?;
        let published = last.map(|last| last.position);
        Ok(Some(StoredPosition { state, published }))
    };
    Ok(connection.or_failed(reading).await?)
}

fn not_open() -> StateFailure {
    StateFailure::Unavailable("it is not open".to_owned())
}
