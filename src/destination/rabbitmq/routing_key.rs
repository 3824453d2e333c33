//! The routing key of a message: a template.

use std::str::FromStr;

use crate::destination::parts::template::{Part, Template};

/// The maximum length of a short string of AMQP, in bytes.
pub(super) const SHORT_MAX: usize = 255;

/// A routing key with placeholders: `{topic}`, `{key}` and `{partition(N)}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RoutingKeyTemplate(Template);

impl RoutingKeyTemplate {
    /// The routing key of an event, or the reason why there is none.
    pub(super) fn render(&self, topic: &str, key: Option<&[u8]>) -> Result<String, String> {
        let routing_key = self.0.render(topic, key, |_| true)?;
        match routing_key.len() {
            ..=SHORT_MAX => Ok(routing_key),
            length => Err(format!(
                "its routing key has {length} bytes, and AMQP allows {SHORT_MAX}: use shorter keys, \
                 or leave {{key}} out of rabbitmq.routing_key"
            )),
        }
    }

    /// Whether it begins with the key, so that a row can choose all of it.
    pub(crate) fn begins_with_key(&self) -> bool {
        self.0.parts.first() == Some(&Part::Key)
    }
}

impl FromStr for RoutingKeyTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let template = Self(Template::parse("rabbitmq.routing_key", text)?);
        let example = template.render("topic", Some(b"key"));
        example.map_err(|reason| format!("`{text}` makes no routing key: {reason}"))?;
        Ok(template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> RoutingKeyTemplate {
        text.parse().expect(text)
    }

    #[test]
    fn routing_key_is_made_of_topic_and_key() {
        let render =
            |text: &str, key: &str| template(text).render("shop.order", Some(key.as_bytes()));
        assert_eq!(render("{key}", "A 7"), Ok("A 7".to_owned()));
        assert_eq!(render("{topic}.{key}", "a.b*%"), Ok("shop.order.a%2Eb*%25".to_owned()));
        assert!(template("{key}.x").begins_with_key() && !template("x{key}").begins_with_key());
        assert_eq!(render("eu.{topic}.{key}", "7"), Ok("eu.shop.order.7".to_owned()));
        assert_eq!(render("{topic}.{partition(8)}", "21"), Ok("shop.order.4".to_owned()));
        assert_eq!(render("", "7"), Ok(String::new()));
        assert_eq!(render("{key}", &"k".repeat(255)), Ok("k".repeat(255)));
    }

    #[test]
    fn what_makes_no_routing_key_has_a_reason() {
        for (key, part) in
            [(None, "has no key"), (Some(&[b'k'; 256][..]), "256 bytes, and AMQP allows 255")]
        {
            let error = template("{key}").render("t", key).expect_err(part);
            assert!(error.contains(part), "{error}");
        }
        for text in ["{topic", "{tenant}", &"x".repeat(256)] {
            assert!(text.parse::<RoutingKeyTemplate>().is_err(), "{text}");
        }
    }
}
