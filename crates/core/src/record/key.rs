//! The record key: events with the same key keep their order.

use std::fmt;
use std::str::FromStr;

use crate::outbox::{Event, Role};

use super::poison::{Cause, Poison};
use super::template::{Template, TemplateError};

/// The key of a record as a template; `{aggregate_id}` by default.
///
/// A key that is only the aggregate's id is passed on byte for byte; any other key is text.
#[derive(Debug, Clone)]
pub struct KeyTemplate {
    template: Template,
    /// Whether the key is the unchanged aggregate id.
    plain: bool,
    null_allowed: bool,
}

impl Default for KeyTemplate {
    fn default() -> Self {
        Self::DEFAULT.parse().expect("it is a template")
    }
}

impl KeyTemplate {
    /// The default key.
    pub const DEFAULT: &str = "{aggregate_id}";

    /// With `allowed`, an event whose key fields are all NULL gets a null key: it may go to any
    /// partition, without an order.
    #[must_use]
    pub fn or_null(mut self, allowed: bool) -> Self {
        self.null_allowed = allowed;
        self
    }

    /// The additional columns that it names.
    pub fn placed(&self) -> &[String] {
        self.template.columns()
    }

    /// The roles that it names.
    pub fn roles(&self) -> impl Iterator<Item = Role> {
        self.template.roles()
    }

    pub(super) fn place(&mut self, all: &[String]) {
        self.template.place(all);
    }

    /// The key of `event`; `buffer` may be used to write it.
    pub(super) fn of<'a>(
        &self,
        event: &'a Event<'_>,
        buffer: &'a mut String,
    ) -> Result<Option<&'a [u8]>, Poison> {
        if self.null_allowed && self.template.is_null(event) {
            return Ok(None);
        }
        if self.plain {
            let key = event.aggregate_id.as_deref().filter(|key| !key.is_empty());
            let missing = || Cause::MissingField { field: Role::AggregateId.name().to_owned() };
            return key.map(Some).ok_or_else(|| Poison::new(missing(), event));
        }
        buffer.clear();
        self.template.render(event, buffer).map_err(|cause| Poison::new(cause, event))?;
        Ok(Some(buffer.as_bytes()))
    }
}

impl fmt::Display for KeyTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.template.fmt(f)
    }
}

impl FromStr for KeyTemplate {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let template = Template::parse(text, |_| Ok(()))?;
        if template.has_no_placeholder() {
            let why = "a key that is the same for all events puts them all into one partition: \
                       name a field, as in {aggregate_id}";
            return Err(TemplateError { template: text.to_owned(), sign: 0, why: why.to_owned() });
        }
        let plain = template.is_only(Role::AggregateId);
        Ok(Self { template, plain, null_allowed: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::route::tests::event;

    fn key(template: &str, event: &Event<'_>) -> Result<Option<Vec<u8>>, Poison> {
        let template: KeyTemplate = template.parse().expect("a template");
        let mut buffer = String::new();
        template.or_null(true).of(event, &mut buffer).map(|key| key.map(<[u8]>::to_vec))
    }

    #[test]
    fn a_key_is_the_unchanged_id_or_text_of_several_fields() {
        let mut event = event();
        assert_eq!(
            key("{aggregate_type|lower}/{aggregate_id}", &event),
            Ok(Some(b"order/7".into()))
        );
        event.aggregate_id = Some(b"\xFF".as_slice().into());
        assert_eq!(key("{aggregate_id}", &event), Ok(Some(b"\xFF".to_vec())));
        assert_eq!(
            key("{aggregate_id|lower}", &event).expect_err("text").cause.key(),
            "undecodable"
        );
    }

    #[test]
    fn a_key_is_null_only_if_all_its_fields_are_and_null_is_allowed() {
        let mut event = event();
        event.aggregate_id = None;
        assert_eq!(key("{aggregate_id}", &event), Ok(None));
        assert_eq!(
            key("{id}/{aggregate_id}", &event).expect_err("half").cause.key(),
            "missing_field"
        );
        event.aggregate_id = Some(b"".as_slice().into());
        assert_eq!(key("{aggregate_id}", &event).expect_err("empty").cause.key(), "missing_field");
        event.aggregate_id = None;
        let strict = KeyTemplate::default();
        assert!(strict.of(&event, &mut String::new()).is_err());
    }

    #[test]
    fn a_key_without_a_field_is_rejected() {
        for text in ["", "all"] {
            let error = text.parse::<KeyTemplate>().expect_err(text).to_string();
            assert!(error.contains("one partition"), "{error}");
        }
    }
}
