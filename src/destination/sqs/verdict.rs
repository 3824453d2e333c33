//! What an answer of SQS means for a message, or for all
//! (<https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/CommonErrors.html>).
//!
//! An error that is not known to be about the queue, the credentials or the rate makes the message a
//! suspect. With a wrong endpoint every message is one.

use std::error::Error;

use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;

use crate::destination::parts::Failure;
use crate::destination::parts::attempts::chain;
use crate::outlet::{Ground, Refusal};

/// Codes of errors about who sends.
const CREDENTIALS: [&str; 18] = [
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "NotAuthorized",
    "OptInRequired",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];

/// Codes of errors about the queue.
const QUEUE: [&str; 5] = [
    "InvalidAddress",
    "NonExistentQueue",
    "QueueDeletedRecently",
    "QueueDoesNotExist",
    "UnsupportedOperation",
];

/// Codes of errors about the content of a request.
const CONTENT: [&str; 16] = [
    "BatchEntryIdsNotDistinct",
    "BatchRequestTooLong",
    "InvalidAttributeName",
    "InvalidAttributeValue",
    "InvalidBatchEntryId",
    "InvalidMessageContents",
    "InvalidParameterCombination",
    "InvalidParameterValue",
    "InvalidParameterValueException",
    "MalformedInput",
    "MissingParameter",
    "RequestEntityTooLarge",
    "SerializationException",
    "TooManyEntriesInBatchRequest",
    "ValidationError",
    "ValidationException",
];

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The queue has it.
    Delivered,
    /// SQS rejects it, and it may be the reason.
    Suspect(Refusal),
    /// The message is to be sent again.
    Later(Failure),
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rejection {
    /// A failure that each message would have.
    Failure {
        failure: Failure,
        /// Whether the connection, and the credentials, are to be made anew.
        reopens: bool,
    },
    /// One of its messages may be the reason.
    Suspect(Refusal),
}

/// The verdict by the error of a message in an answer.
pub(super) fn of_entry(error: &BatchResultErrorEntry, address: &str) -> Verdict {
    let reason = said(address, error.code(), error.message());
    match of_code(error.code(), reason.clone()) {
        Some(Rejection::Failure { failure, .. }) => Verdict::Later(failure),
        Some(Rejection::Suspect(refusal)) => Verdict::Suspect(refusal),
        None if error.sender_fault() => {
            Verdict::Suspect(Refusal { ground: Ground::Other, may_pass: false, reason })
        }
        None => Verdict::Later(Failure::Unusable(format!("{reason} (it is tried again)"))),
    }
}

/// The rejection by the error of a request.
pub(super) fn of_request<E>(error: &SdkError<E, HttpResponse>, address: &str) -> Rejection
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let response = match error {
        SdkError::ServiceError(service) => service.raw(),
        SdkError::ResponseError(response) => response.raw(),
        // The credentials may be what could not be read or fetched.
        _ => {
            let failure = Failure::Unreachable(format!("{address}: {}", chain(error)));
            return Rejection::Failure { failure, reopens: true };
        }
    };
    let status = response.status().as_u16();
    let (code, message) = (error.code(), error.message());
    let said = said(address, code.unwrap_or_default(), message);
    if let Some(rejection) = code.and_then(|code| of_code(code, said.clone())) {
        return rejection;
    }
    // The others are of a proxy in between, or of another server.
    of_status(status, &said)
}

/// The rejection by the status of an answer that has no known code.
fn of_status(status: u16, said: &str) -> Rejection {
    if (400..500).contains(&status) && ![408, 425, 429].contains(&status) {
        let ground = if status == 413 { Ground::Size } else { Ground::Other };
        let reason = format!("{said} (status {status})");
        return Rejection::Suspect(Refusal { ground, may_pass: false, reason });
    }
    let is_strange = if status < 400 { ", as SQS does not: see what else is there" } else { "" };
    let reason = format!("{said}{is_strange} (status {status}; it is tried again)");
    Rejection::Failure { failure: Failure::Unusable(reason), reopens: false }
}

/// The rejection by the code of an error; `None`: the code is not known.
fn of_code(code: &str, said: String) -> Option<Rejection> {
    // `AWS.SimpleQueueService.NonExistentQueue`, `com.amazonaws.sqs#QueueDoesNotExist`
    let name = code.rsplit(['.', '#']).next().unwrap_or(code);
    let failure = |failure, reopens| Some(Rejection::Failure { failure, reopens });
    let unusable = |advice: &str| Failure::Unusable(format!("{said} ({advice})"));
    let is_of_key = code.to_ascii_lowercase().contains("kms");
    if is_of_key && !name.contains("Throttled") {
        let advice = "allow walpost's role kms:GenerateDataKey and kms:Decrypt with the queue's key, \
                      and see that the key is enabled";
        return failure(unusable(advice), false);
    }
    if CREDENTIALS.contains(&name) {
        return failure(Failure::Unauthenticated(said), true);
    }
    if QUEUE.contains(&name) {
        let advice = "create the queue, as docs/sqs.md shows, or correct sqs.queue_url, or \
                      sqs.dead_letter_queue_url";
        return failure(unusable(advice), true);
    }
    if CONTENT.contains(&name) {
        let is_size = ["BatchRequestTooLong", "RequestEntityTooLarge"].contains(&name)
            || said.contains("must be shorter than");
        let ground = if is_size { Ground::Size } else { Ground::Other };
        return Some(Rejection::Suspect(Refusal { ground, may_pass: false, reason: said }));
    }
    let is_throttled = ["Throttl", "OverLimit", "RequestLimitExceeded", "SlowDown"]
        .iter()
        .any(|part| name.contains(part));
    if is_throttled {
        return failure(unusable("SQS limits the rate; it is tried again"), false);
    }
    None
}

fn said(address: &str, code: &str, message: Option<&str>) -> String {
    let message = message.map(|text| crate::excerpt::at_most(300, text)).unwrap_or_default();
    match (code, message.as_str()) {
        ("", "") => format!("{address} answered with an error"),
        ("", message) => format!("{address} answered: {message}"),
        (code, "") => format!("{address} answered {code}"),
        (code, message) => format!("{address} answered {code}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str, sender_fault: bool) -> Verdict {
        let error = BatchResultErrorEntry::builder()
            .id("0")
            .code(code)
            .message("why")
            .sender_fault(sender_fault)
            .build()
            .expect("an error");
        of_entry(&error, "h:1")
    }

    #[test]
    fn only_what_may_be_about_the_message_itself_makes_it_a_suspect() {
        for code in ["InvalidMessageContents", "InvalidParameterValue", "SomethingNew"] {
            let Verdict::Suspect(refusal) = of(code, true) else { panic!("{code}") };
            assert_eq!(refusal.reason, format!("h:1 answered {code}: why"));
        }
        for code in ["AccessDenied", "AWS.SimpleQueueService.AccessDenied"] {
            assert!(
                matches!(of(code, true), Verdict::Later(Failure::Unauthenticated(_))),
                "{code}"
            );
        }
        for code in [
            "AWS.SimpleQueueService.NonExistentQueue",
            "com.amazonaws.sqs#QueueDoesNotExist",
            "KMS.DisabledException",
            "KmsAccessDenied",
            "RequestThrottled",
            "KmsThrottled",
            "ThrottlingException",
            "OverLimit",
        ] {
            assert!(matches!(of(code, true), Verdict::Later(Failure::Unusable(_))), "{code}");
        }
        assert!(matches!(of("InternalError", false), Verdict::Later(Failure::Unusable(_))));
    }

    /// A firewall may dislike one message, and a wrong endpoint dislikes all.
    #[test]
    fn status_without_a_known_code_is_about_the_message_or_passes() {
        for status in 300..600 {
            let is_suspect = (400..500).contains(&status) && ![408, 425, 429].contains(&status);
            match of_status(status, "why") {
                Rejection::Suspect(refusal) if is_suspect => {
                    assert_eq!(refusal.ground == Ground::Size, status == 413);
                }
                Rejection::Failure { failure: Failure::Unusable(_), reopens: false }
                    if !is_suspect => {}
                other => panic!("{status}: {other:?}"),
            }
        }
    }

    #[test]
    fn size_has_a_ground_of_its_own() {
        let ground = |code: &str, said: &str| match of_code(code, said.to_owned()) {
            Some(Rejection::Suspect(refusal)) => refusal.ground,
            other => panic!("{other:?}"),
        };
        assert_eq!(ground("AWS.SimpleQueueService.BatchRequestTooLong", "x"), Ground::Size);
        let said = "One or more parameters are invalid. Reason: Message must be shorter than 1024";
        assert_eq!(ground("InvalidParameterValue", said), Ground::Size);
        assert_eq!(ground("InvalidParameterValue", "x"), Ground::Other);
    }
}
