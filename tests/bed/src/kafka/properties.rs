//! The content of a node's `server.properties`.
//!
//! Reference: <https://kafka.apache.org/documentation/#brokerconfigs>.

use std::fmt::Write as _;

use super::{Kafka, KafkaBuilder, secure};

const PLAIN: &str = "org.apache.kafka.common.security.plain.PlainLoginModule required";
const SCRAM: &str = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
/// With the module's own callbacks, which accept any token.
const TOKENS: &str =
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;";

/// The text for this node, as the builder wants it.
pub(super) fn text(builder: &KafkaBuilder, kafka: &Kafka) -> String {
    let controller = kafka.controller_port.number();
    let plain = format!("PLAINTEXT://127.0.0.1:{}", kafka.port.number());
    let mut listeners = format!("{plain},CONTROLLER://127.0.0.1:{controller}");
    let mut advertised = plain;
    let mut text = String::new();
    if let Some(port) = &kafka.sasl_port {
        let address = format!(",SASL://127.0.0.1:{}", port.number());
        listeners.push_str(&address);
        advertised.push_str(&address);
        text.push_str(&passwords(builder, "sasl", &["SCRAM-SHA-512"]));
    }
    if let (Some(secure), Some(mutual)) = (&kafka.secure_port, &kafka.mutual_port) {
        let own = [("SECURE", secure), ("MUTUAL", mutual)];
        for (name, port) in own {
            let address = format!(",{name}://127.0.0.1:{}", port.number());
            listeners.push_str(&address);
            advertised.push_str(&address);
        }
        let mechanisms = ["SCRAM-SHA-512", "OAUTHBEARER"];
        text.push_str(&passwords(builder, "secure", &mechanisms));
        text.push_str(&secure::text(kafka));
    }
    if let (Some(own), Some(proxy)) = (&kafka.proxied_port, builder.advertised_port) {
        let _ = write!(listeners, ",PROXIED://127.0.0.1:{}", own.number());
        let _ = write!(advertised, ",PROXIED://127.0.0.1:{proxy}");
    }
    let data = kafka.data_directory();
    let own_voter = format!("1@127.0.0.1:{controller}");
    let _ = write!(
        text,
        "process.roles=broker,controller\n\
         node.id={}\n\
         controller.quorum.voters={}\n\
         listeners={listeners}\n\
         advertised.listeners={advertised}\n\
         controller.listener.names=CONTROLLER\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,\
         SASL:SASL_PLAINTEXT,PROXIED:PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL\n\
         log.dirs={}\n\
         auto.create.topics.enable=true\n\
         num.partitions=3\n\
         offsets.topic.num.partitions=1\n\
         offsets.topic.replication.factor=1\n\
         transaction.state.log.num.partitions=1\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         group.initial.rebalance.delay.ms=0\n",
        kafka.node,
        builder.voters.as_deref().unwrap_or(&own_voter),
        data.display()
    );
    for (name, value) in &builder.properties {
        let _ = writeln!(text, "{name}={value}");
    }
    text
}

/// Ways to log in: users that stand here, for PLAIN, and those that are made under way
/// or show a token.
fn passwords(builder: &KafkaBuilder, listener: &str, mechanisms: &[&str]) -> String {
    let name = format!("listener.name.{listener}");
    let mut text = format!("{name}.sasl.enabled.mechanisms=PLAIN,{}\n", mechanisms.join(","));
    for mechanism in mechanisms {
        let module = if *mechanism == "OAUTHBEARER" { TOKENS } else { SCRAM };
        let _ = writeln!(text, "{name}.{}.sasl.jaas.config={module}", mechanism.to_lowercase());
    }
    let _ = write!(text, "{name}.plain.sasl.jaas.config={PLAIN}");
    for (name, password) in &builder.users {
        let _ = write!(text, " user_{name}=\"{password}\"");
    }
    text.push_str(";\n");
    text
}
