//! Which profile's records are made.

use crate::outbox::{Event, Needs};

use super::debezium::{Debezium, DebeziumRouter};
use super::headers::Dropped;
use super::poison::{Cause, Poison};
use super::route::{OwnRouter, RecordConfig, TimestampSource};
use super::topics_allowed::TopicsAllowed;
use super::types::Record;

/// What records look like.
#[derive(Debug, Clone)]
pub enum Profile {
    /// Walpost's own, as they are configured.
    Walpost(Box<RecordConfig>),
    /// As Debezium makes them.
    Debezium(Box<Debezium>),
}

impl Profile {
    /// The columns that are named beyond the roles, each once: an event's `placed`
    /// fields must be these, in this order.
    pub fn placed(&self) -> Vec<String> {
        match self {
            Self::Walpost(config) => config.placed(),
            Self::Debezium(config) => config.placed(),
        }
    }

    /// Whether records have the time at which they are produced.
    pub fn is_untimed(&self) -> bool {
        match self {
            Self::Walpost(config) => config.timestamp == TimestampSource::None,
            Self::Debezium(config) => config.is_untimed(),
        }
    }

    /// What records show of an event.
    pub fn needs(&self) -> Needs {
        match self {
            Self::Walpost(config) => config.needs(),
            Self::Debezium(config) => config.needs(),
        }
    }

    /// The one topic that all events go to, where none of their fields chooses it.
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

/// Makes records of events, one at a time.
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
    /// A router for records of that look.
    pub fn new(profile: impl Into<Profile>) -> Self {
        let profile = profile.into();
        let untimed = profile.is_untimed();
        let of = match profile {
            Profile::Walpost(config) => Of::Walpost(Box::new(OwnRouter::new(*config))),
            Profile::Debezium(config) => Of::Debezium(Box::new(DebeziumRouter::new(*config))),
        };
        Self { of, allowed: TopicsAllowed::default(), untimed }
    }

    /// The same for records of these topics alone: an event of another is poison.
    #[must_use]
    pub fn allowing(mut self, allowed: TopicsAllowed) -> Self {
        self.allowed = allowed;
        self
    }

    /// The columns that an event's `placed` fields must be.
    pub fn placed(&self) -> &[String] {
        match &self.of {
            Of::Walpost(router) => router.placed(),
            Of::Debezium(router) => router.placed(),
        }
    }

    /// Members of the last event's own headers that were dropped, since their names are
    /// walpost's. In Debezium's records a row names no header.
    pub fn dropped_headers(&self) -> Option<&Dropped> {
        match &self.of {
            Of::Walpost(router) => Some(router.dropped()).filter(|dropped| dropped.count > 0),
            Of::Debezium(_) => None,
        }
    }

    /// Whether records have the time at which they are produced, and dead letters likewise.
    pub fn is_untimed(&self) -> bool {
        self.untimed
    }

    /// The record of `event`; an event that has none is poison. The same event
    /// gives the same record or the same poison each time.
    pub fn route<'a>(&'a mut self, event: &'a Event<'_>) -> Result<Record<'a>, Poison> {
        let record = match &mut self.of {
            Of::Walpost(router) => router.route(event),
            Of::Debezium(router) => router.route(event),
        }?;
        if self.allowed.allows(record.topic) {
            return Ok(record);
        }
        let why = "is none that record.topics_allowed has".to_owned();
        Err(Poison::new(Cause::InvalidTopic { topic: record.topic.to_owned(), why }, event))
    }
}
