//! How long an event is sent again before it is a suspect. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::position::EventPosition;

/// The least time for which an event whose connections are closed is sent again: endpoints restart.
const SHORT_LEAST: Duration = Duration::from_secs(10);

/// How long an event has to be answered in a way. Until then it is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// An answer suffices, once other machines had their turn to give another ([`REJECTIONS`]).
    ///
    /// [`REJECTIONS`]: crate::destination::parts::attempts::REJECTIONS
    None,
    /// As long as an earlier request of the event may still be processed, or the endpoint restarts.
    Short,
    /// `http.give_up_after`: such answers usually pass.
    Long,
    /// No limit: the endpoint cannot be used, or not now, and earlier answers say nothing about the
    /// event.
    Endless,
}

/// The longest times.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    /// `http.timeout`
    pub(super) timeout: Duration,
    /// `http.give_up_after`; `None`: never.
    pub(super) give_up_after: Option<Duration>,
}

/// The number of failing events that are remembered. Beyond it, the one that has failed longest is forgotten.
const TRIED_MAX: usize = 4096;

/// The events that are sent again, also by another producer.
#[derive(Debug, Default)]
pub(super) struct Tried(HashMap<EventPosition, Failing>);

#[derive(Debug, Clone, Copy)]
struct Failing {
    since: Instant,
    /// Since when it is answered in a way for which [`Patience::Short`] suffices.
    short_since: Option<Instant>,
}

impl Tried {
    /// Records an answer to the event; returns whether the event is a suspect now.
    pub(super) fn fails(
        &mut self,
        position: EventPosition,
        patience: Patience,
        limits: Limits,
        now: Instant,
    ) -> bool {
        let known = self.0.remove(&position);
        if patience == Patience::Endless {
            return false;
        }
        let (since, short_since) =
            known.map_or((now, None), |failing| (failing.since, failing.short_since));
        let short_since = match patience {
            Patience::Short => Some(short_since.unwrap_or(now)),
            _ => None,
        };
        let has_lasted = |since: Instant, limit| now.saturating_duration_since(since) >= limit;
        let short = limits.timeout.max(SHORT_LEAST);
        let is_suspect = match patience {
            Patience::None => true,
            Patience::Endless => false,
            Patience::Short | Patience::Long => {
                short_since.is_some_and(|since| has_lasted(since, short))
                    || limits.give_up_after.is_some_and(|limit| has_lasted(since, limit))
            }
        };
        // Alone it may be answered otherwise.
        let short_since = short_since.filter(|_| !is_suspect);
        if self.0.len() >= TRIED_MAX
            && let Some((first, _)) = self.0.iter().min_by_key(|(_, failing)| failing.since)
        {
            let first = *first;
            self.0.remove(&first);
        }
        self.0.insert(position, Failing { since, short_since });
        is_suspect
    }

    /// The endpoint took the event.
    pub(super) fn succeeds(&mut self, position: EventPosition) {
        self.0.remove(&position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    const AT: [EventPosition; 2] = [
        EventPosition { commit_lsn: Lsn::new(1), ordinal: 0 },
        EventPosition { commit_lsn: Lsn::new(1), ordinal: 1 },
    ];

    /// Whether the first event is a suspect after each of these answers, at these seconds.
    fn suspects(give_up_after: Option<u64>, answers: &[(u64, Patience)]) -> Vec<bool> {
        let (mut tried, start) = (Tried::default(), Instant::now());
        let give_up_after = give_up_after.map(Duration::from_secs);
        let limits = Limits { timeout: Duration::from_secs(30), give_up_after };
        let of = |(seconds, patience): &(u64, Patience)| {
            tried.fails(AT[0], *patience, limits, start + Duration::from_secs(*seconds))
        };
        answers.iter().map(of).collect()
    }

    #[test]
    fn event_is_a_suspect_once_such_answers_have_lasted() {
        use Patience::{Endless, Long, None as Never, Short};
        assert_eq!(suspects(None, &[(0, Never)]), [true]);
        assert_eq!(suspects(None, &[(0, Short), (29, Short), (30, Short)]), [false, false, true]);
        // And again, once it is tried alone.
        assert_eq!(suspects(None, &[(0, Short), (30, Short), (31, Short)]), [false, true, false]);
        assert_eq!(suspects(None, &[(0, Long), (1_000_000, Long)]), [false, false]);
        assert_eq!(suspects(Some(60), &[(0, Long), (59, Short), (60, Long)]), [false, false, true]);
        // A limit of the rate may hit it just after another event was accepted.
        let limited = [(0, Long), (60, Endless), (61, Long), (120, Long), (121, Long)];
        assert_eq!(suspects(Some(60), &limited), [false, false, false, false, true]);
        // That was long enough.
        assert_eq!(suspects(Some(60), &[(0, Long), (60, Long), (61, Short)]), [false, true, true]);
        // Another answer is in between.
        assert_eq!(suspects(None, &[(0, Short), (29, Long), (30, Short)]), [false; 3]);
    }

    #[test]
    fn outage_begins_anew_and_each_event_has_times_of_its_own() {
        let (mut tried, now) = (Tried::default(), Instant::now());
        let later = now + Duration::from_secs(60);
        let limits = Limits::default();
        assert!(!tried.fails(AT[0], Patience::Short, limits, now));
        assert!(!tried.fails(AT[0], Patience::Endless, limits, later));
        assert!(!tried.fails(AT[0], Patience::Short, limits, later));
        assert!(!tried.fails(AT[1], Patience::Short, limits, later + Duration::from_secs(60)));
        tried.succeeds(AT[0]);
        assert!(tried.fails(AT[1], Patience::Short, limits, later + Duration::from_secs(120)));
        // Those that nobody sends again, since they were skipped, do not stay for ever.
        for number in 0..3 * TRIED_MAX as u64 {
            let at = EventPosition { commit_lsn: Lsn::new(number), ordinal: 0 };
            tried.fails(at, Patience::None, limits, now + Duration::from_millis(number));
        }
        assert_eq!(tried.0.len(), TRIED_MAX);
    }
}
