//! A lane: one connection, with one request in flight.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use secrecy::ExposeSecret as _;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::config::{HttpConfig, HttpSource};
use super::connection::{Connection, connect, is_of_tls};
use super::patience::{Limits, Patience};
use super::queue::{Again, Queue, Queued};
use super::request::Outgoing;
use super::verdict::{Verdict, verdict};
use crate::destination::parts::Failure;
use crate::destination::parts::attempts::{Attempts, REJECTIONS, chain};
use crate::destination::parts::delays::delays;
use crate::excerpt::at_most;
use crate::outlet::{Ground, Refusal};
use crate::sink::Outcome;

const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Minimum and maximum delay between two attempts.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// Minimum and maximum pause between two requests that may be rejected by one machine and not by another.
/// Chance in them keeps lanes from taking turns with a balancer.
const REJECTION_PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(20)];

/// How long a connection is used: a load balancer gets to place it anew, and a changed secret is
/// read.
const LIFETIME: Duration = Duration::from_secs(300);

/// How much of an answer's body is read, in bytes, and how long; then the connection is closed.
const BODY_MAX: usize = 64 << 10;
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// How much of it is logged at `debug`, in characters.
const SHOWN: usize = 200;

/// Minimum interval between the connections of an idle lane, which servers close.
const WATCH_INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct Lane {
    number: u16,
    source: HttpSource,
    epoch: watch::Receiver<u64>,
    queue: Arc<Queue>,
    attempts: Arc<Attempts<Failing>>,
    /// How many suspects there were, in all lanes. What is accepted later is evidence, so it has to be sent
    /// with the configuration of then: over a connection that was opened since.
    suspects: Arc<AtomicU64>,
    open: Option<Open>,
    /// The body of the last answer.
    rest: Option<(StatusCode, Incoming)>,
    limits: Limits,
}

/// What fails and recovers by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Failing {
    /// The connection of a lane.
    Lane(u16),
    /// The events of a key.
    Key(u64),
}

/// An open connection, and the configuration that it was opened with.
struct Open {
    connection: Connection,
    config: HttpConfig,
    since: Instant,
    /// See [`Lane::suspects`].
    suspects: u64,
}

/// Nothing more is to be sent: the sink is gone.
struct Gone;

/// Why an event has no answer.
enum Unanswered {
    /// An event that cannot be a request.
    Unmade(String),
    /// A request that was not sent, without a connection.
    Unsent(Failure),
    /// The connection ended.
    Cut(Failure),
    /// The answer took too long.
    Late(Failure),
}

impl Unanswered {
    fn verdict(self) -> Verdict {
        let (failure, patience) = match self {
            Self::Unsent(failure) => (failure, Patience::Endless),
            Self::Unmade(reason) => (Failure::Unusable(reason), Patience::None),
            Self::Cut(failure) => (failure, Patience::Short),
            Self::Late(failure) => (failure, Patience::Long),
        };
        Verdict::Failed { failure, ground: Ground::Other, patience, after: None }
    }
}

/// Waits until the sink is gone.
async fn ended(epoch: &mut watch::Receiver<u64>) -> Gone {
    while epoch.changed().await.is_ok() {}
    Gone
}

impl Lane {
    pub(super) fn new(
        (number, source): (u16, HttpSource),
        epoch: watch::Receiver<u64>,
        (queue, attempts): (Arc<Queue>, Arc<Attempts<Failing>>),
        suspects: Arc<AtomicU64>,
    ) -> Self {
        let (open, rest, limits) = (None, None, Limits::default());
        Self { number, source, epoch, queue, attempts, suspects, open, rest, limits }
    }

    /// Works until the sink is gone.
    pub(super) async fn run(mut self) {
        let (queue, mut epoch) = (Arc::clone(&self.queue), self.epoch.clone());
        loop {
            let queued = tokio::select! {
                biased;
                queued = queue.next() => queued,
                Gone = ended(&mut epoch) => return,
                // One lane suffices.
                never = self.watch(), if self.number == 0 => match never {},
            };
            if let Err(Gone) = self.deliver(queued).await {
                return;
            }
        }
    }

    /// Reports, while nothing is to be sent, whether the endpoint can be reached.
    async fn watch(&mut self) -> Infallible {
        let mut delays = delays(RETRY_DELAYS);
        loop {
            let pause = match self.reach().await {
                Ok(since) => (since + WATCH_INTERVAL).saturating_duration_since(Instant::now()),
                Err(failure) => {
                    self.open = None;
                    self.attempts.fails(Failing::Lane(self.number), failure, None);
                    delays.next().unwrap_or(RETRY_DELAYS[1])
                }
            };
            sleep(pause).await;
        }
    }

    /// Opens a connection that the server wants, and waits for its end. Returns when it was opened.
    async fn reach(&mut self) -> Result<Instant, Failure> {
        self.ready().await?;
        let Some(open) = &mut self.open else { return Ok(Instant::now()) };
        let since = open.since;
        open.connection.is_wanted().await?;
        self.attempts.works(&Failing::Lane(self.number));
        open.connection.ended().await;
        self.open = None;
        Ok(since)
    }

    /// Sends an event until the endpoint takes it, it is a suspect, its epoch is over, or others can be sent
    /// meanwhile.
    async fn deliver(&mut self, mut queued: Queued) -> Result<(), Gone> {
        let mut epoch = self.epoch.clone();
        if queued.delivery.sent.epoch < *epoch.borrow_and_update() {
            self.queue.given_up(queued.order);
            return Ok(());
        }
        loop {
            let attempted = tokio::select! {
                attempted = self.attempt_often(&queued.delivery) => Some(attempted),
                changed = epoch.changed() => {
                    changed.map_err(|_| Gone)?;
                    None
                }
            };
            let (failure, ground, patience, after) = match attempted {
                None => {
                    // A request that was given up must not stay in front of the next one.
                    (self.open, self.rest) = (None, None);
                    self.gives_up(queued.order);
                    return Ok(());
                }
                Some(Verdict::Delivered) => {
                    self.queue.delivered(queued.position, queued.order);
                    self.done(queued, Outcome::Delivered);
                    self.finish().await;
                    return Ok(());
                }
                Some(Verdict::Failed { failure, ground, patience, after }) => {
                    (failure, ground, patience, after)
                }
            };
            if self.queue.fails(&queued, patience, self.limits) {
                self.suspects(queued, &failure, ground).await;
                return Ok(());
            }
            let is_for_all =
                after.is_some() || patience == Patience::Endless && ground != Ground::MissingTopic;
            if matches!(failure, Failure::Unreachable(_)) && patience == Patience::Endless {
                self.queue.is_away();
            }
            let of_lane = Failing::Lane(self.number);
            let failing = if is_for_all { of_lane } else { Failing::Key(queued.order) };
            self.attempts.fails(failing, failure, [queued.delivery.sent.topic.as_str()]);
            if !is_for_all {
                // The endpoint has answered the lane.
                self.attempts.gives_up(&of_lane);
            }
            self.finish().await;
            let delays = queued.delays.get_or_insert_with(|| delays(RETRY_DELAYS));
            let delay = delays.next().unwrap_or(RETRY_DELAYS[1]).max(after.unwrap_or_default());
            if !is_for_all {
                return self.retry_behind_others(queued, delay, &mut epoch).await;
            }
            if !self.pause(delay, queued.order, &mut epoch).await? {
                return Ok(());
            }
        }
    }

    /// Has the event sent again after a delay, and others meanwhile, unless too many keys fail.
    async fn retry_behind_others(
        &self,
        queued: Queued,
        delay: Duration,
        epoch: &mut watch::Receiver<u64>,
    ) -> Result<(), Gone> {
        let order = queued.order;
        let mut again = self.queue.again_at(Instant::now() + delay, queued);
        if let Again::TooMany(queued) = again {
            if !self.pause(delay, order, epoch).await? {
                return Ok(());
            }
            // An event that has waited longer may be accepted by now.
            again = self.queue.again_now(queued);
        }
        if let Again::GivenUp = again {
            self.attempts.gives_up(&Failing::Key(order));
        }
        Ok(())
    }

    /// Waits before an event is sent again. Returns whether it is: another producer may produce it meanwhile.
    async fn pause(
        &self,
        delay: Duration,
        order: u64,
        epoch: &mut watch::Receiver<u64>,
    ) -> Result<bool, Gone> {
        tokio::select! {
            () = sleep(delay) => Ok(true),
            changed = epoch.changed() => {
                self.gives_up(order);
                changed.map(|()| false).map_err(|_| Gone)
            }
        }
    }

    /// Sends an event until it is not rejected, or has been often enough: another of the machines behind the
    /// address may take it.
    async fn attempt_often(&mut self, delivery: &Outgoing) -> Verdict {
        let mut pauses = delays(REJECTION_PAUSES);
        for _ in 1..REJECTIONS {
            match self.attempt(delivery).await {
                Verdict::Failed { patience: Patience::None, .. } => {
                    (self.open, self.rest) = (None, None);
                    sleep(pauses.next().unwrap_or(REJECTION_PAUSES[1])).await;
                }
                verdict => return verdict,
            }
        }
        self.attempt(delivery).await
    }

    /// The event is tried again with the configuration of then, and perhaps by another of the machines behind
    /// the address.
    async fn suspects(&mut self, queued: Queued, failure: &Failure, ground: Ground) {
        self.suspects.fetch_add(1, Ordering::Relaxed);
        self.finish().await;
        self.open = None;
        let refusal = Refusal { ground, may_pass: false, reason: failure.to_string() };
        self.queue.close(&queued);
        self.done(queued, Outcome::Suspect(refusal));
    }

    /// Gives the event up: another producer produces it again.
    fn gives_up(&self, order: u64) {
        self.attempts.gives_up(&Failing::Lane(self.number));
        self.attempts.gives_up(&Failing::Key(order));
        self.queue.given_up(order);
    }

    fn done(&self, queued: Queued, outcome: Outcome) {
        self.attempts.works(&Failing::Lane(self.number));
        if queued.delays.is_some() {
            self.attempts.works(&Failing::Key(queued.order));
        }
        self.attempts.done(queued.delivery.sent, outcome);
    }

    async fn attempt(&mut self, delivery: &Outgoing) -> Verdict {
        let was_open = self.is_usable();
        let mut answered = self.exchange(delivery).await;
        // The server may have closed an idle connection meanwhile.
        if was_open && matches!(answered, Err(Unanswered::Unsent(_) | Unanswered::Cut(_))) {
            answered = self.exchange(delivery).await;
        }
        answered.unwrap_or_else(Unanswered::verdict)
    }

    /// One request and the head of its answer, which decides. The connection is closed unless it has an
    /// answer.
    async fn exchange(&mut self, delivery: &Outgoing) -> Result<Verdict, Unanswered> {
        self.ready().await.map_err(Unanswered::Unsent)?;
        let Some(mut open) = self.open.take() else {
            let failure = Failure::Unreachable("the connection was lost".to_owned());
            return Err(Unanswered::Unsent(failure));
        };
        let address = open.config.url.address();
        let unreachable = |reason: &str| Failure::Unreachable(format!("{address}: {reason}"));
        let request = request(delivery, &open.config).map_err(Unanswered::Unmade)?;
        let limit = open.config.timeout;
        let answered = timeout(limit, async {
            let sender = &mut open.connection.sender;
            sender.ready().await?;
            sender.send_request(request).await
        });
        let late = |_| Unanswered::Late(unreachable(&format!("no answer within {limit:?}")));
        let answered = answered.await.map_err(late)?;
        let lost = |error: hyper::Error| {
            let failure = unreachable(&format!("no answer: {}", chain(&error)));
            if is_of_tls(&error) { Unanswered::Unsent(failure) } else { Unanswered::Cut(failure) }
        };
        let (head, body) = answered.map_err(lost)?.into_parts();
        let waits_for_topic = open.config.url.names_topic().then_some(open.config.waits_for_topic);
        self.open = Some(open);
        self.rest = Some((head.status, body));
        Ok(verdict(&address, head.status, &head.headers, waits_for_topic))
    }

    /// Reads the body of the last answer; the connection is closed if that does not end.
    async fn finish(&mut self) {
        let Some((status, body)) = self.rest.take() else { return };
        let body = timeout(BODY_TIMEOUT, Limited::new(body, BODY_MAX).collect()).await;
        match body {
            Ok(Ok(body)) if status.is_success() => drop(body),
            Ok(Ok(body)) => {
                let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
                tracing::debug!(%status, body = at_most(SHOWN, text.trim()), "answer of the endpoint");
            }
            Ok(Err(_)) | Err(_) => self.open = None,
        }
    }

    /// Opens a connection, unless there is one.
    async fn ready(&mut self) -> Result<(), Failure> {
        self.finish().await;
        if self.is_usable() {
            return Ok(());
        }
        self.open = None;
        let suspects = self.suspects.load(Ordering::Relaxed);
        let config = self.source.read().map_err(Failure::Unusable)?;
        self.limits = Limits { timeout: config.timeout, give_up_after: config.give_up_after };
        let connection = connect(&config).await?;
        self.open = Some(Open { connection, config, since: Instant::now(), suspects });
        Ok(())
    }

    fn is_usable(&self) -> bool {
        let Some(open) = &self.open else { return false };
        open.since.elapsed() < LIFETIME
            && !open.connection.sender.is_closed()
            && open.suspects == self.suspects.load(Ordering::Relaxed)
    }
}

/// The request, signed now.
fn request(delivery: &Outgoing, config: &HttpConfig) -> Result<Request<Full<Bytes>>, String> {
    let target =
        config.url.target(&delivery.sent.topic).ok_or("the topic cannot be part of a URL")?;
    let body = Full::new(delivery.body.clone());
    let mut request = Request::builder().method(Method::POST).uri(target).body(body);
    let request = request.as_mut().map_err(|error| error.to_string())?;
    let headers = request.headers_mut();
    headers.insert(HOST, config.url.authority.clone());
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("walpost/", env!("CARGO_PKG_VERSION"))),
    );
    if let Some(authorization) = &config.authorization {
        let mut value = HeaderValue::from_str(authorization.expose_secret())
            .map_err(|_| "http.authorization cannot be the value of a header")?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    for (name, value) in &delivery.headers {
        headers.append(name, value.clone());
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(seconds));
    let signature =
        config.signers.sign(delivery.id.as_bytes(), &seconds.to_string(), &delivery.body);
    if let Some(signature) = signature {
        let signature = HeaderValue::from_str(&signature).map_err(|error| error.to_string())?;
        headers.insert(WEBHOOK_SIGNATURE, signature);
    }
    Ok(std::mem::take(request))
}
