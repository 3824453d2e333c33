//! The client of SQS: credentials, TLS, what the queues are, and requests.

use std::path::Path;
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{
    Builder, ProvideCredentials as _, Region, SharedHttpClient, StalledStreamProtectionConfig,
};
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{MessageAttributeValue, QueueAttributeName, SendMessageBatchRequestEntry};
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::config::{QueueKind, SqsConfig};
use super::message::{Limits, Message, TEXT_TYPE};
use super::url::QueueUrl;
use super::verdict::{Rejection, Verdict, of_entry, of_request};
use crate::destination::parts::Failure;
use crate::destination::parts::attempts::chain;
use crate::destination::parts::roots::roots;
use crate::outlet::{Ground, Refusal};

/// Timeout for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for an answer, with everything that is needed for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// What a queue takes if its attributes do not say: the limit before 2025.
const MESSAGE_BYTES: u64 = 256 << 10;

/// A client, with the queues that it was opened for.
#[derive(Debug)]
pub(crate) struct Connection {
    client: Client,
    config: SqsConfig,
}

/// What is known of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueAttributes {
    pub(crate) limits: Limits,
    /// How long it keeps a message, in seconds; `None`: it does not say.
    pub(crate) retention_seconds: Option<u64>,
    /// Whether it deduplicates within a message group, not over the whole queue.
    pub(crate) deduplicates_by_group: bool,
    /// Whether it has a quota for each message group, not for the whole queue.
    pub(crate) has_quota_by_group: bool,
}

impl Connection {
    /// Makes a client, and reads what the queues are.
    pub(crate) async fn open(
        config: SqsConfig,
    ) -> Result<(Self, [Option<QueueAttributes>; 2]), Failure> {
        let connection = Self::new(config).await?;
        let mut attributes = [None, None];
        for kind in QueueKind::ALL {
            attributes[kind as usize] = connection.attributes(kind).await?;
        }
        Ok((connection, attributes))
    }

    /// Makes a client.
    pub(super) async fn new(config: SqsConfig) -> Result<Self, Failure> {
        let client = client(&config).await?;
        Ok(Self { client, config })
    }

    /// What a queue is; `None`: there is none.
    pub(super) async fn attributes(
        &self,
        kind: QueueKind,
    ) -> Result<Option<QueueAttributes>, Failure> {
        match self.config.queue(kind) {
            Some(queue) => Ok(Some(self.attributes_of(queue).await?)),
            None => Ok(None),
        }
    }

    /// The attributes of a queue that has to be there, and be a FIFO queue.
    async fn attributes_of(&self, queue: &QueueUrl) -> Result<QueueAttributes, Failure> {
        let asked = self
            .client
            .get_queue_attributes()
            .queue_url(queue.as_str())
            .attribute_names(QueueAttributeName::All)
            .send();
        let address = self.config.endpoint.address();
        let answer = asked.await.map_err(|error| match of_request(&error, address) {
            Rejection::Failure { failure: Failure::Unauthenticated(said), .. } => {
                Failure::Unauthenticated(format!("{said} (asking for the attributes of {queue})"))
            }
            Rejection::Failure { failure, .. } => failure,
            Rejection::Suspect(refusal) => {
                Failure::Unusable(format!("{} (asking about {queue})", refusal.reason))
            }
        })?;
        let attributes = answer.attributes().cloned().unwrap_or_default();
        let text = |name: &QueueAttributeName| attributes.get(name).map(String::as_str);
        if text(&QueueAttributeName::FifoQueue) != Some("true") {
            return Err(Failure::Unusable(format!(
                "{queue} is not a FIFO queue: create one, as docs/sqs.md shows, and correct \
                 sqs.queue_url"
            )));
        }
        let number = |name| text(name).and_then(|text| text.parse().ok());
        Ok(QueueAttributes {
            limits: Limits {
                bytes: number(&QueueAttributeName::MaximumMessageSize).unwrap_or(MESSAGE_BYTES),
            },
            retention_seconds: number(&QueueAttributeName::MessageRetentionPeriod),
            deduplicates_by_group: text(&QueueAttributeName::DeduplicationScope)
                == Some("messageGroup"),
            has_quota_by_group: text(&QueueAttributeName::FifoThroughputLimit)
                == Some("perMessageGroupId"),
        })
    }

    /// Sends messages in one request. The outcomes are in their order.
    pub(super) async fn send(
        &self,
        kind: QueueKind,
        messages: &[&Message],
    ) -> Result<Vec<Verdict>, Rejection> {
        let address = self.config.endpoint.address();
        let unusable = |reason: String| Rejection::Failure {
            failure: Failure::Unusable(reason),
            reopens: true,
        };
        let Some(queue) = self.config.queue(kind) else {
            return Err(unusable("sqs.dead_letter_queue_url is not set any more".to_owned()));
        };
        let entries: Result<Vec<_>, _> =
            messages.iter().enumerate().map(|(at, message)| entry(at, message)).collect();
        let entries = entries.map_err(|reason| {
            Rejection::Suspect(Refusal { ground: Ground::Other, may_pass: false, reason })
        })?;
        let request = self.client.send_message_batch().queue_url(queue.as_str());
        let answer = request.set_entries(Some(entries)).send().await;
        let answer = answer.map_err(|error| of_request(&error, address))?;
        let silent = || {
            let reason = format!("{address} did not say what became of a message");
            Verdict::Later(Failure::Unusable(reason))
        };
        let mut verdicts: Vec<Verdict> = messages.iter().map(|_| silent()).collect();
        let mut set = |id: &str, verdict| {
            if let Some(one) = id.parse::<usize>().ok().and_then(|at| verdicts.get_mut(at)) {
                *one = verdict;
            }
        };
        for stored in answer.successful() {
            set(stored.id(), Verdict::Delivered);
        }
        for failed in answer.failed() {
            set(failed.id(), of_entry(failed, address));
        }
        Ok(verdicts)
    }
}

/// How long a dead letter that was taken is hidden from others: longer than it takes to publish it.
const HIDDEN_SECONDS: i32 = 90;

/// How long SQS looks for a message before it says that there is none, in seconds.
const WAIT_SECONDS: i32 = 3;

impl Connection {
    /// Takes a message from the queue of dead letters, which is hidden from others then; `None`: there is none.
    pub(super) async fn receive(&self) -> Result<Option<aws_sdk_sqs::types::Message>, Failure> {
        let request = self.client.receive_message().queue_url(self.letters()?);
        let answer = request
            .max_number_of_messages(1)
            .wait_time_seconds(WAIT_SECONDS)
            .visibility_timeout(HIDDEN_SECONDS)
            .message_attribute_names("All")
            .send()
            .await;
        let answer = answer.map_err(|error| self.failure(&error))?;
        Ok(answer.messages.and_then(|mut messages| messages.pop()))
    }

    /// Removes a dead letter that was taken.
    pub(super) async fn delete(&self, receipt: &str) -> Result<(), Failure> {
        let request = self.client.delete_message().queue_url(self.letters()?);
        let answer = request.receipt_handle(receipt).send().await;
        answer.map(drop).map_err(|error| self.failure(&error))
    }

    /// Makes a dead letter that was taken visible to others again.
    pub(super) async fn give_back(&self, receipt: &str) -> Result<(), Failure> {
        let request = self.client.change_message_visibility().queue_url(self.letters()?);
        let answer = request.receipt_handle(receipt).visibility_timeout(0).send().await;
        answer.map(drop).map_err(|error| self.failure(&error))
    }

    fn letters(&self) -> Result<&str, Failure> {
        let missing = || Failure::Unusable("sqs.dead_letter_queue_url is not set".to_owned());
        Ok(self.config.dead_letter_queue.as_ref().ok_or_else(missing)?.as_str())
    }

    fn failure<E>(&self, error: &SdkError<E, HttpResponse>) -> Failure
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        match of_request(error, self.config.endpoint.address()) {
            Rejection::Failure { failure, .. } => failure,
            Rejection::Suspect(refusal) => Failure::Unusable(refusal.reason),
        }
    }
}

fn entry(at: usize, message: &Message) -> Result<SendMessageBatchRequestEntry, String> {
    let mut entry = SendMessageBatchRequestEntry::builder()
        .id(at.to_string())
        .message_body(&message.body)
        .message_group_id(&message.group)
        .message_deduplication_id(&message.deduplication_id);
    for (name, value) in &message.attributes {
        let value = MessageAttributeValue::builder().data_type(TEXT_TYPE).string_value(value);
        entry = entry.message_attributes(name, value.build().map_err(|error| error.to_string())?);
    }
    entry.build().map_err(|error| error.to_string())
}

/// A client with the credentials of the standard variables, files and services. A request is made
/// once: the sink decides about the next one.
async fn client(config: &SqsConfig) -> Result<Client, Failure> {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_timeout(ANSWER_TIMEOUT)
        .build();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http_client(config)?)
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    if let Some(region) = &config.region {
        loader = loader.region(Region::new(region.clone()));
    }
    let shared = loader.load().await;
    if shared.region().is_none_or(|region| region.as_ref().is_empty()) {
        return Err(Failure::Unusable(
            "no region is known, and requests are signed for one: set sqs.region or AWS_REGION"
                .to_owned(),
        ));
    }
    let no_credentials = |reason: String| {
        Failure::Unauthenticated(format!(
            "no AWS credentials were found ({reason}): set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine or container a role"
        ))
    };
    let provider = shared.credentials_provider();
    let provider = provider.ok_or_else(|| no_credentials("there is no provider".to_owned()))?;
    // Asked here so that their lack is not a failed connection.
    let credentials = provider.provide_credentials().await;
    credentials.map_err(|error| no_credentials(chain(&error)))?;
    let settings = Builder::from(&shared).endpoint_url(config.endpoint.to_string()).build();
    Ok(Client::from_conf(settings))
}

/// HTTP over TLS by rustls with ring, which trusts the configured authorities. It also fetches
/// credentials.
fn http_client(config: &SqsConfig) -> Result<SharedHttpClient, Failure> {
    let trusted = match &config.roots {
        Some(path) => pem(path)
            .map_err(|reason| Failure::Unusable(format!("TLS cannot be set up: {reason}")))?,
        // Without TLS none is needed.
        None if !config.endpoint.requires_tls() => TrustStore::empty(),
        None => {
            let reason = "no root certificates of the system were found: set sqs.ca_file";
            return Err(Failure::Unusable(reason.to_owned()));
        }
    };
    let tls = TlsContext::builder().with_trust_store(trusted).build();
    let tls = tls.map_err(|error| Failure::Unusable(format!("TLS cannot be set up: {error}")))?;
    let client = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .tls_context(tls);
    Ok(client.build_https())
}

/// The usable certificates of a file, in the form that the client wants. It would panic at others.
fn pem(path: &Path) -> Result<TrustStore, String> {
    let mut text = String::new();
    for certificate in roots(path)? {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        STANDARD.encode_string(certificate, &mut text);
        text.push_str("\n-----END CERTIFICATE-----\n");
    }
    Ok(TrustStore::empty().with_pem_certificate(text))
}
