//! The URL of a queue, and of the server that has it.

use std::fmt;

use hyper::Uri;

/// The end of the name of each FIFO queue
/// (<https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-queue-message-identifiers.html>).
const FIFO: &str = ".fifo";

/// A queue of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueUrl {
    text: String,
    endpoint: Endpoint,
    name: String,
}

impl QueueUrl {
    /// Parses `https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.fifo`, or a URL of that form of another
    /// server.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let form = "it is not of the form https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.fifo";
        let (endpoint, path) = parse(text).ok_or(form)?;
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        if name.is_empty() {
            return Err(form.to_owned());
        }
        if !name.ends_with(FIFO) {
            return Err(format!(
                "the queue {name} is not a FIFO queue, whose name ends in `{FIFO}`: only such a \
                 queue keeps the order of a key. Create one (aws sqs create-queue --queue-name \
                 {name}{FIFO} --attributes FifoQueue=true)"
            ));
        }
        Ok(Self { text: text.to_owned(), endpoint, name })
    }

    /// The URL as requests have it.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The name of the queue.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The server.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl fmt::Display for QueueUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    tls: bool,
    /// Host and port, as they were given.
    authority: String,
}

impl Endpoint {
    /// Parses `https://host[:port]` or `http://…`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let form = "it is not of the form https://host[:port]";
        let (endpoint, path) = parse(text).ok_or(form)?;
        if path.is_empty() || path == "/" { Ok(endpoint) } else { Err(form.to_owned()) }
    }

    /// Whether connections use TLS.
    pub(crate) fn requires_tls(&self) -> bool {
        self.tls
    }

    /// The address, for messages.
    pub(crate) fn address(&self) -> &str {
        &self.authority
    }

    /// The host, without brackets.
    pub(crate) fn host(&self) -> &str {
        let host = match self.authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => host,
            _ => &self.authority,
        };
        host.trim_matches(['[', ']'])
    }

    /// The region in the name of a server of Amazon's: `sqs.REGION.amazonaws.com`,
    /// `sqs-fips.REGION…`, `ID.sqs.REGION.vpce.…`, `sqs.REGION.api.aws`, `REGION.queue.…`
    /// (<https://docs.aws.amazon.com/general/latest/gr/sqs-service.html>).
    pub(crate) fn region(&self) -> Option<&str> {
        let host = self.authority.split(':').next()?;
        let is_amazons = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"]
            .iter()
            .any(|end| host.ends_with(end));
        let mut parts = host.split('.');
        let mut before = parts.next().filter(|_| is_amazons)?;
        for part in parts {
            if before == "sqs" || before == "sqs-fips" {
                return Some(part);
            }
            if part == "queue" {
                return Some(before);
            }
            before = part;
        }
        None
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}

/// The server, and the path.
fn parse(text: &str) -> Option<(Endpoint, &str)> {
    let uri: Uri = text.parse().ok()?;
    let tls = match uri.scheme_str()? {
        "https" => true,
        "http" => false,
        _ => return None,
    };
    let authority = uri.authority()?.as_str();
    if authority.contains('@') || text.contains(['?', '#']) {
        return None;
    }
    let (_, rest) = text.split_once("://")?;
    let path = rest.get(authority.len()..)?;
    Some((Endpoint { tls, authority: authority.to_owned() }, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_has_server_region_and_name() {
        for (text, endpoint, region, name) in [
            (
                "https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo",
                "https://sqs.eu-central-1.amazonaws.com",
                Some("eu-central-1"),
                "orders.fifo",
            ),
            (
                "https://sqs.cn-north-1.amazonaws.com.cn/1/o.fifo",
                "https://sqs.cn-north-1.amazonaws.com.cn",
                Some("cn-north-1"),
                "o.fifo",
            ),
            (
                "https://vpce-1-x.sqs.us-east-1.vpce.amazonaws.com/1/o.fifo",
                "https://vpce-1-x.sqs.us-east-1.vpce.amazonaws.com",
                Some("us-east-1"),
                "o.fifo",
            ),
            (
                "https://sqs-fips.us-west-2.amazonaws.com/1/o.fifo",
                "https://sqs-fips.us-west-2.amazonaws.com",
                Some("us-west-2"),
                "o.fifo",
            ),
            (
                "https://eu-west-1.queue.amazonaws.com/1/o.fifo",
                "https://eu-west-1.queue.amazonaws.com",
                Some("eu-west-1"),
                "o.fifo",
            ),
            ("http://127.0.0.1:9324/000000000000/o.fifo", "http://127.0.0.1:9324", None, "o.fifo"),
            ("https://sqs.example.com/1/o.fifo", "https://sqs.example.com", None, "o.fifo"),
        ] {
            let url = QueueUrl::parse(text).expect(text);
            assert_eq!(url.endpoint().to_string(), endpoint);
            assert_eq!((url.endpoint().region(), url.name()), (region, name), "{text}");
            assert_eq!(url.endpoint().host(), endpoint.split(['/', ':']).nth(3).expect("a host"));
        }
    }

    #[test]
    fn invalid_url_and_plain_queue_are_errors() {
        for text in ["", "orders.fifo", "ftp://h/1/o.fifo", "https://h", "https://h/", "http://"] {
            assert!(QueueUrl::parse(text).expect_err(text).contains("of the form"), "{text}");
        }
        for text in ["https://u:p@h/1/o.fifo", "https://h/1/o.fifo?x=1", "https://h/o.fifo#x"] {
            assert!(QueueUrl::parse(text).expect_err(text).contains("of the form"), "{text}");
        }
        let error = QueueUrl::parse("https://h/1/orders").expect_err("no FIFO queue");
        assert!(error.contains("orders is not a FIFO queue") && error.contains("create-queue"));
        assert!(Endpoint::parse("http://h:1").is_ok() && Endpoint::parse("http://h/").is_ok());
        assert!(Endpoint::parse("http://h/x").is_err() && Endpoint::parse("h:1").is_err());
    }
}
