//! Checks the configuration against the features of this build's Kafka client library. Its error
//! texts name the property and do not show its value.

use rdkafka::config::{ClientConfig, NativeClientConfig};
use rdkafka::error::KafkaError;
use strsim::damerau_levenshtein;

use super::oauth_token;
use crate::sink::SinkError;

/// Commonly set properties, to suggest one for a misspelled name.
const PROPERTIES: [&str; 32] = [
    "batch.num.messages",
    "batch.size",
    "broker.address.family",
    "client.id",
    "client.rack",
    "compression.codec",
    "compression.level",
    "compression.type",
    "connections.max.idle.ms",
    "debug",
    "linger.ms",
    "message.max.bytes",
    "metadata.max.age.ms",
    "queue.buffering.max.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retry.backoff.ms",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "socket.keepalive.enable",
    "socket.timeout.ms",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
];

/// The client library does not accept the configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// A property that the library does not support, or not with this value.
    #[error("the Kafka property `{name}` is refused by the client library: {said}{}", meant(*nearest))]
    Property {
        name: String,
        /// The library's message, without the value.
        said: String,
        /// A supported property with a similar name.
        nearest: Option<&'static str>,
    },
    /// A SASL mechanism that this build does not include.
    #[error(
        "SASL mechanism {mechanism} is not available in this build: set sasl.mechanisms to another; \
         the client library was built with {features}"
    )]
    Mechanism {
        mechanism: String,
        /// librdkafka's `builtin.features`.
        features: String,
    },
    /// Tokens are required, but no source of tokens is configured.
    #[error(
        "SASL mechanism OAUTHBEARER needs a token: set sasl.oauthbearer.config to file=PATH of a \
         file that holds one{}",
        if *oidc { ", or sasl.oauthbearer.method to oidc" } else { "" }
    )]
    Token {
        /// Whether this build can fetch tokens from an identity provider.
        oidc: bool,
    },
    /// The client cannot be created for another reason.
    #[error("Kafka's client library refuses the configuration: {0}")]
    Other(KafkaError),
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

/// Checks that this build can authenticate as configured.
pub(crate) fn require(config: &ClientConfig) -> Result<(), ClientError> {
    let native = config.create_native_config()?;
    let value = |name: &str| {
        let value = native.get(name).unwrap_or_default();
        value.trim_end_matches('\0').to_ascii_lowercase()
    };
    if !value("security.protocol").starts_with("sasl_") {
        return Ok(());
    }
    let features = built_in(&native);
    let has = |feature: &str| features.split(',').any(|one| one == feature);
    let mechanism = value("sasl.mechanisms").to_ascii_uppercase();
    let missing = match mechanism.as_str() {
        "PLAIN" => !has("sasl_plain"),
        "OAUTHBEARER" if has("sasl_oauthbearer") => {
            if !oauth_token::is_from_file(config) && value("sasl.oauthbearer.method") != "oidc" {
                return Err(ClientError::Token { oidc: has("oidc") });
            }
            false
        }
        scram if scram.starts_with("SCRAM-") => !has("sasl_scram"),
        _ => true,
    };
    if missing {
        return Err(ClientError::Mechanism { mechanism, features });
    }
    Ok(())
}

/// librdkafka's `builtin.features`, separated by commas. A build by `CMake` lists GSSAPI without
/// having it; no build of walpost has it.
pub(crate) fn built_in(native: &NativeClientConfig) -> String {
    let said = native.get("builtin.features").unwrap_or_default();
    let features = said.trim_end_matches('\0').split(',');
    features.filter(|feature| *feature != "sasl_gssapi").collect::<Vec<_>>().join(",")
}

impl From<ClientError> for SinkError {
    fn from(error: ClientError) -> Self {
        Self::Client(Box::new(error))
    }
}

impl From<KafkaError> for SinkError {
    fn from(error: KafkaError) -> Self {
        ClientError::from(error).into()
    }
}

/// The library's error without the value, which may be a secret.
impl From<KafkaError> for ClientError {
    fn from(error: KafkaError) -> Self {
        let KafkaError::ClientConfig(_, said, name, value) = error else {
            return Self::Other(error);
        };
        let unknown = said.contains("No such configuration property");
        let distance = |known: &&str| damerau_levenshtein(&name, known);
        let nearest = PROPERTIES
            .iter()
            .copied()
            .min_by_key(distance)
            .filter(|known| unknown && distance(known) <= 1 + name.len() / 5);
        let said = if value.is_empty() { said } else { said.replace(&value, "…") };
        Self::Property { name, said, nearest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(properties: &[(&str, &str)]) -> ClientConfig {
        let pairs = properties.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        pairs.collect::<Vec<(String, String)>>().into_iter().collect()
    }

    fn refused(properties: &[(&str, &str)]) -> String {
        require(&config(properties)).expect_err("to be refused").to_string()
    }

    #[test]
    fn library_knows_every_suggested_property() {
        for name in PROPERTIES {
            let refusal = config(&[(name, "")]).create_native_config().err();
            let unknown = refusal.is_some_and(|error| error.to_string().contains("No such"));
            assert!(!unknown, "{name}");
        }
    }

    #[test]
    fn unknown_property_is_reported_with_the_nearest_name_and_without_its_value() {
        let text = refused(&[("sasl.pasword", "s3cret")]);
        assert!(text.contains("`sasl.pasword`") && text.contains("`sasl.password`"), "{text}");
        let text = text + &refused(&[("linger.ms", "s3cret")]);
        let text = text + &refused(&[("colour", "s3cret")]);
        assert!(text.contains("`linger.ms`") && text.contains("`colour`"), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }

    #[test]
    fn tokens_are_read_from_a_file_only() {
        let oauth = [("security.protocol", "SASL_SSL"), ("sasl.mechanism", "OAUTHBEARER")];
        let with = |config| [&oauth[..], &[("sasl.oauthbearer.config", config)]].concat();
        for text in [refused(&oauth), refused(&with("principal=walpost"))] {
            assert!(text.contains("sasl.oauthbearer.config to file=PATH"), "{text}");
        }
        assert!(require(&config(&with("file=/run/token"))).is_ok());
    }

    #[test]
    fn mechanism_that_this_build_lacks_is_reported_as_missing() {
        let sasl = ("security.protocol", "SASL_PLAINTEXT");
        // The library's default, and not in any build of walpost.
        let text = refused(&[sasl]);
        assert!(text.contains("GSSAPI") && text.contains("sasl.mechanisms"), "{text}");
        for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
            assert!(require(&config(&[sasl, ("sasl.mechanism", mechanism)])).is_ok());
        }
        assert!(require(&config(&[("sasl.mechanism", "GSSAPI")])).is_ok(), "it is not used");
    }
}
