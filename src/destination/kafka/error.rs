//! Which of librdkafka's errors are caused by the record itself, and the fix for each. Decides by
//! the error code alone.
//!
//! Codes: <https://kafka.apache.org/protocol#protocol_error_codes> and
//! librdkafka's `rd_kafka_resp_err_t`.

use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::outlet::{Ground, Refusal};
use crate::sink::Outcome;

/// A topic, and the brokers in whose commands it is named.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TopicAt<'a> {
    pub(crate) topic: &'a str,
    /// `bootstrap.servers`.
    pub(crate) servers: &'a str,
}

impl<'a> TopicAt<'a> {
    /// The topic, at the brokers of this client.
    pub(crate) fn new(topic: &'a str, config: &'a ClientConfig) -> Self {
        Self { topic, servers: config.get("bootstrap.servers").unwrap_or("…") }
    }

    /// The command that creates it.
    pub(crate) fn create(self) -> String {
        let Self { topic, servers } = self;
        format!("kafka-topics.sh --bootstrap-server {servers} --create --topic {topic}")
    }
}

/// Classifies a failed delivery to the topic. A record that fails with its producer (purged, or after a
/// fatal error) is not at fault: the record that made the producer fail has an error of its own.
pub(crate) fn outcome(error: &KafkaError, at: TopicAt<'_>) -> Outcome {
    match error.rdkafka_error_code() {
        None => Outcome::Lost(error.to_string()),
        Some(Code::PurgeQueue | Code::PurgeInflight | Code::Fatal | Code::GaplessGuarantee) => {
            Outcome::Purged
        }
        Some(code) => outcome_of(code, at, refusal),
    }
}

/// Classifies a record that the client library did not queue.
pub(crate) fn client_outcome(code: Code, at: TopicAt<'_>) -> Outcome {
    outcome_of(code, at, client_refusal)
}

fn outcome_of(code: Code, at: TopicAt<'_>, refusal: fn(Code) -> Refusal) -> Outcome {
    match kind(code) {
        // Also the default: the record is produced again, and nothing is given up.
        FailureKind::Transient => Outcome::Lost(reason(code, at)),
        FailureKind::Unauthorized => Outcome::Suspect(unauthorized_topic(at.topic)),
        FailureKind::Ambiguous => Outcome::Suspect(Refusal { may_pass: true, ..refusal(code) }),
        FailureKind::Permanent => Outcome::Refused(refusal(code)),
    }
}

/// The error's code, as librdkafka's binding spells it.
pub(crate) fn code_name(error: &KafkaError) -> String {
    error.rdkafka_error_code().map_or_else(|| "Unknown".to_owned(), |code| format!("{code:?}"))
}

/// What a failed production means for its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailureKind {
    /// Not caused by the record, or resolved without changing it: walpost retries without a limit.
    Transient,
    /// The topic is at fault, or everything: which is not known.
    Unauthorized,
    /// Caused by the record, or by brokers and settings: which is not known. Perhaps temporary.
    Ambiguous,
    /// Caused by the record, and permanent unless a setting changes: a retry fails again, and only
    /// delays the records that follow.
    Permanent,
}

/// Every code that a production can fail with, and its cause. All other codes belong to requests
/// that a producer does not send (groups, transactions, administration). They count as transient:
/// walpost never gives up a record unless the record is known to be the cause.
///
/// - The size (`MessageSizeTooLarge`, `InvalidMessageSize`, `MessageBatchTooLarge`): the bytes
///   and the topic's limit. Neither changes with time. Permanent.
/// - `InvalidTimestamp`: the record's timestamp, the topic's `message.timestamp.*.max.ms` and the
///   broker's clock. A timestamp that is too old gets older. One that is too far ahead (an hour by
///   default) becomes valid later, but not within the minute for which records are retried.
///   Permanent.
/// - `InvalidRecord`: the broker's validation of the record: no key in a compacted topic, offsets
///   or a format that do not fit. It depends on the bytes and the topic's settings only. Permanent.
/// - `InvalidTopic`: the name, or that it is one of Kafka's internal topics. Permanent.
/// - `InvalidArgument`: librdkafka's own validation of the arguments. Permanent.
/// - `PolicyViolation`: Kafka's brokers never return it for a production. Other servers with Kafka's
///   protocol do, also for quotas, which are temporary. Ambiguous.
/// - `UnsupportedForMessageFormat`, `UnsupportedCompressionType`, `UnsupportedVersion`,
///   `InvalidRequiredAcks`, `InvalidRequest`, `Unknown`: brokers or settings, or a record at which a
///   broker fails. Ambiguous.
/// - `TopicAuthorizationFailed`: an ACL of the topic is missing; where walpost's user may only see some
///   topics, the answer is the same for one that does not exist. Unauthorized.
/// - `InvalidMessage` (a wrong checksum): the bytes were damaged in transit or in memory. The next
///   attempt sends them again. Transient.
/// - `UnknownTopicOrPartition`, `UnknownTopic`, `UnknownPartition`, `UnknownTopicId`: the topic can
///   be created, and partitions added. Transient.
/// - `ClusterAuthorizationFailed`, `Authentication`, `SaslAuthenticationFailed`, `SecurityDisabled`: ACLs
///   and passwords can be restored. Transient.
/// - `NotEnoughReplicas`, `NotEnoughReplicasAfterAppend`, `LeaderNotAvailable`,
///   `NotLeaderForPartition`, `ReplicaNotAvailable`, `BrokerNotAvailable`, `KafkaStorageError`,
///   `LogDirNotFound`, `FencedLeaderEpoch`, `UnknownLeaderEpoch`, `ThrottlingQuotaExceeded`,
///   `RequestTimedOut`, `NetworkException`, `BrokerTransportFailure`, `MessageTimedOut`,
///   `OperationTimedOut`, `TimedOutQueue`, `Resolve`, `SSL`: the cluster or the network. Transient.
/// - `OutOfOrderSequenceNumber`, `DuplicateSequenceNumber`, `UnknownProducerId`,
///   `InvalidProducerEpoch`, `InvalidProducerIdMapping`, `ProducerFenced`: the producer's state; a
///   new producer has a new one. Transient.
fn kind(code: Code) -> FailureKind {
    match code {
        _ if is_size_error(code) => FailureKind::Permanent,
        Code::InvalidTimestamp
        | Code::InvalidRecord
        | Code::InvalidTopic
        | Code::InvalidArgument => FailureKind::Permanent,
        Code::TopicAuthorizationFailed => FailureKind::Unauthorized,
        Code::PolicyViolation
        | Code::UnsupportedForMessageFormat
        | Code::UnsupportedCompressionType
        | Code::UnsupportedVersion
        | Code::InvalidRequiredAcks
        | Code::InvalidRequest
        | Code::Unknown => FailureKind::Ambiguous,
        // See above: an error is retried without a limit unless the record is known to cause it.
        _ => FailureKind::Transient,
    }
}

/// Whether one record of a batch may cause the error for all; the topic is the same for all.
pub(crate) fn is_record_error(code: Code) -> bool {
    is_size_error(code) || matches!(code, Code::InvalidTimestamp | Code::InvalidRecord)
}

/// The code of an error event, by its `text` too.
///
/// librdkafka reports a connection that breaks while it asks for the brokers' SASL mechanisms as
/// `Authentication`, with the local error in the text (`rd_kafka_broker_handle_SaslHandshake`). The
/// brokers have refused nothing then: they may be restarting, or close a connection whose
/// re-authentication is late (KIP-368).
pub(crate) fn event_code(event: &KafkaError, text: &str) -> Option<Code> {
    match event.rdkafka_error_code()? {
        Code::Authentication if breaks_in_handshake(text) => Some(Code::BrokerTransportFailure),
        code => Some(code),
    }
}

/// Whether an error is of a connection that breaks in the SASL handshake. The broker has answered
/// before: address and protocol are right.
pub(crate) fn breaks_in_handshake(text: &str) -> bool {
    text.contains("handshake failed: Local: ")
}

/// Whether a connection to a broker was lost or could not be opened.
pub(crate) fn is_connection_error(code: Code) -> bool {
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::Resolve
            | Code::SSL
            | Code::OperationTimedOut
            // What a server of another protocol sends.
            | Code::BadMessage
    )
}

fn is_size_error(code: Code) -> bool {
    matches!(
        code,
        Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::MessageBatchTooLarge
    )
}

/// The broker's refusal, with the way out.
fn refusal(code: Code) -> Refusal {
    let ground = if is_size_error(code) { Ground::Size } else { Ground::Other };
    let fix = match code {
        _ if ground == Ground::Size => {
            "raise max.message.bytes of the topic (and message.max.bytes of the brokers, where it \
             is what limits the topic)"
        }
        Code::InvalidTimestamp => {
            "the topic accepts timestamps at most message.timestamp.before.max.ms before and \
             message.timestamp.after.max.ms after the broker's clock: change these settings of the \
             topic, or walpost's record.timestamp"
        }
        Code::InvalidRecord => {
            "a compacted topic accepts no record without a key: see the broker's log"
        }
        Code::PolicyViolation => "change the policy of the brokers that forbids it",
        Code::InvalidTopic => "it is one of Kafka's internal topics, or its name is invalid",
        _ => "see the brokers' log, and remove its cause",
    };
    Refusal { ground, may_pass: false, reason: format!("{code}; {fix}") }
}

/// The same of the client library, which takes nothing beyond its own limit.
pub(crate) fn client_refusal(code: Code) -> Refusal {
    match code {
        // Its own word for it is the broker's.
        Code::MessageSizeTooLarge => {
            let reason = "it is too large for walpost's producer; raise its limit (-X \
                message.max.bytes=…), and max.message.bytes of the topic where that is lower";
            Refusal { ground: Ground::Size, may_pass: false, reason: reason.to_owned() }
        }
        _ => refusal(code),
    }
}

/// That the topic is missing, and why walpost could not create it, if it tried to.
pub(crate) fn missing_topic(at: TopicAt<'_>, why: Option<&str>) -> Refusal {
    let why =
        why.map_or_else(String::new, |why| format!(", and walpost could not create it: {why}"));
    let reason = format!("topic `{}` does not exist{why}; create it: {}", at.topic, at.create());
    Refusal { ground: Ground::MissingTopic, may_pass: false, reason }
}

/// That walpost's user may not write to the topic, if it exists.
fn unauthorized_topic(topic: &str) -> Refusal {
    let reason = format!(
        "walpost's user may not write to topic `{topic}`, or it does not exist \
         (TopicAuthorizationFailed): give the user the ACL operations WRITE and DESCRIBE on topic \
         {topic}, and create it if it does not exist"
    );
    Refusal { ground: Ground::MissingTopic, may_pass: false, reason }
}

/// Whether the topic does not exist.
pub(crate) fn is_missing_topic(code: Code) -> bool {
    matches!(code, Code::UnknownTopic | Code::UnknownTopicOrPartition)
}

/// What a producer needs there besides.
const OLD_BROKERS: &str =
    "(and where the brokers are older than 2.8 IDEMPOTENT_WRITE on the cluster)";

/// Why a producer is of no use any more, in librdkafka's words, with what to do where that is known: a fatal
/// error is called back without the code of its cause.
pub(crate) fn fatal_reason(reason: &str) -> String {
    const CODE: Code = Code::ClusterAuthorizationFailed;
    // The code by its name, and in parentheses the words that a reason has.
    let shown = CODE.to_string();
    let words =
        shown.split_once('(').map_or(shown.as_str(), |(_, words)| words.trim_end_matches(')'));
    // A producer asks for its number first. A right to write to some topic answers it.
    if reason.contains(words) {
        return format!(
            "{reason}: walpost's user may write to no topic; give it the ACL operations WRITE and DESCRIBE \
             on the topics {OLD_BROKERS}"
        );
    }
    reason.to_owned()
}

/// The error in words, with what to do where that is known.
pub(crate) fn reason(code: Code, at: TopicAt<'_>) -> String {
    let topic = at.topic;
    let advice = match code {
        // A producer's first question is for a number of its own: since Kafka 2.8 a
        // right to write answers it, so that both come of the same lack.
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
            return format!(
                "walpost's user may not write to topic {topic}; give it the ACL operations WRITE and \
                 DESCRIBE on topic {topic} {OLD_BROKERS}"
            );
        }
        Code::Authentication => {
            "; if the brokers refuse the login, restore the password of walpost's user, or put the new \
             one where walpost reads it"
                .into()
        }
        Code::UnknownPartition => {
            "; the record names its partition: reading the topic's partitions again".into()
        }
        code if is_missing_topic(code) => {
            format!(
                "; create it: {}; what was committed after its event waits, unless poison.missing_topic \
                 is set to dead_letter or skip",
                at.create()
            )
        }
        Code::NotEnoughReplicas | Code::NotEnoughReplicasAfterAppend => {
            "; fewer replicas are in sync than min.insync.replicas asks for".into()
        }
        _ => String::new(),
    };
    format!("{code} (topic {topic}){advice}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::kafka::ConnectionFailure;

    const ORDERS: TopicAt<'_> = TopicAt { topic: "orders", servers: "kafka:9092" };

    fn outcome_of(code: Code) -> Outcome {
        super::outcome(&KafkaError::MessageProduction(code), ORDERS)
    }

    #[test]
    fn connection_that_breaks_in_the_sasl_handshake_is_not_a_refused_login() {
        let event = KafkaError::Global(Code::Authentication);
        let of = |error: &str| {
            format!(
                "sasl_ssl://127.0.0.1:9093/1: SASL SCRAM-SHA-512 mechanism handshake failed: {error}: \
                 broker's supported mechanisms: (n/a) (after 0ms in state DOWN)"
            )
        };
        for (text, code) in [
            (of("Local: Broker transport failure"), Code::BrokerTransportFailure),
            (of("Local: Timed out"), Code::BrokerTransportFailure),
            (of("Broker: Unsupported SASL mechanism"), Code::Authentication),
            ("SASL authentication error: Authentication failed".into(), Code::Authentication),
        ] {
            assert_eq!(event_code(&event, &text), Some(code), "{text}");
            let failure = ConnectionFailure::of(code, &text);
            let is_refused = code == Code::Authentication;
            assert_eq!(failure.is_refused_login(), is_refused, "{text}");
            let unreachable = matches!(failure, ConnectionFailure::Unreachable(_));
            assert_eq!(unreachable, !is_refused, "{text}");
        }
    }

    #[test]
    fn a_record_lost_with_its_producer_is_not_at_fault() {
        for code in [Code::PurgeQueue, Code::PurgeInflight, Code::Fatal] {
            assert_eq!(outcome_of(code), Outcome::Purged, "{code}");
        }
    }

    #[test]
    fn a_refusal_names_the_setting_that_lets_the_record_pass() {
        for (code, setting) in [
            (Code::MessageSizeTooLarge, "max.message.bytes of the topic"),
            (Code::InvalidTimestamp, "message.timestamp.before.max.ms"),
        ] {
            let Outcome::Refused(refusal) = outcome_of(code) else { panic!("{code} is a refusal") };
            assert!(refusal.reason.contains(setting), "{refusal:?}");
            assert_eq!(refusal.ground == Ground::Size, code == Code::MessageSizeTooLarge);
        }
        let refusal = client_refusal(Code::MessageSizeTooLarge);
        assert!(refusal.ground == Ground::Size && refusal.reason.contains("-X message.max.bytes"));
    }

    #[test]
    fn only_what_is_known_to_be_about_the_record_is_refused_for_good() {
        for code in [
            Code::MessageSizeTooLarge,
            Code::InvalidTimestamp,
            Code::InvalidRecord,
            Code::InvalidTopic,
        ] {
            let Outcome::Refused(refusal) = outcome_of(code) else { panic!("{code} is a refusal") };
            assert!(!refusal.may_pass, "{code}");
        }
        for (code, ground, may_pass) in [
            (Code::TopicAuthorizationFailed, Ground::MissingTopic, false),
            (Code::PolicyViolation, Ground::Other, true),
            (Code::UnsupportedForMessageFormat, Ground::Other, true),
            (Code::Unknown, Ground::Other, true),
        ] {
            let Outcome::Suspect(refusal) = outcome_of(code) else { panic!("{code} is ambiguous") };
            assert_eq!((refusal.ground, refusal.may_pass), (ground, may_pass), "{code}");
            assert!(matches!(client_outcome(code, ORDERS), Outcome::Suspect(_)), "{code}");
        }
        for code in [
            Code::InvalidMessage,
            Code::ClusterAuthorizationFailed,
            Code::NotEnoughReplicas,
            Code::OutOfOrderSequenceNumber,
        ] {
            assert!(matches!(outcome_of(code), Outcome::Lost(_)), "{code}");
        }
    }

    #[test]
    fn producer_without_any_right_says_which_one_it_lacks() {
        let said = "Failed to acquire idempotence PID from broker b:9092/1: Broker: Cluster authorization failed";
        let reason = fatal_reason(said);
        assert!(reason.starts_with(said) && reason.contains("WRITE and DESCRIBE"), "{reason}");
        assert_eq!(fatal_reason("Broker: Producer fenced"), "Broker: Producer fenced");
    }

    #[test]
    fn a_topic_that_walpost_may_not_write_to_is_named_with_the_fix() {
        let Outcome::Suspect(refusal) = outcome_of(Code::TopicAuthorizationFailed) else {
            panic!("it may be each topic, or all")
        };
        for part in ["topic `orders`, or it does not exist", "WRITE and DESCRIBE on topic orders"] {
            assert!(refusal.reason.contains(part), "{}", refusal.reason);
        }
    }

    #[test]
    fn a_record_that_is_too_large_is_refused_and_a_missing_topic_is_waited_for() {
        assert!(matches!(outcome_of(Code::MessageSizeTooLarge), Outcome::Refused(_)));
        let Outcome::Lost(reason) = outcome_of(Code::UnknownTopicOrPartition) else {
            panic!("a missing topic may come to be");
        };
        assert!(
            reason
                .contains("kafka-topics.sh --bootstrap-server kafka:9092 --create --topic orders"),
            "{reason}"
        );
    }
}
