//! The topic template, and the topics that values produce.

use walpost::outbox::Field;
use walpost::record::{TopicTemplate, check_topic};

use super::input::{an_event, parts};

/// The first part is the template, the others are its values in the order
/// aggregate type, aggregate id, event type, and the columns that it names.
pub fn topic(input: &[u8]) {
    let mut parts = parts(input);
    let Some(Ok(text)) = parts.next().map(std::str::from_utf8) else { return };
    let template = match text.parse::<TopicTemplate>() {
        Ok(template) => template,
        Err(error) => {
            assert!(error.sign <= text.chars().count(), "{error}");
            assert_eq!(error.template, text);
            return;
        }
    };
    assert_eq!(template.to_string(), text);
    for (at, name) in template.placed().iter().enumerate() {
        assert!(!template.placed()[..at].contains(name), "`{name}` twice in {text}");
    }
    let mut value = || -> Field<'_> { parts.next().map(Into::into) };
    let mut event = an_event();
    event.aggregate_type = value();
    event.aggregate_id = value();
    event.event_type = value();
    event.placed = template.placed().iter().map(|_| value()).collect();
    let mut topic = String::new();
    match template.render(&event, &mut topic) {
        Ok(()) => assert_eq!(check_topic(&topic), Ok(()), "{topic} of {text}"),
        Err(poison) => {
            assert!(poison.to_string().contains(&poison.position.to_string()));
            // A name without a place can be judged when the template is read.
            assert!(text.contains('{'), "{text}: {poison}");
        }
    }
    // Too few values, as of an event that was made for another template.
    event.placed.clear();
    topic.clear();
    if template.render(&event, &mut topic).is_ok() {
        assert_eq!(template.placed(), [""; 0], "{topic} of {text}");
    }
}
