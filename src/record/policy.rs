//! What to do with an undeliverable event, by cause: halt, dead-letter it, or skip it.

use std::fmt;

use super::Cause;

/// What to do about poison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Stop, so that a person decides.
    #[default]
    Halt,
    /// Write it to the dead-letter topic, and go on once that has it.
    DeadLetter,
    /// Go on without it.
    Skip,
}

impl Policy {
    /// All of them, with their names in the configuration.
    pub const NAMES: [(&str, Self); 3] =
        [("halt", Self::Halt), ("dead_letter", Self::DeadLetter), ("skip", Self::Skip)];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, policy)| *policy == self).map_or("", |(name, _)| name)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy for each cause; by default each halts, but that a missing topic is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policies {
    /// The record is larger than its topic, or the producer, takes.
    pub too_large: Policy,
    /// A field that the record needs is NULL or empty.
    pub missing_field: Policy,
    /// The topic's name is not one that Kafka accepts.
    pub invalid_topic: Policy,
    /// The topic does not exist; `None`: it is waited for, and is no cause.
    pub missing_topic: Option<Policy>,
    /// The broker refuses the record for good, for another reason than its size.
    pub refused: Policy,
    /// A field, or the whole event, cannot be read.
    pub undecodable: Policy,
    /// Where dead letters go.
    pub dead_letter_topic: String,
    /// How often a record that the broker rejects is produced again before the policy applies.
    pub retries: u32,
}

impl Policies {
    /// Where dead letters go unless another topic is named.
    pub const DEAD_LETTER_TOPIC: &str = "walpost.dead-letter";

    /// How often the broker is asked again unless something else is said.
    pub const RETRIES: u32 = 10;

    /// Whether any cause makes dead letters.
    pub fn write_letters(&self) -> bool {
        let Self { too_large, missing_field, invalid_topic, refused, undecodable, .. } = self;
        [too_large, missing_field, invalid_topic, refused, undecodable]
            .contains(&&Policy::DeadLetter)
            || self.missing_topic == Some(Policy::DeadLetter)
    }

    /// Whether a record that was sent may become a dead letter: what a broker refuses is found
    /// out behind records that follow it.
    pub fn writes_letters_late(&self) -> bool {
        [self.too_large, self.refused].contains(&Policy::DeadLetter)
    }

    /// What to do about that cause.
    pub fn of(&self, cause: &Cause) -> Policy {
        match cause {
            Cause::TooLarge { .. } => self.too_large,
            Cause::MissingField { .. } => self.missing_field,
            Cause::InvalidTopic { .. } => self.invalid_topic,
            Cause::MissingTopic { .. } => self.missing_topic.unwrap_or_default(),
            Cause::Refused { .. } => self.refused,
            Cause::Undecodable { .. } => self.undecodable,
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
            dead_letter_topic: Self::DEAD_LETTER_TOPIC.to_owned(),
            retries: Self::RETRIES,
        }
    }
}
