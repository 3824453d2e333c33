//! The topic's template: static text and fields of the event.
//!
//! A template is checked as far as possible when it is read; what a field
//! makes of it is checked when it is rendered. Whether the topic exists is the
//! broker's to say.

use std::fmt;
use std::str::FromStr;

use crate::outbox::{Event, Role};

use super::poison::{Cause, Poison};

/// Signs of a topic's name at most (Kafka's `Topic.MAX_NAME_LENGTH`).
const TOPIC_BYTES_MAX: usize = 249;

/// A topic's name with places for an event's fields.
///
/// `outbox.event.{aggregate_type}`; `{aggregate_type|kebab|lower}` changes the
/// value on its way, and a text without a place is a static name. A place holds
/// `aggregate_type`, `aggregate_id`, `event_type`, or else a column's name.
/// There is no way to write a brace, since no topic has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicTemplate {
    text: String,
    parts: Vec<Part>,
    placed: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Static(String),
    Field(Source, Vec<Modifier>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    AggregateType,
    AggregateId,
    EventType,
    /// Index in the template's `placed`.
    Placed(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Modifier {
    Lower,
    Kebab,
    Snake,
}

impl TopicTemplate {
    /// The columns that it names beyond the roles, each once: an event's
    /// `placed` fields must be these, in this order.
    pub fn placed(&self) -> &[String] {
        &self.placed
    }

    /// Appends the topic of `event` to `topic`, which should be empty: the
    /// whole of it is checked.
    pub fn render(&self, event: &Event<'_>, topic: &mut String) -> Result<(), Poison> {
        for part in &self.parts {
            match part {
                Part::Static(text) => topic.push_str(text),
                Part::Field(source, modifiers) => self
                    .render_field(*source, modifiers, event, topic)
                    .map_err(|cause| Poison::new(cause, event))?,
            }
        }
        check_topic(topic).map_err(|fault| {
            let cause = Cause::InvalidTopic { topic: topic.clone(), why: fault.to_string() };
            Poison::new(cause, event)
        })
    }

    fn render_field(
        &self,
        source: Source,
        modifiers: &[Modifier],
        event: &Event<'_>,
        topic: &mut String,
    ) -> Result<(), Cause> {
        let (name, field) = match source {
            Source::AggregateType => (Role::AggregateType.name(), &event.aggregate_type),
            Source::AggregateId => (Role::AggregateId.name(), &event.aggregate_id),
            Source::EventType => (Role::EventType.name(), &event.event_type),
            Source::Placed(index) => {
                let name = self.placed.get(index).map_or("", String::as_str);
                (name, event.placed.get(index).unwrap_or(&None))
            }
        };
        let start = topic.len();
        let bytes = field.as_deref().unwrap_or_default();
        let text = std::str::from_utf8(bytes)
            .map_err(|_| Cause::undecodable(name, "is not UTF-8, as a topic must be"))?;
        topic.push_str(text);
        for modifier in modifiers {
            modifier.apply(topic, start);
        }
        if topic.len() == start {
            return Err(Cause::MissingField { field: name.to_owned() });
        }
        Ok(())
    }
}

impl fmt::Display for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Modifier {
    const NAMES: &str = "lower, kebab, snake";

    fn from_name(name: &str) -> Option<Self> {
        match name {
            "lower" => Some(Self::Lower),
            "kebab" => Some(Self::Kebab),
            "snake" => Some(Self::Snake),
            _ => None,
        }
    }

    /// Changes what stands in `topic` from `start` on.
    fn apply(self, topic: &mut String, start: usize) {
        match self {
            Self::Lower => topic[start..].make_ascii_lowercase(),
            Self::Kebab => rejoin_words(topic, start, '-'),
            Self::Snake => rejoin_words(topic, start, '_'),
        }
    }
}

/// Writes the words from `start` on in lower case with `joint` between them:
/// `OrderLine`, `order_line` and `Order Line` are two words, `HTTPServer` too.
fn rejoin_words(topic: &mut String, start: usize, joint: char) {
    let words = topic.split_off(start);
    let mut before = None;
    let mut signs = words.chars().peekable();
    while let Some(sign) = signs.next() {
        if matches!(sign, '_' | '-' | ' ') {
            before = before.map(|_| joint);
            continue;
        }
        let begins = sign.is_ascii_uppercase()
            && before.is_some_and(|before: char| {
                let next_is_lower = signs.peek().is_some_and(char::is_ascii_lowercase);
                before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                    || (before.is_ascii_uppercase() && next_is_lower)
            });
        if begins || before == Some(joint) {
            topic.push(joint);
        }
        topic.push(sign.to_ascii_lowercase());
        before = Some(sign);
    }
}

/// Why Kafka would not accept a name as a topic's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicFault {
    /// It has no sign at all.
    #[error("is empty")]
    Empty,
    /// It is a directory's name.
    #[error("is a name that Kafka keeps for itself")]
    Dots,
    /// It is too long.
    #[error("is longer than the 249 signs that Kafka accepts")]
    TooLong,
    /// It has a sign that Kafka does not accept.
    #[error("has {0:?}, where Kafka accepts letters, digits, `.`, `_` and `-` only")]
    Sign(char),
}

/// Whether Kafka accepts a topic of that name
/// (`org.apache.kafka.common.internals.Topic`).
pub fn check_topic(topic: &str) -> Result<(), TopicFault> {
    check_signs(topic)?;
    match topic {
        "" => Err(TopicFault::Empty),
        "." | ".." => Err(TopicFault::Dots),
        _ if topic.len() > TOPIC_BYTES_MAX => Err(TopicFault::TooLong),
        _ => Ok(()),
    }
}

fn check_signs(text: &str) -> Result<(), TopicFault> {
    let accepted = |sign: u8| sign.is_ascii_alphanumeric() || matches!(sign, b'.' | b'_' | b'-');
    if text.bytes().all(accepted) {
        return Ok(());
    }
    let refused = |sign: &char| !u8::try_from(*sign).is_ok_and(accepted);
    text.chars().find(refused).map_or(Ok(()), |sign| Err(TopicFault::Sign(sign)))
}

/// A text that is not a topic's template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "topic template `{template}`, at sign {}: {why}; write it for instance as \
     outbox.event.{{aggregate_type}} or outbox.event.{{aggregate_type|kebab}}",
    sign + 1
)]
pub struct TemplateError {
    /// The template.
    pub template: String,
    /// The place of the fault, in signs (characters) from 0.
    pub sign: usize,
    /// What is the matter there.
    pub why: String,
}

impl FromStr for TopicTemplate {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parser = Parser::default();
        parser.template(text).map_err(|(rest, why)| {
            let read = &text[..text.len() - rest.len()];
            TemplateError { template: text.to_owned(), sign: read.chars().count(), why }
        })?;
        Ok(Self { text: text.to_owned(), parts: parser.parts, placed: parser.placed })
    }
}

/// A fault, and the part of the template from it on.
type Fault<'t> = (&'t str, String);

#[derive(Default)]
struct Parser {
    parts: Vec<Part>,
    placed: Vec<String>,
}

impl Parser {
    fn template<'t>(&mut self, text: &'t str) -> Result<(), Fault<'t>> {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            rest = match first {
                '{' => self.field(rest)?,
                '}' => return Err((rest, "a brace is closed that was not opened".to_owned())),
                _ => {
                    let end = rest.find(['{', '}']).unwrap_or(rest.len());
                    self.literal(rest, end)?
                }
            };
        }
        self.check_whole(text)
    }

    /// Takes the first `end` bytes as they are.
    fn literal<'t>(&mut self, rest: &'t str, end: usize) -> Result<&'t str, Fault<'t>> {
        let (text, after) = rest.split_at(end);
        if let Err(TopicFault::Sign(sign)) = check_signs(text) {
            let at = rest.find(sign).unwrap_or(0);
            return Err((&rest[at..], format!("the topic {}", TopicFault::Sign(sign))));
        }
        match self.parts.last_mut() {
            Some(Part::Static(before)) => before.push_str(text),
            _ => self.parts.push(Part::Static(text.to_owned())),
        }
        Ok(after)
    }

    fn field<'t>(&mut self, rest: &'t str) -> Result<&'t str, Fault<'t>> {
        let inside = &rest[1..];
        let Some((inside, after)) = inside.split_once('}').filter(|(it, _)| !it.contains('{'))
        else {
            return Err((rest, "this brace is not closed".to_owned()));
        };
        let mut pieces = inside.split('|');
        let name = pieces.next().unwrap_or_default();
        if name.is_empty() || name.trim() != name {
            return Err((
                &rest[1..],
                "a field's name is missing or has blanks around it".to_owned(),
            ));
        }
        let mut modifiers = Vec::new();
        let mut at = 1 + name.len();
        for piece in pieces {
            let modifier = Modifier::from_name(piece).ok_or_else(|| {
                let why = format!("`{piece}` is no modifier: there are {}", Modifier::NAMES);
                (&rest[at + 1..], why)
            })?;
            modifiers.push(modifier);
            at += 1 + piece.len();
        }
        let source = self.source(name);
        self.parts.push(Part::Field(source, modifiers));
        Ok(after)
    }

    fn source(&mut self, name: &str) -> Source {
        match name {
            "aggregate_type" => Source::AggregateType,
            "aggregate_id" => Source::AggregateId,
            "event_type" => Source::EventType,
            _ => {
                let known = self.placed.iter().position(|placed| placed == name);
                Source::Placed(known.unwrap_or_else(|| {
                    self.placed.push(name.to_owned());
                    self.placed.len() - 1
                }))
            }
        }
    }

    /// What the static parts say already about every topic.
    fn check_whole<'t>(&self, text: &'t str) -> Result<(), Fault<'t>> {
        let lengths = self.parts.iter().map(|part| match part {
            Part::Static(text) => text.len(),
            Part::Field(..) => 1,
        });
        let fault = match self.parts.as_slice() {
            [Part::Static(name)] => check_topic(name).err(),
            [] => Some(TopicFault::Empty),
            _ if lengths.sum::<usize>() > TOPIC_BYTES_MAX => Some(TopicFault::TooLong),
            _ => None,
        };
        fault.map_or(Ok(()), |fault| Err((text, format!("the topic {fault}"))))
    }
}

#[cfg(test)]
mod tests;
