//! Notes some of the events that pass, as many as the endpoints ask for: see [`metrics::Trail`]. It decides
//! nothing. With exactly-once delivery an event is acknowledged before its transaction is committed.
//!
//! [`metrics::Trail`]: crate::metrics::Trail

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::excerpt::at_most;
use crate::ledger::Seq;
use crate::metrics::{Metrics, TRAIL, TrailEvent};
use crate::outlet::{Outlet, ProduceError, Refusal};
use crate::pgoutput::PgTimestamp;
use crate::position::EventPosition;
use crate::record::{ID_HEADER, Record};
use crate::sink::{Outcome, Report, Sink};

/// Maximum length of a displayed name, in characters.
const NAME: usize = 80;

/// The events that were noted and wait for their acknowledgements.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// In the order of their productions.
    events: Vec<(Seq, TrailEvent)>,
    /// With a seed of its own, so that a key cannot be found by trying some.
    hasher: RandomState,
}

impl Noted {
    /// How many more to note.
    pub(super) fn wanted(&self, metrics: &Metrics) -> bool {
        metrics.trail.wanted() > 0 && self.events.len() < TRAIL as usize
    }

    /// Passes on those that are acknowledged. A record that is lost is published again, as another
    /// production.
    pub(super) fn reported(
        &mut self,
        reports: &[Report],
        committed: impl Fn(Seq) -> Option<PgTimestamp>,
        metrics: &Metrics,
    ) {
        let (Some((first, _)), Some((last, _))) = (self.events.first(), self.events.last()) else {
            return;
        };
        let range = *first..=*last;
        for report in reports.iter().filter(|report| range.contains(&report.seq)) {
            let Ok(at) = self.events.binary_search_by_key(&report.seq, |(seq, _)| *seq) else {
                continue;
            };
            let (_, event) = self.events.remove(at);
            if report.outcome == Outcome::Delivered
                && let Some(committed) = committed(report.seq)
            {
                metrics.trail.add(acknowledged(event, report.at, committed));
            }
        }
    }

    /// The producer was replaced: there are no more reports.
    pub(super) fn forget(&mut self) {
        self.events.clear();
    }
}

/// The event, acknowledged at `at`.
fn acknowledged(event: TrailEvent, at: Instant, committed: PgTimestamp) -> TrailEvent {
    let at = SystemTime::now() - at.elapsed();
    let micros = u64::try_from(committed.unix_micros()).unwrap_or_default();
    let committed = UNIX_EPOCH + Duration::from_micros(micros);
    let latency = at.duration_since(committed).unwrap_or_default();
    TrailEvent { at, latency, ..event }
}

/// A sink that notes what it takes.
pub(super) struct Noting<'a> {
    pub(super) sink: &'a mut dyn Sink,
    pub(super) noted: &'a mut Noted,
    pub(super) metrics: &'a Metrics,
}

impl Outlet for Noting<'_> {
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        self.sink.produce(seq, position, record)?;
        if self.noted.wanted(self.metrics) {
            self.metrics.trail.want(self.metrics.trail.wanted() - 1);
            let key = record.key.map(|key| self.noted.hasher.hash_one(key));
            self.noted.events.push((seq, event(position, key, record)));
        }
        Ok(())
    }

    fn lane(&self, record: &Record<'_>) -> Option<u64> {
        self.sink.lane(record)
    }

    fn has_place_for_each_topic(&self) -> bool {
        self.sink.has_place_for_each_topic()
    }

    fn outlives_refusals(&self) -> bool {
        self.sink.outlives_refusals()
    }

    fn asks(&self) -> bool {
        self.sink.asks()
    }

    fn probe(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        self.sink.probe(seq, position, record)
    }

    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        self.sink.admits(topic, bytes)
    }
}

fn event(position: EventPosition, key: Option<u64>, record: &Record<'_>) -> TrailEvent {
    let id = record.headers.iter().find(|header| header.name == ID_HEADER);
    let id = id.and_then(|header| header.value.as_deref()).unwrap_or_default();
    TrailEvent {
        at: UNIX_EPOCH,
        topic: at_most(NAME, record.topic),
        key,
        id: at_most(NAME, &String::from_utf8_lossy(id)),
        position,
        bytes: record.bytes() as u64,
        latency: Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    fn noted(seqs: impl IntoIterator<Item = u64>) -> Noted {
        let record = Record {
            topic: "t",
            partition: None,
            key: None,
            value: None,
            timestamp_ms: None,
            headers: crate::record::Headers::default(),
        };
        let of = |seq| {
            let position = EventPosition { commit_lsn: Lsn::new(seq), ordinal: 0 };
            (Seq::new(seq), event(position, None, &record))
        };
        Noted { events: seqs.into_iter().map(of).collect(), hasher: RandomState::new() }
    }

    fn ordinals(metrics: &Metrics) -> Vec<u64> {
        metrics.trail.last().iter().map(|event| event.position.commit_lsn.as_u64()).collect()
    }

    #[test]
    fn events_are_shown_when_they_are_acknowledged() {
        let (metrics, mut noted) = (Metrics::default(), noted([3, 4, 6]));
        assert!(!noted.wanted(&metrics));
        metrics.trail.want(1);
        assert!(noted.wanted(&metrics));
        let report = |seq, outcome| Report::new(Seq::new(seq), outcome);
        let reports = [
            report(5, Outcome::Delivered),
            report(6, Outcome::Delivered),
            report(3, Outcome::Lost(String::new())),
        ];
        let committed = |_| Some(PgTimestamp::from_unix_micros(0));
        noted.reported(&reports, committed, &metrics);
        assert_eq!((ordinals(&metrics), noted.events.len()), (vec![6], 1));
        noted.reported(&[report(4, Outcome::Delivered)], committed, &metrics);
        assert_eq!(ordinals(&metrics), [4, 6]);
    }

    #[test]
    fn number_of_events_is_bounded() {
        let (metrics, mut noted) = (Metrics::default(), noted(0..u64::from(TRAIL)));
        metrics.trail.want(TRAIL);
        assert!(!noted.wanted(&metrics));
        let reports: Vec<_> =
            (0..200).map(|seq| Report::new(Seq::new(seq), Outcome::Delivered)).collect();
        noted.reported(&reports, |_| Some(PgTimestamp::from_unix_micros(0)), &metrics);
        for seq in 100..200 {
            noted = super::tests::noted([seq]);
            noted.reported(&reports, |_| Some(PgTimestamp::from_unix_micros(0)), &metrics);
        }
        assert_eq!(ordinals(&metrics), (150..200).rev().collect::<Vec<_>>());
    }
}
