//! Templates: static text with placeholders for an event's fields.
//!
//! A template is independent of its use; topic and key check the resulting text themselves.

use std::fmt;

use crate::outbox::{Event, Field, Role};

use super::poison::Cause;

/// Text with placeholders: `{aggregate_type}`, `{tenant_id|lower}`.
///
/// A placeholder contains a role (`id`, `aggregate_type`, `aggregate_id`, `event_type`), or else a
/// column's name. A literal brace cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    text: String,
    parts: Vec<Part>,
    /// The additional columns that it names, without duplicates.
    columns: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Static(String),
    Field(Source, Vec<Modifier>),
}

/// The value of a placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// One of [`Source::ROLES`].
    Role(Role),
    /// Index among an event's additional columns.
    Column(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Modifier {
    Lower,
    Kebab,
    Snake,
}

impl Source {
    const ROLES: [Role; 4] = [Role::Id, Role::AggregateType, Role::AggregateId, Role::EventType];

    pub(super) fn of<'e, 'a>(self, event: &'e Event<'a>) -> &'e Field<'a> {
        match self {
            Self::Role(role) => event.field(role),
            Self::Column(index) => event.placed.get(index).unwrap_or(&None),
        }
    }
}

impl Template {
    /// Parses a template; `check` returns the first byte of a static text that is not allowed, and
    /// why.
    pub(super) fn parse(
        text: &str,
        check: impl Fn(&str) -> Result<(), (usize, String)>,
    ) -> Result<Self, TemplateError> {
        let mut parser = Parser { parts: Vec::new(), columns: Vec::new(), check };
        parser.template(text).map_err(|(rest, why)| {
            let read = &text[..text.len() - rest.len()];
            TemplateError { template: text.to_owned(), sign: read.chars().count(), why }
        })?;
        let Parser { parts, columns, .. } = parser;
        Ok(Self { text: text.to_owned(), parts, columns })
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The additional columns that it names, without duplicates. Until [`Template::place`], an
    /// event's `placed` fields must be these, in this order.
    pub(super) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The roles that it names.
    pub(super) fn roles(&self) -> impl Iterator<Item = Role> {
        self.parts.iter().filter_map(|part| match part {
            Part::Field(Source::Role(role), _) => Some(*role),
            _ => None,
        })
    }

    /// Looks up its columns in `all`: from now on an event's `placed` fields are these.
    pub(super) fn place(&mut self, all: &[String]) {
        for part in &mut self.parts {
            if let Part::Field(Source::Column(index), _) = part {
                let name = self.columns.get(*index);
                // A column that is not in `all` has no value.
                *index = name
                    .and_then(|name| all.iter().position(|column| column == name))
                    .unwrap_or(usize::MAX);
            }
        }
        self.columns = all.to_vec();
    }

    /// Whether the template is only the unchanged value of this role.
    pub(super) fn is_only(&self, role: Role) -> bool {
        let [Part::Field(source, modifiers)] = self.parts.as_slice() else { return false };
        modifiers.is_empty() && *source == Source::Role(role)
    }

    /// Whether it has no placeholder.
    pub(super) fn has_no_placeholder(&self) -> bool {
        !self.parts.iter().any(|part| matches!(part, Part::Field(..)))
    }

    /// Whether all its fields are NULL.
    pub(super) fn is_null(&self, event: &Event<'_>) -> bool {
        self.parts.iter().all(|part| match part {
            Part::Static(_) => true,
            Part::Field(source, _) => source.of(event).is_none(),
        })
    }

    /// The first field that is longer than `than`.
    pub(super) fn first_longer_field<'e>(
        &self,
        than: usize,
        event: &'e Event<'_>,
    ) -> Option<&'e [u8]> {
        self.parts.iter().find_map(|part| match part {
            Part::Static(_) => None,
            Part::Field(source, _) => source.of(event).as_deref().filter(|it| it.len() > than),
        })
    }

    /// Appends the text for `event` to `out`. A field without a text makes the event poison.
    pub(super) fn render(&self, event: &Event<'_>, out: &mut String) -> Result<(), Cause> {
        for part in &self.parts {
            match part {
                Part::Static(text) => out.push_str(text),
                Part::Field(source, modifiers) => self.field(*source, modifiers, event, out)?,
            }
        }
        Ok(())
    }

    fn field(
        &self,
        source: Source,
        modifiers: &[Modifier],
        event: &Event<'_>,
        out: &mut String,
    ) -> Result<(), Cause> {
        let start = out.len();
        let bytes = source.of(event).as_deref().unwrap_or_default();
        let text = std::str::from_utf8(bytes).map_err(|_| {
            Cause::undecodable(self.name(source), "is not UTF-8, as a template's text must be")
        })?;
        out.push_str(text);
        for modifier in modifiers {
            modifier.apply(out, start);
        }
        if out.len() == start {
            return Err(Cause::MissingField { field: self.name(source).to_owned() });
        }
        Ok(())
    }

    fn name(&self, source: Source) -> &str {
        match source {
            Source::Role(role) => role.name(),
            Source::Column(index) => self.columns.get(index).map_or("", String::as_str),
        }
    }
}

impl fmt::Display for Template {
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

    /// Modifies `text` from `start` on.
    fn apply(self, text: &mut String, start: usize) {
        match self {
            Self::Lower => text[start..].make_ascii_lowercase(),
            Self::Kebab => rejoin_words(text, start, '-'),
            Self::Snake => rejoin_words(text, start, '_'),
        }
    }
}

/// Writes the words from `start` on in lower case, with `joint` between them: `OrderLine`,
/// `order_line` and `Order Line` have two words, and so has `HTTPServer`.
fn rejoin_words(text: &mut String, start: usize, joint: char) {
    let words = text.split_off(start);
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
            text.push(joint);
        }
        text.push(sign.to_ascii_lowercase());
        before = Some(sign);
    }
}

/// An invalid template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "template `{template}`, at sign {}: {why}; write it for instance as \
     outbox.event.{{aggregate_type}} or outbox.event.{{aggregate_type|kebab}}",
    sign + 1
)]
pub struct TemplateError {
    /// The template.
    pub template: String,
    /// The position of the error, in characters from 0.
    pub sign: usize,
    /// The error.
    pub why: String,
}

/// An error, and the rest of the template from there.
type Fault<'t> = (&'t str, String);

struct Parser<C> {
    parts: Vec<Part>,
    columns: Vec<String>,
    check: C,
}

impl<C: Fn(&str) -> Result<(), (usize, String)>> Parser<C> {
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
        Ok(())
    }

    /// Takes the first `end` bytes literally.
    fn literal<'t>(&mut self, rest: &'t str, end: usize) -> Result<&'t str, Fault<'t>> {
        let (text, after) = rest.split_at(end);
        (self.check)(text).map_err(|(at, why)| (&rest[at..], why))?;
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
                let why =
                    format!("`{piece}` is not a modifier; the modifiers are {}", Modifier::NAMES);
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
        if let Some(role) = Source::ROLES.into_iter().find(|role| role.name() == name) {
            return Source::Role(role);
        }
        let known = self.columns.iter().position(|column| column == name);
        Source::Column(known.unwrap_or_else(|| {
            self.columns.push(name.to_owned());
            self.columns.len() - 1
        }))
    }
}
