//! A connection to RabbitMQ: TCP or TLS, login, virtual host, a channel with confirmations
//! (<https://www.rabbitmq.com/amqp-0-9-1-reference>).

use std::time::Duration;

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, channel, confirm, connection, exchange, queue};
use amq_protocol::types::{AMQPValue, FieldTable, LongString, ShortString};
use secrecy::ExposeSecret as _;
use socket2::SockRef;
use tokio::time::timeout;

use super::config::RabbitConfig;
use super::message::CHANNEL;
use super::wire::Wire;
use crate::destination::parts::Failure;
use crate::destination::parts::dial::Stream;

/// How long the broker may take to close a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the broker is asked to send something, at least twice in that time.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The largest frame that walpost sends, in bytes; brokers accept 128 KiB by default.
const FRAME_MAX: u32 = 128 << 10;

/// What AMQP allows for at least.
const FRAME_MIN: u32 = 4096;

/// A channel over which messages can be published.
pub(super) struct Channel {
    pub(super) wire: Wire,
    /// The size of a frame that the broker accepts, in bytes.
    pub(super) frame_max: usize,
}

impl Channel {
    /// Closes the connection. What was sent over it is then in its queues or nowhere: nothing of it
    /// gets behind what a later connection sends.
    pub(super) async fn close(&mut self) {
        let wire = &mut self.wire;
        let closed = async {
            let close = connection::Close {
                reply_code: 200,
                reply_text: "OK".into(),
                class_id: 0,
                method_id: 0,
            };
            wire.push_method(0, AMQPClass::Connection(connection::AMQPMethod::Close(close)))?;
            loop {
                while let Some(frame) = wire.frame()? {
                    if is_close_ok(&frame) {
                        return Ok::<_, Failure>(());
                    }
                }
                wire.advance().await?;
            }
        };
        // It may be lost already.
        let _ = timeout(CLOSE_TIMEOUT, closed).await;
    }
}

fn is_close_ok(frame: &AMQPFrame) -> bool {
    matches!(frame, AMQPFrame::Method(0, AMQPClass::Connection(connection::AMQPMethod::CloseOk(_))))
}

/// What is known about a broker, for the preflight checks.
#[derive(Debug)]
pub(crate) struct Inspection {
    /// Name and version.
    pub(crate) product: String,
    /// Whether the exchange exists.
    pub(crate) exchange: Result<(), Failure>,
    /// Whether the queue of dead letters exists.
    pub(crate) dead_letters: Result<(), Failure>,
}

/// Opens a channel for publishing to the exchange, which has to exist.
pub(super) async fn open(config: &RabbitConfig) -> Result<Channel, Failure> {
    let opened = async {
        let (mut wire, _, frame_max) = log_in(config, HEARTBEAT).await?;
        open_channel(&mut wire, CHANNEL).await?;
        exchange_exists(&mut wire, config).await?;
        let select = confirm::AMQPMethod::Select(confirm::Select { nowait: false });
        wire.push_method(CHANNEL, AMQPClass::Confirm(select))?;
        expect(&mut wire, |class| {
            matches!(class, AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(_))).then_some(())
        })
        .await?;
        Ok(Channel { wire, frame_max })
    };
    config.url.answers(opened).await
}

/// Opens a channel for taking from the queue of dead letters. Returns how many it has.
pub(super) async fn open_queue(config: &RabbitConfig) -> Result<(Channel, u32), Failure> {
    let opened = async {
        // Without heartbeats: nothing is read while a letter is published.
        let (mut wire, _, frame_max) = log_in(config, Duration::ZERO).await?;
        open_channel(&mut wire, CHANNEL).await?;
        let count = queue_exists(&mut wire, CHANNEL, &config.dead_letters).await?;
        Ok((Channel { wire, frame_max }, count))
    };
    config.url.answers(opened).await
}

/// Reads facts about the broker.
pub(crate) async fn inspect(config: &RabbitConfig) -> Result<Inspection, Failure> {
    let asked = async {
        let (mut wire, product, _) = log_in(config, HEARTBEAT).await?;
        // What does not exist closes its channel.
        open_channel(&mut wire, 1).await?;
        let exchange = exchange_exists(&mut wire, config).await;
        let channel = if exchange.is_err() { 2 } else { 1 };
        if channel == 2 {
            wire.push_method(
                1,
                AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {})),
            )?;
            open_channel(&mut wire, 2).await?;
        }
        let dead_letters = queue_exists(&mut wire, channel, &config.dead_letters).await.map(drop);
        Ok(Inspection { product, exchange, dead_letters })
    };
    config.url.answers(asked).await
}

async fn dialled(config: &RabbitConfig) -> Result<Box<dyn Stream>, Failure> {
    let RabbitConfig { url, tls, .. } = config;
    let stream = url.dial().await?;
    // A broker that is low on memory reads nothing for as long as that takes. Whether it lives is
    // seen by its heartbeats.
    SockRef::from(&stream)
        .set_tcp_user_timeout(None)
        .map_err(|error| Failure::Unreachable(format!("{}: {error}", url.address())))?;
    url.secured(stream, tls).await
}

/// Connects, logs in and opens the virtual host. Returns the broker's name and version too, and the
/// size of a frame.
async fn log_in(
    config: &RabbitConfig,
    heartbeat: Duration,
) -> Result<(Wire, String, usize), Failure> {
    let url = &config.url;
    let mut wire = Wire::new(dialled(config).await?, url.address());
    wire.push(b"AMQP\x00\x00\x09\x01");
    let start = expect(&mut wire, |class| match class {
        AMQPClass::Connection(connection::AMQPMethod::Start(start)) => Some(start),
        _ => None,
    })
    .await?;
    let (mechanism, response) = credentials(config, &start)?;
    let start_ok = connection::AMQPMethod::StartOk(connection::StartOk {
        client_properties: client_properties(),
        mechanism: mechanism.into(),
        response,
        locale: "en_US".into(),
    });
    wire.push_method(0, AMQPClass::Connection(start_ok))?;
    let tune = expect(&mut wire, |class| match class {
        AMQPClass::Connection(connection::AMQPMethod::Tune(tune)) => Some(tune),
        _ => None,
    })
    .await?;
    let frame_max = match tune.frame_max {
        0 => FRAME_MAX,
        max => max.clamp(FRAME_MIN, FRAME_MAX),
    };
    let heartbeat = u16::try_from(heartbeat.as_secs()).unwrap_or_default();
    let tune_ok = connection::TuneOk { channel_max: tune.channel_max, frame_max, heartbeat };
    wire.push_method(0, AMQPClass::Connection(connection::AMQPMethod::TuneOk(tune_ok)))?;
    let virtual_host = short(&config.vhost)?;
    let open = connection::AMQPMethod::Open(connection::Open { virtual_host });
    wire.push_method(0, AMQPClass::Connection(open))?;
    expect(&mut wire, |class| {
        matches!(class, AMQPClass::Connection(connection::AMQPMethod::OpenOk(_))).then_some(())
    })
    .await?;
    Ok((wire, product(&start.server_properties), frame_max as usize))
}

fn credentials(
    config: &RabbitConfig,
    start: &connection::Start,
) -> Result<(&'static str, LongString), Failure> {
    let offered = start.mechanisms.to_string();
    let login = config.url.user.as_ref().zip(config.url.password.as_ref());
    let (mechanism, response) = match (login, &config.tls.identity) {
        (None, Some(_)) => ("EXTERNAL", String::new()),
        (Some((user, password)), _) => ("PLAIN", format!("\0{user}\0{}", password.expose_secret())),
        // RabbitMQ's own default, which it accepts from its own machine only.
        (None, None) => ("PLAIN", "\0guest\0guest".to_owned()),
    };
    if offered.split(' ').any(|one| one == mechanism) {
        return Ok((mechanism, response.into()));
    }
    let fix = if mechanism == "EXTERNAL" {
        "enable the plugin rabbitmq_auth_mechanism_ssl and add EXTERNAL to auth_mechanisms, or put user \
         and password into rabbitmq.url"
    } else {
        "add PLAIN to auth_mechanisms of the broker"
    };
    let offered = crate::excerpt::excerpt(&offered);
    Err(Failure::Unauthenticated(format!(
        "{} offers the mechanisms {offered}, and not {mechanism}: {fix}",
        config.url.address()
    )))
}

/// What walpost announces to the broker: among others, that it understands refused messages and alarms.
fn client_properties() -> FieldTable {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut capabilities = FieldTable::default();
    for name in
        ["publisher_confirms", "basic.nack", "connection.blocked", "authentication_failure_close"]
    {
        capabilities.insert(name.into(), AMQPValue::Boolean(true));
    }
    let mut table = FieldTable::default();
    table.insert("product".into(), text("walpost"));
    table.insert("version".into(), text(env!("CARGO_PKG_VERSION")));
    table.insert("connection_name".into(), text("walpost"));
    table.insert("capabilities".into(), AMQPValue::FieldTable(capabilities));
    table
}

fn product(properties: &FieldTable) -> String {
    let text = |name: &str| match properties.inner().get(name) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        _ => String::new(),
    };
    crate::excerpt::excerpt(format!("{} {}", text("product"), text("version")).trim())
}

async fn open_channel(wire: &mut Wire, channel: u16) -> Result<(), Failure> {
    let open = channel::AMQPMethod::Open(channel::Open {});
    wire.push_method(channel, AMQPClass::Channel(open))?;
    expect(wire, |class| {
        matches!(class, AMQPClass::Channel(channel::AMQPMethod::OpenOk(_))).then_some(())
    })
    .await
}

async fn exchange_exists(wire: &mut Wire, config: &RabbitConfig) -> Result<(), Failure> {
    // The default exchange always exists, and cannot be asked for.
    if config.exchange.is_empty() {
        return Ok(());
    }
    let declare = exchange::AMQPMethod::Declare(exchange::Declare {
        exchange: short(&config.exchange)?,
        // Nothing is compared.
        kind: "direct".into(),
        passive: true,
        durable: false,
        auto_delete: false,
        internal: false,
        nowait: false,
        arguments: FieldTable::default(),
    });
    wire.push_method(CHANNEL, AMQPClass::Exchange(declare))?;
    expect(wire, |class| {
        matches!(class, AMQPClass::Exchange(exchange::AMQPMethod::DeclareOk(_))).then_some(())
    })
    .await
}

/// How many messages a queue has for the next consumer; an error if it does not exist.
pub(super) async fn queue_exists(
    wire: &mut Wire,
    channel: u16,
    name: &str,
) -> Result<u32, Failure> {
    let declare = queue::AMQPMethod::Declare(queue::Declare {
        queue: short(name)?,
        passive: true,
        durable: false,
        exclusive: false,
        auto_delete: false,
        nowait: false,
        arguments: FieldTable::default(),
    });
    wire.push_method(channel, AMQPClass::Queue(declare))?;
    expect(wire, |class| match class {
        AMQPClass::Queue(queue::AMQPMethod::DeclareOk(found)) => Some(found.message_count),
        _ => None,
    })
    .await
}

pub(super) fn short(text: &str) -> Result<ShortString, Failure> {
    ShortString::try_new(text).map_err(|error| Failure::Unusable(error.to_string()))
}

/// The answer that `pick` finds; fails if the broker closes the connection or the channel instead.
async fn expect<T>(
    wire: &mut Wire,
    mut pick: impl FnMut(AMQPClass) -> Option<T>,
) -> Result<T, Failure> {
    loop {
        while let Some(frame) = wire.frame()? {
            if let Some(failure) = closed(&frame) {
                return Err(failure);
            }
            if let AMQPFrame::Method(_, class) = frame
                && let Some(found) = pick(class)
            {
                return Ok(found);
            }
        }
        wire.advance().await?;
    }
}

/// Why the broker closes the connection, or the channel, if the frame says so.
pub(super) fn closed(frame: &AMQPFrame) -> Option<Failure> {
    let (code, text) = match frame {
        AMQPFrame::Method(_, AMQPClass::Connection(connection::AMQPMethod::Close(close))) => {
            (close.reply_code, &close.reply_text)
        }
        AMQPFrame::Method(_, AMQPClass::Channel(channel::AMQPMethod::Close(close))) => {
            (close.reply_code, &close.reply_text)
        }
        // It answers so if it does not know this version of the protocol.
        AMQPFrame::ProtocolHeader(version) => {
            return Some(Failure::Unusable(format!(
                "the broker speaks AMQP {version}, and walpost AMQP 0-9-1"
            )));
        }
        _ => return None,
    };
    Some(Failure::of_close(code, text.as_str()))
}
