//! The sink for an HTTP endpoint, a webhook: each event is the body of one POST request.
//!
//! HTTP has no order between requests. So one event of a key is under way at most: the next one is sent
//! after an answer of 2xx. A lane has one request in flight, and takes any event whose key is free. What may
//! succeed later is sent again, while others are sent. What the endpoint rejects for good is reported, and
//! nothing more of its key is sent before the producer is replaced.
//!
//! Signatures are those of Standard Webhooks
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>).

mod check;
mod config;
mod connection;
mod lane;
mod names;
mod patience;
mod queue;
mod request;
pub(super) mod settings;
mod signature;
mod sink;
mod url;
mod verdict;

use std::sync::Arc;

use super::parts::settings::reread;
use super::{AssemblyError, Check, Context, Destination, Opened, Server};
use crate::config::Config;
use crate::findings::Findings;
use crate::record::Names;
use crate::sink::BoxFuture;

pub(crate) use config::HttpConfig;
pub(crate) use connection::connect;
pub(super) use names::NAMES;
#[cfg(test)]
pub(super) use request::tests::SAMPLE;
use settings::http_config;
pub(crate) use signature::Signers;
pub(crate) use sink::HttpSink;
pub(crate) use url::HttpUrl;

/// An HTTP endpoint.
pub(super) struct Http;

impl Destination for Http {
    fn kind(&self) -> &'static str {
        settings::DECLARED.kind
    }

    fn names(&self) -> Names {
        NAMES
    }

    fn open(&self, context: &Context<'_>) -> Result<Opened, AssemblyError> {
        let Context { config, metrics } = context;
        let http = http_config(config)?;
        let source = reread(config, http_config);
        let sink = HttpSink::new(&http, &source, Arc::clone(metrics))?;
        Ok(Opened::without_position(sink))
    }

    fn server(&self, config: &Config) -> Option<Server> {
        let found = http_config(config).ok()?;
        let (url, authorization) = (found.url, found.authorization);
        let is_exposed = !url.tls && authorization.is_some();
        Some(Server { address: url.address(), hosts: vec![url.host], is_exposed })
    }

    fn check<'a>(&'a self, check: Check<'a>, findings: &'a mut Findings) -> BoxFuture<'a, ()> {
        Box::pin(check::check(check.config, check.offline, findings))
    }
}
