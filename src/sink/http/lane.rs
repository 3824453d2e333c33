//! A lane: one connection, with one request in flight.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use secrecy::ExposeSecret as _;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::config::{HttpConfig, HttpSource};
use super::connection::{Connection, connect};
use super::request::Delivery;
use super::verdict::{Patience, Verdict, verdict};
use crate::excerpt::at_most;
use crate::sink::Outcome;
use crate::sink::attempts::{Attempts, Failure, chain};
use crate::sink::delays::delays;

const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Minimum and maximum delay between two attempts.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

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
    attempts: Arc<Attempts<u16>>,
    open: Option<Open>,
    /// The body of the last answer.
    rest: Option<(StatusCode, Incoming)>,
}

/// An open connection, and the configuration that it was opened with.
struct Open {
    connection: Connection,
    config: HttpConfig,
    since: Instant,
}

/// Nothing more is to be sent: the sink is gone.
struct Gone;

/// Why a request has no answer.
enum Unanswered {
    /// The connection was not there, or ended.
    Lost(Failure),
    /// The answer took too long.
    Late(Failure),
}

impl Unanswered {
    fn verdict(self) -> Verdict {
        let (Self::Lost(failure) | Self::Late(failure)) = self;
        Verdict::Later(failure, None)
    }
}

impl Lane {
    pub(super) fn new(
        number: u16,
        source: HttpSource,
        epoch: watch::Receiver<u64>,
        attempts: Arc<Attempts<u16>>,
    ) -> Self {
        Self { number, source, epoch, attempts, open: None, rest: None }
    }

    /// Works until the sink is gone.
    pub(super) async fn run(mut self, mut deliveries: UnboundedReceiver<Delivery>) {
        let mut refused = None;
        loop {
            let delivery = tokio::select! {
                biased;
                delivery = deliveries.recv() => delivery,
                // One lane suffices.
                never = self.watch(), if self.number == 0 => match never {},
            };
            let Some(delivery) = delivery else { return };
            let epoch = *self.epoch.borrow_and_update();
            // What follows a refused event is produced again, behind it.
            if delivery.sent.epoch < epoch || refused == Some(delivery.sent.epoch) {
                continue;
            }
            match self.deliver(delivery).await {
                Ok(None) => {}
                Ok(Some(epoch)) => refused = Some(epoch),
                Err(Gone) => return,
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
                    self.attempts.fails(self.number, failure, None);
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
        self.attempts.works(&self.number);
        open.connection.ended().await;
        self.open = None;
        Ok(since)
    }

    /// Sends it until that succeeds, or its epoch is over. Returns the epoch if the endpoint rejects
    /// it for good.
    async fn deliver(&mut self, delivery: Delivery) -> Result<Option<u64>, Gone> {
        let mut delays = delays(RETRY_DELAYS);
        let mut epoch = self.epoch.clone();
        let mut refused = None;
        loop {
            let attempted = tokio::select! {
                attempted = self.attempt(&delivery) => Some(attempted),
                changed = epoch.changed() => {
                    changed.map_err(|_| Gone)?;
                    None
                }
            };
            let (failure, after) = match attempted {
                None => {
                    // A request that was given up must not stay in front of the next one.
                    (self.open, self.rest) = (None, None);
                    self.attempts.gives_up(&self.number);
                    return Ok(None);
                }
                Some(Verdict::Delivered) => {
                    self.done(delivery, Outcome::Delivered);
                    self.finish().await;
                    return Ok(None);
                }
                Some(Verdict::Refused { refusal, patience, after }) => {
                    let since = *refused.get_or_insert_with(Instant::now);
                    if patience == Patience::None || since.elapsed() >= self.timeout() {
                        let epoch = delivery.sent.epoch;
                        self.done(delivery, Outcome::Refused(refusal));
                        self.finish().await;
                        return Ok(Some(epoch));
                    }
                    (Failure::Unusable(refusal.reason), after)
                }
                Some(Verdict::Later(failure, after)) => {
                    refused = None;
                    (failure, after)
                }
            };
            let after = after.unwrap_or_default();
            self.attempts.fails(self.number, failure, [delivery.sent.topic.as_str()]);
            self.finish().await;
            let delay = delays.next().unwrap_or(RETRY_DELAYS[1]).max(after);
            tokio::select! {
                () = sleep(delay) => {}
                changed = epoch.changed() => {
                    self.attempts.gives_up(&self.number);
                    return changed.map(|()| None).map_err(|_| Gone);
                }
            }
        }
    }

    fn timeout(&self) -> Duration {
        self.open.as_ref().map_or(Duration::ZERO, |open| open.config.timeout)
    }

    fn done(&self, delivery: Delivery, outcome: Outcome) {
        self.attempts.works(&self.number);
        self.attempts.done(delivery.sent, outcome);
    }

    async fn attempt(&mut self, delivery: &Delivery) -> Verdict {
        let was_open = self.open.as_ref().is_some_and(Open::is_usable);
        match self.exchange(delivery).await {
            // The server may have closed an idle connection meanwhile.
            Err(Unanswered::Lost(_)) if was_open => {
                self.exchange(delivery).await.unwrap_or_else(Unanswered::verdict)
            }
            answered => answered.unwrap_or_else(Unanswered::verdict),
        }
    }

    /// One request and the head of its answer, which decides. The connection is closed unless it has an
    /// answer.
    async fn exchange(&mut self, delivery: &Delivery) -> Result<Verdict, Unanswered> {
        self.ready().await.map_err(Unanswered::Lost)?;
        let Some(mut open) = self.open.take() else {
            let failure = Failure::Unreachable("the connection was lost".to_owned());
            return Err(Unanswered::Lost(failure));
        };
        let address = open.config.url.address();
        let unreachable = |reason: &str| Failure::Unreachable(format!("{address}: {reason}"));
        let request = request(delivery, &open.config)
            .map_err(|reason| Unanswered::Lost(unreachable(&reason)))?;
        let limit = open.config.timeout;
        let answered = timeout(limit, async {
            let sender = &mut open.connection.sender;
            sender.ready().await?;
            sender.send_request(request).await
        });
        let late = |_| Unanswered::Late(unreachable(&format!("no answer within {limit:?}")));
        let answered = answered.await.map_err(late)?;
        let lost = |error: hyper::Error| Unanswered::Lost(unreachable(&chain(&error)));
        let (head, body) = answered.map_err(lost)?.into_parts();
        self.open = Some(open);
        self.rest = Some((head.status, body));
        Ok(verdict(&address, head.status, &head.headers))
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
        if self.open.as_ref().is_some_and(Open::is_usable) {
            return Ok(());
        }
        self.open = None;
        let config = self.source.read().map_err(Failure::Unusable)?;
        let connection = connect(&config).await?;
        self.open = Some(Open { connection, config, since: Instant::now() });
        Ok(())
    }
}

impl Open {
    fn is_usable(&self) -> bool {
        self.since.elapsed() < LIFETIME && !self.connection.sender.is_closed()
    }
}

/// The request, signed now.
fn request(delivery: &Delivery, config: &HttpConfig) -> Result<Request<Full<Bytes>>, String> {
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
