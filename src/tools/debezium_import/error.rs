//! Why a text is not a connector's configuration.

use super::properties::PropertiesError;

/// Why a text is not a connector's configuration.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file that starts like JSON, but is invalid.
    #[error("it is not the JSON that Kafka Connect takes: {0}")]
    Json(#[from] serde_json::Error),
    /// A file that is not JSON, and not a valid properties file.
    #[error("it is not a properties file as Java reads it: {0}")]
    Properties(#[from] PropertiesError),
    /// A Kubernetes resource.
    #[error(
        "it is YAML; for Strimzi's KafkaConnector give what this prints: kubectl get kafkaconnector NAME \
         -o json | jq '.spec.config + {{\"connector.class\": .spec.class}}'"
    )]
    Yaml,
    /// walpost's own configuration.
    #[error(
        "it is TOML, as walpost's own configuration is: give the connector's configuration, as JSON or \
         properties"
    )]
    Toml,
    /// An option whose value Kafka Connect would not accept either.
    #[error("the value of `{name}` is not a text, number or boolean")]
    NoText {
        /// The option.
        name: String,
    },
    /// A shell script without a connector's configuration as JSON.
    #[error(
        "it is a shell script, and no connector's configuration in it can be read: give the JSON alone, \
         or what `curl http://connect:8083/connectors/NAME` prints"
    )]
    Script,
    /// A list of several connectors.
    #[error(
        "it has several connectors or none for PostgreSQL ({names}): give what \
         `curl http://connect:8083/connectors/NAME` prints of one"
    )]
    Several {
        /// The names of the connectors.
        names: String,
    },
    /// A file without an option.
    #[error("it contains no options")]
    Empty,
}
