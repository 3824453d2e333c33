//! The records of destinations other than Kafka.

use crate::config::{Config, ConfigError, Setting, option_error};
use crate::destination;
use crate::record::{Profile, Router, TopicsAllowed};

/// Debezium's option that names headers.
const PLACEMENT: &str = "table.fields.additional.placement";

/// Builds records for the allowed topics, with headers as the destination has them. Dead letters are told from events by their topic: no event
/// may name it.
pub(super) fn router(
    config: &Config,
    profile: Profile,
    allowed: TopicsAllowed,
) -> Result<Router, ConfigError> {
    let reserved = config.poison.dead_letter_topic.clone();
    if profile.topic_of_all().is_some_and(|topic| topic == reserved) {
        let reason = "events go to this topic: name another one";
        return Err(config.invalid(Setting::PoisonDeadLetterTopic, &reason));
    }
    let names = destination::of(config).names();
    if let Err(conflict) = profile.check_names(&names, config.sink.name()) {
        return Err(match &profile {
            Profile::Walpost(_) => config.invalid(Setting::RecordPlace, &conflict),
            Profile::Debezium(_) => option_error(config, PLACEMENT, conflict.to_string()),
        });
    }
    Ok(Router::new(profile).allowing(allowed.without(Some(reserved))).naming(names))
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Environment, Flags, SinkKind};

    fn is_built_in(name: &str) -> bool {
        SinkKind::NAMES.iter().any(|(one, kind)| *one == name && kind.is_built_in())
    }

    fn core_of(toml: &str) -> Result<(), String> {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("walpost.toml"), toml).expect("it is written");
        let environment = Environment::new([], directory.path());
        let config = Config::load(&Flags::default(), &environment).expect("it is read");
        crate::assembly::core(&config).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn headers_that_the_destination_cannot_have_are_errors() {
        let place = |kind: &str, place: &str| {
            core_of(&format!("sink.kind = '{kind}'\nrecord.place = ['{place}']\n"))
        };
        assert_eq!(place("kafka", "a:header:event_type"), Ok(()));
        for (kind, refused, accepted) in [
            ("http", "a:header:Host", "a:header:X-Tenant"),
            ("http", "a:header:event-type", "a:header:content-type"),
            ("nats", "status:header", "status:header:state"),
            ("rabbitmq", "a:header:CC", "a:header:x-tenant"),
            ("redis", "a:header:Event_Type", "a:header:event-type"),
            ("sqs", "a:header:JMS_SQSMessageType", "a:header:AWS.x"),
        ] {
            if !is_built_in(kind) {
                continue;
            }
            let error = place(kind, refused).expect_err(refused);
            assert!(error.contains("`record.place`") && error.contains(kind), "{error}");
            assert_eq!(place(kind, accepted), Ok(()), "{kind}");
        }
    }

    #[cfg(feature = "nats")]
    #[test]
    fn headers_of_a_debezium_profile_are_checked_too() {
        let toml = "sink.kind = 'nats'\nrecord.profile = 'debezium'\n[debezium]\n\
                    table.fields.additional.placement = 'state:header:Status'\n";
        let error = core_of(toml).expect_err("refused");
        assert!(error.contains(super::PLACEMENT) && error.contains("`Status`"), "{error}");
    }
}
