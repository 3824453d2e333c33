//! What a standby instance knows about the client that holds the slot.
//!
//! It decides whether another walpost or some other client advanced the slot, and which publication
//! is accepted: a change that made the active instance halt must not be accepted by its standby.
//!
//! A changed publication is accepted once the other instance has confirmed WAL that was written
//! after the change: a walpost confirms nothing before it has read the publication again and found
//! it unchanged ([`crate::source::Feed::confirm`]). Holding the slot proves nothing, because the
//! process may be suspended.
//!
//! A client that is not walpost can advance the slot past rows that were never published, and
//! disconnect before anyone sees it. So once such a client was seen, only positions that walposts
//! were seen to confirm before it count as confirmed by a walpost. That ends when a walpost vouches
//! for the position, or is seen to confirm more after it: that instance has checked the position at
//! which it started.

use crate::lsn::Lsn;
use crate::source::{Holder, HolderKind, PublicationFingerprint, ServerIdentity, Waited};

/// A relay that waits for the slot.
#[derive(Debug)]
pub(super) struct Standby {
    /// Whether another walpost was seen to hold the slot.
    another: bool,
    /// The highest position that walposts were seen to confirm, before a client that is not
    /// walpost.
    by_walposts: Option<Lsn>,
    /// Set if a client that is not walpost was seen to hold the slot.
    other: Option<OtherClient>,
    /// The role whose halts this instance cannot see, once that was logged.
    warned_of: Option<String>,
    /// The fingerprint that the publication must have when this relay takes over.
    fingerprint: Option<PublicationFingerprint>,
    /// The current publication, if it differs.
    newer: Option<Newer>,
    /// The server on which a client was last seen to hold the slot.
    identity: Option<ServerIdentity>,
    /// The highest `confirmed_flush_lsn` observed.
    confirmed: Lsn,
}

/// The state since a client that is not walpost was seen to hold the slot.
#[derive(Debug, Default)]
struct OtherClient {
    /// The slot's `confirmed_flush_lsn` when a walpost was first seen to hold it again.
    after: Option<Lsn>,
}

/// A changed publication.
#[derive(Debug)]
struct Newer {
    fingerprint: PublicationFingerprint,
    /// The change was committed before this LSN.
    after: Option<Lsn>,
}

impl Standby {
    /// The watch of a relay that has used a publication with that fingerprint, if it has been
    /// active.
    pub(super) fn new(fingerprint: Option<PublicationFingerprint>) -> Self {
        Self {
            another: false,
            by_walposts: None,
            other: None,
            warned_of: None,
            fingerprint,
            newer: None,
            identity: None,
            confirmed: Lsn::ZERO,
        }
    }

    /// Records that a client, walpost or not, was seen to hold the slot while the publication had
    /// this fingerprint.
    pub(super) fn observe(&mut self, holder: &Holder) {
        let Holder { kind, other_role, fingerprint, identity, confirmed, flushed } = holder;
        if let Some(role) = other_role.as_ref().filter(|role| self.warned_of.as_ref() != Some(role))
        {
            self.warned_of = Some(role.clone());
            tracing::warn!(
                role,
                "the walpost that has the slot uses another role: this instance cannot see whether \
                 it halts, and may continue where an operator has to decide; let all instances log in \
                 with the same role"
            );
        }
        let is_walpost = matches!(kind, HolderKind::Walpost | HolderKind::WalpostDelivered);
        self.another |= is_walpost;
        self.saw_confirmed_by(*kind, *confirmed);
        // Checked at the connect: the same server, or one that was promoted and lacks nothing.
        self.identity = Some(identity.clone());
        self.confirmed = self.confirmed.max(*confirmed);
        if self.fingerprint.as_ref().is_none_or(|known| known == fingerprint) {
            self.fingerprint = Some(fingerprint.clone());
            self.newer = None;
            return;
        }
        match &mut self.newer {
            Some(newer) if newer.fingerprint == *fingerprint && is_walpost => {
                // The first read may have seen a change made after its position was read.
                let after = *newer.after.get_or_insert(*flushed);
                if *confirmed > after {
                    (self.fingerprint, self.newer) = (Some(fingerprint.clone()), None);
                }
            }
            _ => self.newer = Some(Newer { fingerprint: fingerprint.clone(), after: None }),
        }
    }

    fn saw_confirmed_by(&mut self, kind: HolderKind, confirmed: Lsn) {
        match (kind, &mut self.other) {
            (HolderKind::Unknown, _) => return,
            (HolderKind::Other, other) => {
                *other = Some(OtherClient::default());
                return;
            }
            (HolderKind::WalpostDelivered, other) => *other = None,
            (HolderKind::Walpost, None) => {}
            (HolderKind::Walpost, Some(other)) => {
                // A walpost that holds only the lock may still find that the slot was advanced.
                if confirmed <= *other.after.get_or_insert(confirmed) {
                    return;
                }
                self.other = None;
            }
        }
        self.by_walposts = self.by_walposts.max(Some(confirmed));
    }

    /// Whether another walpost was seen to hold the slot, and no other client after it.
    pub(super) fn is_after_another(&self) -> bool {
        self.another && self.other.is_none()
    }

    /// The highest position that walposts were seen to confirm.
    pub(super) fn by_walposts(&self) -> Lsn {
        self.by_walposts.unwrap_or_default()
    }

    pub(super) fn publication_fingerprint(&self) -> Option<&PublicationFingerprint> {
        self.fingerprint.as_ref()
    }

    /// The timeline on which it was observed.
    pub(super) fn timeline(&self) -> Option<u32> {
        self.identity.as_ref().map(|identity| identity.timeline)
    }

    /// The highest `confirmed_flush_lsn` observed.
    pub(super) fn confirmed(&self) -> Lsn {
        self.confirmed
    }

    /// What was observed, for an instance that has not been active itself.
    pub(super) fn waited(&self) -> Option<Waited> {
        let (fingerprint, identity) = self.fingerprint.clone().zip(self.identity.clone())?;
        let moved_from = self.by_walposts.filter(|_| self.other.is_some());
        Some(Waited { fingerprint, identity, confirmed: self.confirmed, moved_from })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(
        kind: HolderKind,
        fingerprint: &PublicationFingerprint,
        confirmed: u64,
        timeline: u32,
    ) -> Holder {
        let system_identifier = "7".to_owned();
        let identity = ServerIdentity { system_identifier, timeline, postmaster_start: 1 };
        let (fingerprint, confirmed) = (fingerprint.clone(), Lsn::new(confirmed));
        Holder { kind, other_role: None, fingerprint, identity, confirmed, flushed: confirmed }
    }

    #[test]
    fn a_standby_keeps_the_newest_timeline_and_the_highest_position() {
        let fingerprint = PublicationFingerprint::default();
        let mut standby = Standby::new(None);
        assert_eq!(standby.waited(), None, "no holder was seen");
        for (confirmed, timeline) in [(5, 1), (9, 1), (7, 2)] {
            standby.observe(&holder(HolderKind::Walpost, &fingerprint, confirmed, timeline));
        }
        let waited = standby.waited().expect("a holder was seen");
        assert_eq!((waited.confirmed, waited.identity.timeline), (Lsn::new(9), 2));
        assert_eq!(standby.confirmed(), Lsn::new(9));
    }

    #[test]
    fn a_change_is_accepted_once_a_walpost_has_confirmed_what_was_written_after_it() {
        let (before, after) =
            (PublicationFingerprint::default(), PublicationFingerprint::of("changed"));
        let mut standby = Standby::new(None);
        let mut observe = |is_walpost, fingerprint, confirmed, flushed| {
            let flushed = Lsn::new(flushed);
            let kind = if is_walpost { HolderKind::Walpost } else { HolderKind::Unknown };
            standby.observe(&Holder { flushed, ..holder(kind, fingerprint, confirmed, 1) });
            standby.publication_fingerprint().cloned()
        };
        assert_eq!(observe(true, &before, 10, 10).as_ref(), Some(&before));
        assert_eq!(observe(true, &after, 10, 20).as_ref(), Some(&before));
        // The other walpost has read the publication between that position and this observation,
        // perhaps before the change.
        assert_eq!(observe(true, &after, 25, 30).as_ref(), Some(&before));
        for flushed in 31..1000 {
            assert_eq!(
                observe(true, &after, 30, flushed).as_ref(),
                Some(&before),
                "it never reads the publication"
            );
        }
        assert_eq!(observe(false, &after, 40, 1000).as_ref(), Some(&before), "by another client");
        assert_eq!(observe(true, &after, 40, 1000).as_ref(), Some(&before));
        assert_eq!(observe(true, &after, 1000, 1001).as_ref(), Some(&before));
        assert_eq!(observe(true, &after, 1001, 1001).as_ref(), Some(&after));
        assert!(standby.is_after_another());
    }

    #[test]
    fn a_relay_that_was_active_expects_its_own_publication() {
        let before = PublicationFingerprint::of("before");
        let mut standby = Standby::new(Some(before.clone()));
        standby.observe(&holder(HolderKind::Unknown, &PublicationFingerprint::default(), 1, 1));
        assert_eq!(
            (standby.publication_fingerprint(), standby.is_after_another()),
            (Some(&before), false)
        );
    }

    /// Observations in order, and the position from which the slot may not have been advanced
    /// afterwards.
    #[test]
    fn a_client_that_held_the_slot_accounts_for_no_position() {
        use HolderKind::{Other, Unknown, Walpost, WalpostDelivered};
        type Looks = &'static [(HolderKind, u64)];
        let cases: [(Looks, Option<u64>); 10] = [
            (&[(Walpost, 10)], None),
            (&[(Walpost, 10), (Unknown, 20)], None),
            // A new instance accepts the slot's position.
            (&[(Other, 10)], None),
            (&[(Walpost, 10), (Other, 10)], Some(10)),
            (&[(Walpost, 10), (Other, 15), (Other, 20)], Some(10)),
            // Another standby that is still checking the slot's position may die meanwhile.
            (&[(Walpost, 10), (Other, 20), (Walpost, 25), (Walpost, 25)], Some(10)),
            (&[(Walpost, 10), (Other, 20), (Walpost, 25), (Unknown, 30)], Some(10)),
            (&[(Walpost, 10), (Other, 20), (Walpost, 25), (Walpost, 26)], None),
            (&[(Walpost, 10), (Other, 20), (WalpostDelivered, 25)], None),
            (&[(Walpost, 10), (Other, 9), (WalpostDelivered, 25), (Other, 25)], Some(25)),
        ];
        let fingerprint = PublicationFingerprint::default();
        for (looks, moved_from) in cases {
            let mut standby = Standby::new(None);
            for (kind, confirmed) in looks {
                standby.observe(&holder(*kind, &fingerprint, *confirmed, 1));
            }
            let waited = standby.waited().expect("a holder was seen");
            assert_eq!(waited.moved_from, moved_from.map(Lsn::new), "{looks:?}");
            let is_after_another = looks[0].0 == Walpost && moved_from.is_none();
            assert_eq!(standby.is_after_another(), is_after_another, "{looks:?}");
        }
    }
}
