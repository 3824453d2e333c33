//! What a relay knows of the one that holds the slot in its place.
//!
//! Whether it is another walpost that has moved the slot on, or a person; and
//! how the publication was, so that a change which made the other one stop is not
//! passed over by the one that stood by.
//!
//! Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use crate::lsn::Lsn;
use crate::source::{Holder, PublicationFingerprint, ServerIdentity, Waited};

/// How long a walpost has to have worked with a changed publication before the
/// change counts as seen to: it looks each half a minute, and stops at what it
/// has not begun with.
const STEADY: Duration = Duration::from_secs(90);

/// A relay that waits for the slot.
#[derive(Debug)]
pub(super) struct Standby {
    /// Another walpost was seen to hold the slot.
    another: bool,
    /// How the publication has to be when this relay takes over.
    mark: Option<PublicationFingerprint>,
    /// How it is since then, where that is different.
    newer: Option<(PublicationFingerprint, Instant)>,
    /// The server on which it was first seen that somebody holds the slot.
    identity: Option<ServerIdentity>,
    /// The furthest that the slot was seen to be confirmed.
    confirmed: Lsn,
}

impl Standby {
    /// One that has worked with a publication of that mark, if it has worked.
    pub(super) fn new(mark: Option<PublicationFingerprint>) -> Self {
        Self { another: false, mark, newer: None, identity: None, confirmed: Lsn::ZERO }
    }

    /// Somebody was seen to hold the slot, a walpost or not, while the publication
    /// had this mark.
    pub(super) fn saw(&mut self, holder: &Holder, now: Instant) {
        let Holder { is_walpost, mark, identity, confirmed } = holder;
        self.another |= is_walpost;
        self.identity.get_or_insert_with(|| identity.clone());
        self.confirmed = self.confirmed.max(*confirmed);
        if self.mark.as_ref().is_none_or(|known| known == mark) {
            self.mark = Some(mark.clone());
            self.newer = None;
            return;
        }
        match &self.newer {
            Some((newer, since)) if newer == mark && *is_walpost => {
                if now.saturating_duration_since(*since) >= STEADY {
                    (self.mark, self.newer) = (Some(mark.clone()), None);
                }
            }
            _ => self.newer = Some((mark.clone(), now)),
        }
    }

    /// Whether another walpost was seen to hold the slot.
    pub(super) fn is_after_another(&self) -> bool {
        self.another
    }

    pub(super) fn mark(&self) -> Option<&PublicationFingerprint> {
        self.mark.as_ref()
    }

    /// The furthest that the slot was seen to be confirmed.
    pub(super) fn confirmed(&self) -> Lsn {
        self.confirmed
    }

    /// All that was seen, of an instance that has not worked itself.
    pub(super) fn waited(&self) -> Option<Waited> {
        let (mark, identity) = self.mark.clone().zip(self.identity.clone())?;
        Some(Waited { mark, identity, confirmed: self.confirmed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(
        is_walpost: bool,
        mark: &PublicationFingerprint,
        confirmed: u64,
        timeline: u32,
    ) -> Holder {
        let system_identifier = "7".to_owned();
        let identity = ServerIdentity { system_identifier, timeline, postmaster_start: 1 };
        Holder { is_walpost, mark: mark.clone(), identity, confirmed: Lsn::new(confirmed) }
    }

    #[test]
    fn who_waits_remembers_the_first_server_and_the_furthest_position() {
        let (mark, now) = (PublicationFingerprint::default(), Instant::now());
        let mut standby = Standby::new(None);
        assert_eq!(standby.waited(), None, "nobody was seen");
        for (confirmed, timeline) in [(5, 1), (9, 1), (7, 2)] {
            standby.saw(&holder(true, &mark, confirmed, timeline), now);
        }
        let waited = standby.waited().expect("somebody was seen");
        assert_eq!((waited.confirmed, waited.identity.timeline), (Lsn::new(9), 1));
        assert_eq!(standby.confirmed(), Lsn::new(9));
    }

    #[test]
    fn a_change_counts_as_seen_to_once_a_walpost_has_worked_with_it_for_long() {
        let begun = Instant::now();
        let (before, after) =
            (PublicationFingerprint::default(), PublicationFingerprint::of("changed"));
        let mut standby = Standby::new(None);
        let saw = |standby: &mut Standby, is_walpost, mark, seconds| {
            standby.saw(&holder(is_walpost, mark, 1, 1), begun + Duration::from_secs(seconds));
            standby.mark().cloned()
        };
        assert_eq!(saw(&mut standby, true, &before, 0).as_ref(), Some(&before));
        assert_eq!(saw(&mut standby, true, &after, 1).as_ref(), Some(&before));
        assert_eq!(saw(&mut standby, true, &after, 90).as_ref(), Some(&before));
        assert_eq!(saw(&mut standby, false, &after, 91).as_ref(), Some(&before), "nobody looks");
        assert_eq!(saw(&mut standby, true, &after, 180).as_ref(), Some(&before));
        assert_eq!(saw(&mut standby, true, &after, 181).as_ref(), Some(&after));
        assert!(standby.is_after_another());
    }

    #[test]
    fn who_has_worked_before_waits_with_what_it_worked_with() {
        let before = PublicationFingerprint::of("before");
        let mut standby = Standby::new(Some(before.clone()));
        standby.saw(&holder(false, &PublicationFingerprint::default(), 1, 1), Instant::now());
        assert_eq!((standby.mark(), standby.is_after_another()), (Some(&before), false));
    }
}
