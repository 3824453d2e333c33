//! Selects the profile by which records are built.

use crate::outbox::{Event, Needs, Role};

use super::debezium::{Debezium, DebeziumRouter};
use super::headers::Dropped;
use super::names::{NameConflict, Names};
use super::placement::{Placement, Target};
use super::poison::{Cause, Poison};
use super::route::{OwnRouter, RecordConfig, TimestampSource};
use super::schema::{Known, SchemaRef};
use super::topics_allowed::TopicsAllowed;
use super::types::Record;
use super::unrouted::Unrouted;

/// The format of records.
#[derive(Debug, Clone)]
pub enum Profile {
    /// walpost's own profile, as configured.
    Walpost(Box<RecordConfig>),
    /// A Debezium profile.
    Debezium(Box<Debezium>),
}

impl Profile {
    /// The additional columns that are named, without duplicates: an event's `placed` fields must
    /// be these, in this order.
    pub fn placed(&self) -> Vec<String> {
        match self {
            Self::Walpost(config) => config.placed(),
            Self::Debezium(config) => config.placed(),
        }
    }

    /// Whether a record's timestamp is the time of production.
    pub fn is_untimed(&self) -> bool {
        match self {
            Self::Walpost(config) => config.timestamp == TimestampSource::None,
            Self::Debezium(config) => config.is_untimed(),
        }
    }

    /// The roles that records contain.
    pub fn needs(&self) -> Needs {
        match self {
            Self::Walpost(config) => config.needs(),
            Self::Debezium(config) => config.needs(),
        }
    }

    /// Whether a destination can have all headers that the configuration names.
    pub fn check_names(&self, names: &Names, sink: &'static str) -> Result<(), NameConflict> {
        let placed = |placements: &'_ [Placement]| -> Vec<String> {
            let headers = placements.iter().filter(|placement| placement.target == Target::Header);
            headers.map(|placement| placement.name().to_owned()).collect()
        };
        let (writes, placed) = match self {
            Self::Walpost(config) => {
                let own = config.headers.names().filter(|name| *name != Role::Headers.name());
                (own.chain(config.value.header_names()).collect(), placed(&config.place))
            }
            Self::Debezium(config) => (vec![Role::Id.name()], placed(config.placements())),
        };
        names.check(sink, writes, placed.iter().map(String::as_str))
    }

    /// The topic of all events, if it does not depend on their fields.
    pub fn topic_of_all(&self) -> Option<String> {
        match self {
            Self::Walpost(config) => config.topic.of_all(),
            Self::Debezium(_) => None,
        }
    }
}

impl From<RecordConfig> for Profile {
    fn from(config: RecordConfig) -> Self {
        Self::Walpost(Box::new(config))
    }
}

impl From<Debezium> for Profile {
    fn from(config: Debezium) -> Self {
        Self::Debezium(Box::new(config))
    }
}

/// Builds records from events, one at a time.
#[derive(Debug)]
pub struct Router {
    of: Of,
    allowed: TopicsAllowed,
    untimed: bool,
}

#[derive(Debug)]
enum Of {
    Walpost(Box<OwnRouter>),
    Debezium(Box<DebeziumRouter>),
}

impl Router {
    /// A router for records of that format.
    pub fn new(profile: impl Into<Profile>) -> Self {
        let profile = profile.into();
        let untimed = profile.is_untimed();
        let of = match profile {
            Profile::Walpost(config) => Of::Walpost(Box::new(OwnRouter::new(*config))),
            Profile::Debezium(config) => Of::Debezium(Box::new(DebeziumRouter::new(*config))),
        };
        Self { of, allowed: TopicsAllowed::default(), untimed }
    }

    /// Restricts the topics: an event for any other topic is poison.
    #[must_use]
    pub fn allowing(mut self, allowed: TopicsAllowed) -> Self {
        self.allowed = allowed;
        self
    }

    /// Drops headers of rows by the names of a destination other than Kafka. In Debezium's profiles
    /// a row cannot name headers.
    #[must_use]
    pub fn naming(mut self, names: Names) -> Self {
        if let Of::Walpost(router) = &mut self.of {
            router.name(names);
        }
        self
    }

    /// The additional columns: an event's `placed` fields must be these.
    pub fn placed(&self) -> &[String] {
        match &self.of {
            Of::Walpost(router) => router.placed(),
            Of::Debezium(router) => router.placed(),
        }
    }

    /// Headers of the last event's row that were dropped because their names are reserved. In
    /// Debezium's profiles a row cannot name headers.
    pub fn dropped_headers(&self) -> Option<&Dropped> {
        match &self.of {
            Of::Walpost(router) => Some(router.dropped()).filter(|dropped| dropped.count > 0),
            Of::Debezium(_) => None,
        }
    }

    /// Whether the timestamp of records and dead letters is the time of production.
    pub fn is_untimed(&self) -> bool {
        self.untimed
    }

    /// Learns what the schema registry has; `None`: it is to be asked again.
    pub fn learn(&mut self, schema: SchemaRef, known: Option<Known>) {
        if let Of::Walpost(router) = &mut self.of
            && let Some(encoder) = router.encoder()
        {
            encoder.learn(schema, known);
        }
    }

    /// The schema that has to be learned before there is a record of `event`.
    pub fn needs(&mut self, event: &Event<'_>) -> Option<SchemaRef> {
        match self.route(event) {
            Err(Unrouted::NeedsSchema(schema)) => Some(schema),
            Ok(_) | Err(Unrouted::Poison(_)) => None,
        }
    }

    /// How many schemas are known.
    pub fn schemas(&mut self) -> usize {
        match &mut self.of {
            Of::Walpost(router) => router.encoder().map_or(0, |encoder| encoder.len()),
            Of::Debezium(_) => 0,
        }
    }

    /// The record of `event`, or the reason why there is none. The same event has the same result
    /// each time, but for what is learned of schemas.
    pub fn route<'a>(&'a mut self, event: &'a Event<'_>) -> Result<Record<'a>, Unrouted> {
        let record = match &mut self.of {
            Of::Walpost(router) => router.route(event)?,
            Of::Debezium(router) => router.route(event)?,
        };
        if self.allowed.allows(record.topic) {
            return Ok(record);
        }
        let why = "is none that record.topics_allowed has".to_owned();
        Err(Poison::new(Cause::InvalidTopic { topic: record.topic.to_owned(), why }, event).into())
    }
}
