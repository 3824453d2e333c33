//! Which of librdkafka's errors speak against the record itself, and what a
//! person can do about the others. Decides by the error code alone.
//!
//! Codes: <https://kafka.apache.org/protocol#protocol_error_codes> and
//! librdkafka's `rd_kafka_resp_err_t`.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::Outcome;

/// What a failed delivery to `topic` means. A record that goes down with its
/// producer (purged, or behind a fatal error) is no suspect: the one that took
/// the producer down has an error of its own.
pub(super) fn outcome(error: &KafkaError, topic: &str) -> Outcome {
    match error.rdkafka_error_code() {
        None => Outcome::Lost(error.to_string()),
        Some(code) if is_refusal(code) => Outcome::Refused(code.to_string()),
        Some(Code::PurgeQueue | Code::PurgeInflight | Code::Fatal | Code::GaplessGuarantee) => {
            Outcome::Purged
        }
        Some(code) => Outcome::Lost(reason(code, topic)),
    }
}

/// Whether no later attempt with the same record can succeed.
pub(super) fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::MessageSizeTooLarge
            | Code::InvalidMessageSize
            | Code::MessageBatchTooLarge
            | Code::InvalidTimestamp
            | Code::InvalidRecord
            | Code::InvalidTopic
            | Code::PolicyViolation
            | Code::InvalidArgument
    )
}

/// The error in words, with what to do where that is known.
pub(super) fn reason(code: Code, topic: &str) -> String {
    let advice = match code {
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => {
            format!("; create the topic: kafka-topics.sh --create --topic {topic}")
        }
        Code::TopicAuthorizationFailed => {
            format!("; give walpost's user the ACL operations WRITE and DESCRIBE on topic {topic}")
        }
        Code::ClusterAuthorizationFailed => {
            "; give walpost's user the ACL operation IDEMPOTENT_WRITE on the cluster".into()
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

    fn outcome_of(code: Code) -> Outcome {
        outcome(&KafkaError::MessageProduction(code), "orders")
    }

    #[test]
    fn a_record_that_goes_down_with_its_producer_is_no_suspect() {
        for code in [Code::PurgeQueue, Code::PurgeInflight, Code::Fatal] {
            assert_eq!(outcome_of(code), Outcome::Purged, "{code}");
        }
    }

    #[test]
    fn a_record_that_is_too_large_is_refused_and_a_missing_topic_is_waited_for() {
        assert!(matches!(outcome_of(Code::MessageSizeTooLarge), Outcome::Refused(_)));
        let Outcome::Lost(reason) = outcome_of(Code::UnknownTopicOrPartition) else {
            panic!("a missing topic may come to be");
        };
        assert!(reason.contains("kafka-topics.sh --create --topic orders"), "{reason}");
    }
}
