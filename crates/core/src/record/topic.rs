//! The topic: a template, optionally rewritten, and validated by Kafka's rules.
//!
//! A template is validated as far as possible when it is parsed; the resulting name is validated
//! when it is rendered. Whether the topic exists is determined by the broker.

use std::fmt;
use std::str::FromStr;

use crate::excerpt::beginning;
use crate::outbox::{Event, Role};

use super::poison::{Cause, Poison};
use super::regex_router::Rewrite;
use super::template::{Part, Template, TemplateError};

/// The prefix of Kafka's internal topics.
const INTERNAL: &str = "__";

/// Maximum length of a topic name (Kafka's `Topic.MAX_NAME_LENGTH`).
const TOPIC_BYTES_MAX: usize = 249;

/// Maximum length of a field from which modifiers and a rewrite may build a topic. A longer field
/// is not even copied.
const FIELD_BYTES_MAX: usize = 64 << 10;

/// A topic name with placeholders for an event's fields.
///
/// `outbox.event.{aggregate_type}`; `{aggregate_type|kebab|lower}` modifies the value, and a text
/// without a placeholder is a static name. A placeholder contains `id`, `aggregate_type`,
/// `aggregate_id`, `event_type`, or else a column's name. A literal brace cannot be written,
/// because no topic name contains one.
#[derive(Debug, Clone)]
pub struct TopicTemplate {
    template: Template,
    rewrite: Option<Rewrite>,
}

impl TopicTemplate {
    /// Rewrites the result of the template.
    #[must_use]
    pub fn rewritten(mut self, rewrite: Rewrite) -> Self {
        self.rewrite = Some(rewrite);
        self
    }

    /// The additional columns that it names, without duplicates: an event's `placed` fields must be
    /// these, in this order.
    pub fn placed(&self) -> &[String] {
        self.template.columns()
    }

    /// The roles that it names.
    pub fn roles(&self) -> impl Iterator<Item = Role> {
        self.template.roles()
    }

    /// The topic of all events, if the template names no field.
    pub fn of_all(&self) -> Option<String> {
        let [Part::Static(name)] = self.template.parts() else { return None };
        let mut topic = name.clone();
        if let Some(rewrite) = &self.rewrite {
            rewrite.apply(&mut topic);
        }
        Some(topic)
    }

    /// The pattern of the topics that the template makes, with `*` for each field, before a rewrite.
    pub fn pattern(&self) -> String {
        let parts = self.template.parts().iter().map(|part| match part {
            Part::Static(text) => text.as_str(),
            Part::Field(..) => "*",
        });
        parts.collect()
    }

    pub(super) fn place(&mut self, all: &[String]) {
        self.template.place(all);
    }

    /// Appends the topic of `event` to `topic`, which should be empty: the whole text is validated.
    pub fn render(&self, event: &Event<'_>, topic: &mut String) -> Result<(), Poison> {
        let invalid = |topic: &[u8], fault: TopicFault| {
            let cause = Cause::InvalidTopic { topic: beginning(topic), why: fault.to_string() };
            Poison::new(cause, event)
        };
        if let Some(field) = self.template.first_longer_field(FIELD_BYTES_MAX, event) {
            return Err(invalid(field, TopicFault::TooLong));
        }
        self.template.render(event, topic).map_err(|cause| Poison::new(cause, event))?;
        if let Some(rewrite) = &self.rewrite {
            rewrite.apply(topic);
        }
        check_topic(topic).map_err(|fault| invalid(topic.as_bytes(), fault))
    }
}

impl fmt::Display for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.template.fmt(f)
    }
}

/// Why Kafka would not accept a topic name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicFault {
    /// An empty name.
    #[error("is empty")]
    Empty,
    /// The name `.` or `..`.
    #[error("is a name that Kafka keeps for itself")]
    Dots,
    /// A name that begins like Kafka's internal topics.
    #[error("begins with `__`, as the topics that Kafka keeps for itself do")]
    Internal,
    /// A name that is too long.
    #[error("is longer than 249 characters")]
    TooLong,
    /// A name with a character that Kafka does not accept.
    #[error("has {0:?}, where Kafka accepts letters, digits, `.`, `_` and `-` only")]
    Sign(char),
}

/// Whether Kafka accepts the topic name (`org.apache.kafka.common.internals.Topic`), and reserves
/// no names that begin like it: a topic chosen by a row must never be `__consumer_offsets`, or an
/// internal topic of a later version.
pub fn check_topic(topic: &str) -> Result<(), TopicFault> {
    check_signs(topic)?;
    match topic {
        "" => Err(TopicFault::Empty),
        "." | ".." => Err(TopicFault::Dots),
        _ if topic.starts_with(INTERNAL) => Err(TopicFault::Internal),
        _ if topic.len() > TOPIC_BYTES_MAX => Err(TopicFault::TooLong),
        _ => Ok(()),
    }
}

pub(super) fn check_signs(text: &str) -> Result<(), TopicFault> {
    if text.bytes().all(|sign| ACCEPTED[usize::from(sign)]) {
        return Ok(());
    }
    let refused = |sign: &char| !u8::try_from(*sign).is_ok_and(|sign| ACCEPTED[usize::from(sign)]);
    text.chars().find(refused).map_or(Ok(()), |sign| Err(TopicFault::Sign(sign)))
}

/// Whether Kafka accepts a byte in a topic name.
const ACCEPTED: [bool; 256] = {
    let mut accepted = [false; 256];
    let mut sign = 0_u8;
    while sign.is_ascii() {
        accepted[sign as usize] =
            sign.is_ascii_alphanumeric() || matches!(sign, b'.' | b'_' | b'-');
        sign += 1;
    }
    accepted
};

impl FromStr for TopicTemplate {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let template = Template::parse(text, |text| match check_signs(text) {
            Err(TopicFault::Sign(sign)) => {
                let at = text.find(sign).unwrap_or(0);
                Err((at, format!("the topic {}", TopicFault::Sign(sign))))
            }
            _ => Ok(()),
        })?;
        check_whole(&template).map_err(|fault| TemplateError {
            template: text.to_owned(),
            sign: 0,
            why: format!("the topic {fault}"),
        })?;
        Ok(Self { template, rewrite: None })
    }
}

/// Validates what the static parts determine about every topic.
fn check_whole(template: &Template) -> Result<(), TopicFault> {
    let lengths = template.parts().iter().map(|part| match part {
        Part::Static(text) => text.len(),
        Part::Field(..) => 1,
    });
    match template.parts() {
        [Part::Static(name)] => check_topic(name),
        [] => Err(TopicFault::Empty),
        _ if lengths.sum::<usize>() > TOPIC_BYTES_MAX => Err(TopicFault::TooLong),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
