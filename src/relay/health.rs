//! What is known of the sink's state, each change of it told once, in a line that
//! says what is the matter, what walpost does and whether a person has to act.

use tokio::time::Instant;

use super::ends::RelayError;
use super::stall::Stall;
use crate::ledger::Seq;
use crate::sink::Condition;

/// The sink as the relay sees it.
#[derive(Debug)]
pub(super) struct Health {
    /// Records that it acknowledged, repeats included.
    delivered: u64,
    down: Option<Down>,
    stall: Stall,
}

/// Kafka was found unusable.
#[derive(Debug)]
struct Down {
    reason: String,
    /// Deliveries counted then: one more means that it is over.
    at: u64,
    told: bool,
}

impl Health {
    pub(super) fn new(now: Instant) -> Self {
        Self { delivered: 0, down: None, stall: Stall::new(now) }
    }

    /// Records that were acknowledged.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// One more was.
    pub(super) fn acknowledged(&mut self) {
        self.delivered += 1;
        if self.stall.acknowledged() {
            tracing::info!("Kafka acknowledges records again");
        }
    }

    /// This is the oldest record in flight now; whether the sink is to be asked
    /// for what keeps its acknowledgement back.
    pub(super) fn is_doubtful(&mut self, oldest: Option<Seq>) -> bool {
        self.stall.see(oldest, Instant::now())
    }

    /// Takes note of a condition; gives why a new producer is needed, if it is.
    /// An error where the credentials are refused and have never been taken:
    /// `beginning` is whether that may be so.
    pub(super) fn hear(
        &mut self,
        condition: Condition,
        beginning: bool,
    ) -> Result<Option<String>, RelayError> {
        match condition {
            Condition::Unauthenticated(reason) if beginning && self.delivered == 0 => {
                return Err(RelayError::Unauthenticated(reason));
            }
            Condition::Broken(reason) => return Ok(Some(reason)),
            Condition::Unreachable(reason) | Condition::Unauthenticated(reason) => {
                self.down.get_or_insert(Down { reason, at: self.delivered, told: false });
            }
            Condition::Excused(reason) => return Ok(self.stalled(&reason, true)),
            Condition::Well => {
                return Ok(self.stalled("the brokers show no reason for it", false));
            }
        }
        Ok(None)
    }

    /// Tells of an outage, with `in_flight` records in flight, and of its end.
    pub(super) fn tell(&mut self, in_flight: usize) {
        let matters = in_flight > 0 || self.delivered == 0;
        match &mut self.down {
            Some(down) if self.delivered > down.at => {
                if down.told {
                    tracing::info!("Kafka takes records again");
                }
                self.down = None;
            }
            // A connection that closes while nothing is to be sent is no news.
            Some(down) if matters && !down.told => {
                down.told = true;
                tracing::warn!(
                    reason = %down.reason,
                    "Kafka cannot be used, trying again until it can; PostgreSQL keeps what is not delivered"
                );
            }
            _ => {}
        }
    }

    /// A record stays in flight, though the brokers can be asked.
    fn stalled(&mut self, reason: &str, excused: bool) -> Option<String> {
        let now = Instant::now();
        if let Some(stalled) = self.stall.tell(now) {
            tracing::warn!(
                %reason, ?stalled,
                "Kafka answers and does not acknowledge a record, waiting until it does; PostgreSQL \
                 keeps what is not delivered"
            );
        }
        let out = self.stall.is_out_of_patience(excused, now);
        out.then(|| format!("no acknowledgement came for long: {reason}"))
    }
}
