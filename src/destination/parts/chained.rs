//! What the sinks have in common that add events to a stream, each only behind the one before it, under the
//! claim of a state key.

use super::Failure;
use super::claims::Claims;
use super::link::{Link, Producer};

/// The end of a stream's chain of events, as this process knows it: `C` is what is there and what was sent
/// over the current connection.
pub(crate) struct Chained<L: Link, T, C> {
    pub(crate) claims: Claims<T>,
    pub(crate) producer: Producer<L>,
    /// With the version of the claim under which it is added to.
    pub(crate) chain: Option<(u64, C)>,
}

impl<L: Link<Claim = String>, T: Copy, C> Chained<L, T, C> {
    pub(crate) fn new(claims: Claims<T>, producer: Producer<L>) -> Self {
        Self { claims, producer, chain: None }
    }

    /// What is there, if events can be added.
    pub(crate) fn chain(&self) -> Option<&C> {
        self.chain.as_ref().map(|(_, chain)| chain)
    }

    /// Asks for a connection if there is none. That of a former claim adds nothing any more.
    pub(crate) fn connect(&mut self) {
        let version = self.claims.version();
        let former = self.chain.take_if(|(of, _)| *of != version);
        if former.is_some() && self.producer.in_flight > 0 {
            self.break_off("the state key was opened again".to_owned());
        }
        if self.chain.is_none() {
            self.producer.ask_under(&self.claims);
        }
    }

    /// A connection that was asked for has come, and `last` is there.
    pub(crate) fn begin(&mut self, last: T, chain: C) {
        if let Some(version) = self.producer.asked() {
            self.claims.set_last(last);
            self.chain = Some((version, chain));
        }
    }

    /// The connection is of no use any more.
    pub(crate) fn failed(&mut self, failure: &Failure, stream: &str) {
        let is_idle = self.producer.in_flight == 0;
        let version = self.chain.take().map(|(version, _)| version);
        let version = self.producer.asked().or(version);
        self.producer.reports.extend(failure.report());
        match failure {
            Failure::Fenced | Failure::Superseded => {
                if let Some(version) = version {
                    self.claims.clear(version);
                }
                // The store opens the state key again, or has done so.
                if is_idle && *failure == Failure::Superseded {
                    return;
                }
            }
            // A new session says what an operator has to do.
            Failure::Stream(_) => {}
            _ if is_idle => return self.producer.ask_under(&self.claims),
            _ => {}
        }
        self.producer.metrics.publish_error(stream, failure.code());
        self.break_off(failure.to_string());
    }

    /// What is in flight is to be produced again.
    fn break_off(&mut self, reason: String) {
        self.chain = None;
        self.producer.break_off(reason);
    }
}
