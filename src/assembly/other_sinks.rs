//! The records of destinations other than Kafka.

use crate::config::{Config, ConfigError, Setting, option_error};
use crate::destination;
use crate::record::{Profile, Router, TopicsAllowed};

/// Debezium's option that names headers.
const PLACEMENT: &str = "table.fields.additional.placement";

/// Builds records for the allowed topics, with headers as the destination has them. The topic tells dead
/// letters and events apart: no event may name that of dead letters.
pub(super) fn router(
    config: &Config,
    profile: Profile,
    allowed: TopicsAllowed,
) -> Result<Router, ConfigError> {
    let reserved = config.poison.dead_letter_topic.clone();
    if profile.topic_of_all().is_some_and(|topic| topic == reserved) {
        let reason = "events go to this topic: name another one";
        return Err(config.invalid(Setting::POISON_DEAD_LETTER_TOPIC, &reason));
    }
    let names = destination::of(config).names();
    if let Err(conflict) = profile.check_names(&names, config.sink) {
        return Err(match &profile {
            Profile::Walpost(_) => config.invalid(Setting::RECORD_PLACE, &conflict),
            Profile::Debezium(_) => option_error(config, PLACEMENT, conflict.to_string()),
        });
    }
    Ok(Router::new(profile).allowing(allowed.without(Some(reserved))).naming(names))
}

#[cfg(all(test, feature = "nats"))]
mod tests {
    use crate::config::of_toml;

    fn core_of(toml: &str) -> Result<(), String> {
        let config = of_toml(toml).expect("it is read");
        crate::assembly::core(&config).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn headers_that_the_destination_cannot_have_are_errors() {
        let toml = "sink.kind = 'nats'\nrecord.place = ['status:header']\n";
        let error = core_of(toml).expect_err("refused");
        assert!(error.contains("`record.place`") && error.contains("nats"), "{error}");
        assert_eq!(core_of("record.place = ['status:header']\n"), Ok(()), "with Kafka");
    }

    #[test]
    fn topic_of_dead_letters_is_none_of_events() {
        for topic in [
            "record.topic = 'walpost.dead-letter'",
            "poison.dead_letter_topic = 'outbox'\nrecord.topic = 'outbox'",
        ] {
            let error = core_of(&format!("sink.kind = 'nats'\n{topic}\n")).expect_err("refused");
            assert!(error.contains("`poison.dead_letter_topic`"), "{error}");
        }
    }

    #[test]
    fn headers_of_a_debezium_profile_are_checked_too() {
        let toml = "sink.kind = 'nats'\nrecord.profile = 'debezium'\n[debezium]\n\
                    table.fields.additional.placement = 'state:header:Status'\n";
        let error = core_of(toml).expect_err("refused");
        assert!(error.contains(super::PLACEMENT) && error.contains("`Status`"), "{error}");
    }
}
