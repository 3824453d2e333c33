//! What to do with an undeliverable event, by cause: halt, dead-letter it, or skip it.

use std::fmt;

use super::Cause;

/// What to do with a poison event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Stop, until an operator acts.
    #[default]
    Halt,
    /// Write it to the dead-letter topic, and continue once that is acknowledged.
    DeadLetter,
    /// Continue without it.
    Skip,
}

impl Policy {
    /// All policies, with their names in the configuration.
    pub const NAMES: [(&str, Self); 3] =
        [("halt", Self::Halt), ("dead_letter", Self::DeadLetter), ("skip", Self::Skip)];

    /// The policy's name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, policy)| *policy == self).map_or("", |(name, _)| name)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy for each cause. By default each halts, except that walpost waits for a missing topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policies {
    /// The record is larger than the topic, or the producer, accepts.
    pub too_large: Policy,
    /// A field that the record needs is NULL or empty.
    pub missing_field: Policy,
    /// Kafka does not accept the topic's name.
    pub invalid_topic: Policy,
    /// The topic does not exist; with `None` walpost waits for it, and the event is not poison.
    pub missing_topic: Option<Policy>,
    /// The broker permanently rejects the record, for a reason other than its size.
    pub refused: Policy,
    /// The schema registry does not have the schema; with `None` walpost waits for it.
    pub missing_schema: Option<Policy>,
    /// The value cannot have its schema.
    pub schema_mismatch: Policy,
    /// A field, or the whole event, cannot be decoded.
    pub undecodable: Policy,
    /// The dead-letter topic.
    pub dead_letter_topic: String,
    /// How often a record that the broker rejects is produced again before the policy applies.
    pub retries: u32,
}

impl Policies {
    /// The default dead-letter topic.
    pub const DEAD_LETTER_TOPIC: &str = "walpost.dead-letter";

    /// The default number of retries.
    pub const RETRIES: u32 = 10;

    /// Whether any cause is dead-lettered.
    pub fn write_letters(&self) -> bool {
        self.include(Policy::DeadLetter)
    }

    /// Whether it is the policy of any cause.
    pub fn include(&self, policy: Policy) -> bool {
        let Self { too_large, missing_field, invalid_topic, refused, undecodable, .. } = self;
        let always = [too_large, missing_field, invalid_topic, refused, undecodable];
        always.contains(&&policy)
            || self.schema_mismatch == policy
            || [self.missing_topic, self.missing_schema].contains(&Some(policy))
    }

    /// Whether a record that was sent may become a dead letter: a broker's rejection may arrive
    /// after later records were produced.
    pub fn writes_letters_late(&self) -> bool {
        let late = [Some(self.too_large), Some(self.refused), self.missing_topic];
        late.contains(&Some(Policy::DeadLetter))
    }

    /// The policy for that cause.
    pub fn of(&self, cause: &Cause) -> Policy {
        match cause {
            Cause::TooLarge { .. } => self.too_large,
            Cause::MissingField { .. } => self.missing_field,
            Cause::InvalidTopic { .. } => self.invalid_topic,
            Cause::MissingTopic { .. } => self.missing_topic.unwrap_or_default(),
            Cause::Refused { .. } => self.refused,
            Cause::Undecodable { .. } => self.undecodable,
            Cause::MissingSchema { .. } => self.missing_schema.unwrap_or_default(),
            Cause::SchemaMismatch { .. } => self.schema_mismatch,
        }
    }
}

impl Default for Policies {
    fn default() -> Self {
        Self {
            too_large: Policy::Halt,
            missing_field: Policy::Halt,
            invalid_topic: Policy::Halt,
            missing_topic: None,
            refused: Policy::Halt,
            undecodable: Policy::Halt,
            missing_schema: None,
            schema_mismatch: Policy::Halt,
            dead_letter_topic: Self::DEAD_LETTER_TOPIC.to_owned(),
            retries: Self::RETRIES,
        }
    }
}
