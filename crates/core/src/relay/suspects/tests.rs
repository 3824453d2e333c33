//! A destination that refuses each record that a closure names, and accepts the others.

use super::super::tests::{TABLE, ambiguous, begun, insert, new_core, relation_of};
use super::super::*;
use super::{EVIDENCE, PROBES};
use crate::outlet::{Ground, hash};
use crate::pgoutput::encode::texts;
use crate::pgoutput::{Commit, Insert, Message};
use crate::position::{Checkpoint, EventPosition};
use crate::record::{Policy, Record};

/// Takes everything; what is in flight, with its event, and whether it is a dead letter.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is independent of the others")]
struct Destination {
    in_flight: Vec<(Seq, usize, bool)>,
    has_one_order: bool,
    /// Whether its producer takes nothing more once a record was refused, as Kafka's.
    is_spent_by_refusals: bool,
    is_spent: bool,
    outlives_refusals: bool,
    /// Whether each topic is a place of its own; then event 0 has another topic than the others.
    has_places: bool,
    /// Whether the destination has one order, and is asked about probes.
    asks: bool,
    /// Events whose topic is known to be missing.
    missing: std::ops::Range<usize>,
    /// What it was asked about.
    asked: Vec<usize>,
}

const DEAD: &str = Policies::DEAD_LETTER_TOPIC;

impl Outlet for Destination {
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        if self.is_spent {
            return Err(ProduceError::Full);
        }
        let event = position.ordinal as usize;
        if self.missing.contains(&event) {
            return Err(ProduceError::Suspect(missing()));
        }
        self.in_flight.push((seq, event, record.topic == DEAD));
        Ok(())
    }

    fn lane(&self, record: &Record<'_>) -> Option<u64> {
        (!self.has_one_order).then(|| hash(&(record.topic, record.key)))
    }

    fn has_place_for_each_topic(&self) -> bool {
        self.has_places
    }

    fn outlives_refusals(&self) -> bool {
        self.outlives_refusals
    }

    fn asks(&self) -> bool {
        self.asks
    }

    fn probe(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        self.produce(seq, position, record)?;
        self.asked.push(position.ordinal as usize);
        Ok(())
    }
}

/// An event for this destination.
fn event(to: &Destination, number: usize) -> Message {
    if number > 0 || !to.has_places {
        return insert(number);
    }
    let row = [Some("0"), Some("other"), Some("0"), Some("e"), Some("{}")];
    Message::Insert(Insert { relation: TABLE, tuple: texts(&row) })
}

/// What one replay did.
#[derive(Debug, Default, PartialEq, Eq)]
struct Round {
    accepted: Vec<usize>,
    refused: Vec<usize>,
}

/// Offers the events of one transaction until a replay is requested or all are read.
fn round(
    core: &mut Core,
    to: &mut Destination,
    events: usize,
    answer: &impl Fn(usize, bool) -> Option<Refusal>,
) -> Round {
    let mut round = Round::default();
    core.producer_replaced();
    to.in_flight.clear();
    to.is_spent = false;
    begun(core, to);
    let mut next = 0;
    let mut is_full = false;
    for _ in 0..10_000 {
        for (seq, event, is_letter) in std::mem::take(&mut to.in_flight) {
            match answer(event, is_letter) {
                None => {
                    core.delivered(seq);
                    round.accepted.push(event);
                }
                Some(refusal) => {
                    to.is_spent = to.is_spent_by_refusals;
                    core.suspected(seq, &refusal);
                    round.refused.push(event);
                }
            }
        }
        if core.wants_replay().is_some() || core.halted().is_some() {
            return round;
        }
        if next < events && core.wants_input() && !is_full {
            is_full = core.receive(&event(to, next), to) == Ok(Taken::NotYet) && to.is_spent;
            next += usize::from(!is_full);
        } else if (next == events || is_full) && to.in_flight.is_empty() {
            if core.looks_for_probe().is_none() {
                return round;
            }
            core.end_probing();
        }
    }
    panic!("it does not end: {core:?}")
}

fn core_with(policy: Policy) -> Core {
    let missing_topic = (policy != Policy::Halt).then_some(policy);
    let policies = Policies { refused: policy, missing_topic, ..Policies::default() };
    new_core(1 << 20).with_policies(policies)
}

/// The end of the transaction.
fn commit() -> Commit {
    Commit { commit_lsn: Lsn::new(10), end_lsn: Lsn::new(12), commit_time: PgTimestamp::default() }
}

fn missing() -> Refusal {
    Refusal { ground: Ground::MissingTopic, ..ambiguous() }
}

fn refuses(guilty: usize) -> impl Fn(usize, bool) -> Option<Refusal> {
    move |event, _| (event == guilty).then(ambiguous)
}

#[test]
fn the_first_event_after_a_start_is_at_fault_once_another_is_accepted() {
    for policy in [Policy::Skip, Policy::Halt] {
        let (mut core, mut to) = (core_with(policy), Destination::default());
        let answer = refuses(0);
        assert!(round(&mut core, &mut to, 3, &answer).refused.contains(&0), "among the others");
        let alone = Round { accepted: vec![], refused: vec![0] };
        assert_eq!(round(&mut core, &mut to, 3, &answer), alone);
        let why = core.wants_replay().expect("it is tried again");
        assert!(
            why.contains("000000000000000A/00000000 (id 0)") && why.contains("forbidden"),
            "{why}"
        );
        // One probe is enough each time; after that it is tried alone again.
        let probed = Round { accepted: vec![1], refused: vec![] };
        for _ in 0..EVIDENCE {
            assert_eq!(round(&mut core, &mut to, 3, &answer), probed);
            assert!(core.counters().skipped == 0 && core.halted().is_none());
            assert_eq!(round(&mut core, &mut to, 3, &answer), alone);
        }
        if policy == Policy::Halt {
            assert!(core.halted().is_some() && core.is_drained());
            continue;
        }
        assert_eq!(round(&mut core, &mut to, 3, &answer).accepted, [1, 2]);
        let Counters { skipped, new_events, events, .. } = core.counters();
        assert!((skipped, new_events) == (1, 3) && events > 3, "each is new once");
    }
}

#[test]
fn producer_that_outlives_refusals_is_given_probes_without_another_replay() {
    let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
    to.outlives_refusals = true;
    let answer = refuses(0);
    round(&mut core, &mut to, 3, &answer);
    for _ in 0..EVIDENCE {
        let probed = Round { accepted: vec![1], refused: vec![0] };
        assert_eq!(round(&mut core, &mut to, 3, &answer), probed);
        assert!(core.wants_replay().is_some_and(|why| why.contains("(id 0)")));
    }
    round(&mut core, &mut to, 3, &answer);
    assert_eq!(round(&mut core, &mut to, 3, &answer).accepted, [1, 2]);
    assert_eq!(core.counters().skipped, 1);
    assert_eq!(core.undelivered(), 0);
}

/// A machine of several that refuses everything: each event is refused once, and a transaction may not have to
/// get through in one go.
#[test]
fn accepted_events_are_not_sent_again_unless_they_are_to_be_evidence() {
    let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
    to.outlives_refusals = true;
    let mut sent = vec![0; 12];
    let answered = std::cell::RefCell::new(vec![0; 12]);
    let once = |event: usize, _: bool| {
        let mut answered = answered.borrow_mut();
        answered[event] += 1;
        (answered[event] == 1).then(ambiguous)
    };
    for rounds in 0.. {
        let Round { accepted, .. } = round(&mut core, &mut to, 12, &once);
        for event in accepted {
            sent[event] += 1;
        }
        assert!(rounds < 20, "{core:?}");
        if core.wants_replay().is_none() && core.undelivered() == 0 {
            break;
        }
    }
    assert_eq!((sent, core.counters().skipped), (vec![1; 12], 0));
}

/// Another instance may have sent some of them since, and not those behind.
#[test]
fn accepted_events_are_sent_again_after_a_lost_session() {
    for (is_lost, expected) in [(false, &[0][..]), (true, &[0, 1, 2])] {
        let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
        to.outlives_refusals = true;
        core.producer_replaced();
        begun(&mut core, &mut to);
        for number in 0..3 {
            assert_eq!(core.receive(&insert(number), &mut to), Ok(Taken::Yes));
        }
        for (seq, event, _) in std::mem::take(&mut to.in_flight).into_iter().rev() {
            if event == 0 { core.suspected(seq, &ambiguous()) } else { core.delivered(seq) }
        }
        if is_lost {
            core.session_lost();
        }
        let accept_all = |_: usize, _: bool| None;
        assert_eq!(round(&mut core, &mut to, 3, &accept_all).accepted, expected, "{is_lost}");
    }
}

#[test]
fn an_event_before_the_suspect_is_evidence_without_probes() {
    let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
    let answer = refuses(1);
    for _ in 0..=EVIDENCE {
        assert_eq!(round(&mut core, &mut to, 3, &answer).accepted.first(), Some(&0));
    }
    assert_eq!(core.counters().skipped, 0);
    let again = Round { accepted: vec![0], refused: vec![1] };
    assert_eq!(round(&mut core, &mut to, 3, &answer), again);
    round(&mut core, &mut to, 3, &answer);
    assert_eq!(core.counters().skipped, 1);
}

#[test]
fn while_everything_is_refused_nothing_is_diverted_and_probes_are_bounded() {
    let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
    let refuse_all = |_: usize, _: bool| Some(ambiguous());
    for number in 0..40 {
        let Round { accepted, refused } = round(&mut core, &mut to, 100, &refuse_all);
        assert!(accepted.is_empty() && core.halted().is_none(), "{number}");
        // A key is probed with once, and there are five; the first is the suspect's. When none is left
        // that has not failed, the search begins again.
        let expected: &[usize] = [&[0][..], &[1, 2, 3, 4], &[0], &[]][(number + 3) % 4];
        assert!(number == 0 || refused == expected, "{number}: {refused:?}");
        assert!(number == 0 || refused.len() <= PROBES as usize);
    }
    assert_eq!((core.counters().skipped, core.flush_lsn()), (0, Lsn::new(1)));
    // It recovers while others are probed: the suspect was not at fault.
    let accept_all = |_: usize, _: bool| None;
    for _ in 0..3 {
        round(&mut core, &mut to, 3, &accept_all);
    }
    assert!(!core.is_isolating() && core.counters().skipped == 0 && core.undelivered() == 0);
}

#[test]
fn refused_probes_are_the_next_suspects() {
    let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
    // Of five keys one has nothing to hide.
    let answer = |event: usize, _: bool| (event != 4).then(ambiguous);
    let mut rounds = 0;
    while core.counters().skipped < 4 || core.wants_replay().is_some() {
        round(&mut core, &mut to, 5, &answer);
        rounds += 1;
        assert!(rounds < 40, "{core:?}");
    }
    // Among others, and the probes; then for each suspect its trials, and probes between them; and the last.
    assert!(rounds <= 2 + 4 * (1 + 2 * EVIDENCE) + 1, "{rounds}");
}

#[test]
fn once_everything_is_refused_no_more_events_are_diverted() {
    let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
    let answer = |event: usize, _: bool| (event != 4).then(ambiguous);
    let diverted = |core: &Core| {
        let position = |ordinal| EventPosition { commit_lsn: Lsn::new(10), ordinal };
        (0..5).filter(|ordinal| core.quarantine.of(position(*ordinal)).is_some()).count()
    };
    while diverted(&core) == 0 {
        round(&mut core, &mut to, 5, &answer);
    }
    let refuse_all = |_: usize, _: bool| Some(ambiguous());
    for _ in 0..40 {
        round(&mut core, &mut to, 5, &refuse_all);
    }
    assert_eq!(diverted(&core), 1, "the refused probes may be innocent");
}

#[test]
fn a_producer_that_takes_nothing_after_a_refusal_is_enough() {
    let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
    to.is_spent_by_refusals = true;
    let answer = |event: usize, _: bool| (event != 4).then(ambiguous);
    let rounds: Vec<_> = (0..9).map(|_| round(&mut core, &mut to, 5, &answer).refused).collect();
    // Among others; then the suspect, and one probe for each producer, until one is accepted.
    let expected = [vec![0], vec![0], vec![1], vec![0], vec![2], vec![0], vec![3], vec![0], vec![]];
    assert_eq!((rounds, core.counters().skipped), (expected.to_vec(), 0));
    // Once the suspect is diverted, the refused probes are the next ones.
    for _ in 0..3 + 3 * 5 {
        round(&mut core, &mut to, 5, &answer);
    }
    let last = Round { accepted: vec![4], refused: vec![] };
    assert_eq!((round(&mut core, &mut to, 5, &answer), core.undelivered()), (last, 0));
}

#[test]
fn a_producer_that_is_opened_elsewhere_while_the_suspect_is_passed_over_needs_another_session() {
    let (core, mut to) = (core_with(Policy::Skip), Destination::default());
    let mut core = core.exactly_once();
    for _ in 0..2 {
        round(&mut core, &mut to, 1, &refuses(0));
    }
    core.producer_replaced();
    begun(&mut core, &mut to);
    assert_eq!(core.receive(&insert(0), &mut to), Ok(Taken::Yes));
    assert_eq!(core.receive(&Message::Commit(commit()), &mut to), Ok(Taken::Yes));
    // The feed changes, and another instance has fenced the producer.
    core.session_lost();
    assert!(core.resume_at() > Lsn::new(10), "the session does not send the suspect");
    let checkpoint = Checkpoint { upto: Lsn::new(1), partial: None };
    assert!(!core.resume_from(checkpoint), "a session behind the suspect");
    assert_eq!((core.resume_at(), core.resume_from(checkpoint)), (Lsn::new(1), true));
}

#[test]
fn a_missing_topic_is_waited_for_by_default() {
    let (mut core, mut to) = (core_with(Policy::Halt), Destination::default());
    let answer = |event: usize, _: bool| (event == 1).then(missing);
    for _ in 0..3 + 3 * 5 {
        round(&mut core, &mut to, 3, &answer);
        assert!(core.halted().is_none() && core.wants_replay().is_some());
    }
}

#[test]
fn where_all_events_have_one_order_a_suspect_is_tried_until_it_is_accepted() {
    let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
    to.has_one_order = true;
    for _ in 0..10 {
        let Round { refused, .. } = round(&mut core, &mut to, 3, &refuses(1));
        assert_eq!((refused.last(), core.counters().skipped), (Some(&1), 0));
    }
    core.producer_replaced();
    to.in_flight.clear();
    begun(&mut core, &mut to);
    for event in 0..2 {
        assert_eq!(core.receive(&insert(event), &mut to), Ok(Taken::Yes));
        let (seq, ..) = to.in_flight[event];
        if event == 0 { core.delivered(seq) } else { core.refused(seq, &ambiguous()) }
    }
    round(&mut core, &mut to, 3, &|_, _| None);
    assert_eq!(core.counters().skipped, 1);
}

/// An event before the suspect is stored already, so that its acceptance is no evidence.
#[test]
fn destination_with_one_order_is_asked_whether_it_has_the_topics_of_others() {
    for (first_refused, refusal) in [(4, missing()), (1, missing()), (1, ambiguous())] {
        let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
        to.asks = true;
        let is_topic = refusal.ground == Ground::MissingTopic;
        let answer =
            |event, _: bool| (event == 1 || event >= first_refused).then(|| refusal.clone());
        for _ in 0..4 {
            let Round { accepted, refused } = round(&mut core, &mut to, 4, &answer);
            assert!(accepted.starts_with(&[0]) && refused.starts_with(&[1]), "{accepted:?}");
        }
        assert_eq!(to.asked.first(), is_topic.then_some(&2), "{refusal:?}");
        let last = round(&mut core, &mut to, 4, &answer);
        if first_refused > 1 {
            assert_eq!(
                (&to.asked[..], &last.accepted[..]),
                (&[2; EVIDENCE as usize][..], &[0, 2, 3][..])
            );
        }
        let skipped = u64::from(first_refused > 1);
        assert_eq!((core.counters().skipped, core.undelivered() == 0), (skipped, skipped == 1));
    }
}

/// A long search for a topic that is there asks nothing about those that are known to be missing.
#[test]
fn topics_that_are_known_to_be_missing_are_passed_over_in_a_search() {
    let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
    (to.asks, to.missing) = (true, 1..80);
    for _ in 0..5 {
        round(&mut core, &mut to, 82, &|_, _| None);
    }
    assert_eq!((&to.asked[..], core.counters().skipped), (&[80; EVIDENCE as usize][..], 1));
}

/// The path of a topic may be wrong: what others accept says nothing about it.
#[test]
fn events_of_another_place_are_no_evidence() {
    for (guilty, diverted) in [(0, 0), (1, 1)] {
        let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
        to.has_places = true;
        let is_done = |core: &Core| core.wants_replay().is_none() && core.undelivered() == 0;
        for number in 0..30 {
            round(&mut core, &mut to, 5, &refuses(guilty));
            if number > 0 && is_done(&core) {
                break;
            }
        }
        assert_eq!((is_done(&core), core.counters().skipped), (diverted > 0, diverted), "{guilty}");
        for _ in 0..4 {
            round(&mut core, &mut to, 5, &refuses(usize::MAX));
        }
        assert!(is_done(&core), "{guilty}");
    }
}

#[test]
fn events_are_no_evidence_against_a_dead_letter_that_is_refused_in_another_way() {
    let (mut core, mut to) = (core_with(Policy::DeadLetter), Destination::default());
    let other = || Refusal { reason: "no such queue".to_owned(), ..ambiguous() };
    let answer = |event: usize, is_letter: bool| {
        if is_letter { Some(other()) } else { refuses(1)(event, false) }
    };
    for _ in 0..20 {
        round(&mut core, &mut to, 3, &answer);
        assert!(core.halted().is_none(), "{:?}", core.halted());
    }
    assert!(core.counters().dead_letters > 0);
    for _ in 0..3 {
        round(&mut core, &mut to, 3, &refuses(usize::MAX));
    }
    assert_eq!(core.undelivered(), 0);
}

#[test]
fn dead_letter_that_is_refused_as_its_event_was_halts_once_others_are_accepted() {
    for guilty in [0, 1] {
        let (mut core, mut to) = (core_with(Policy::DeadLetter), Destination::default());
        to.has_places = guilty > 0;
        let answer = |event: usize, is_letter: bool| refuses(guilty)(event, is_letter);
        while core.counters().dead_letters == 0 {
            round(&mut core, &mut to, 5, &answer);
        }
        // An outage is no verdict.
        for _ in 0..20 {
            round(&mut core, &mut to, 5, &|_, _| Some(ambiguous()));
            assert!(core.halted().is_none(), "{guilty}: {:?}", core.halted());
        }
        for _ in 0..2 * EVIDENCE + 3 {
            round(&mut core, &mut to, 5, &answer);
        }
        let halt = core.halted().map(ToString::to_string).unwrap_or_default();
        assert!(core.is_drained(), "{guilty}: {core:?}");
        for part in ["(id ", "topic `walpost.dead-letter`", "forbidden", "its dead letter"] {
            assert!(halt.contains(part), "{guilty}: {halt}");
        }
    }
}

#[test]
fn event_that_halts_behind_a_suspect_is_named_with_it() {
    let mut core = core_with(Policy::Skip);
    core.policies.missing_field = Policy::Halt;
    let mut to = Destination::default();
    let row = [Some("7"), Some("order"), None, Some("e"), Some("{}")];
    let halting = Message::Insert(Insert { relation: TABLE, tuple: texts(&row) });
    for number in 0..10 {
        core.producer_replaced();
        to.in_flight.clear();
        begun(&mut core, &mut to);
        for message in [&insert(0), &halting, &insert(2)] {
            if !core.wants_input() {
                break;
            }
            assert_eq!(core.receive(message, &mut to), Ok(Taken::Yes));
            for (seq, event, _) in std::mem::take(&mut to.in_flight) {
                assert_eq!(event, 0, "nothing behind it is published");
                core.suspected(seq, &ambiguous());
            }
        }
        assert!(core.halted().is_none() && core.counters().skipped == 0);
        let why = core.wants_replay().expect("it is tried again");
        let is_named = |part: &str| why.contains(part);
        assert!(
            number < 2 || ["(id 0)", "(id 7)", "aggregate_id"].into_iter().all(is_named),
            "{why}"
        );
    }
}

#[test]
fn nothing_is_confirmed_past_a_suspect_that_was_passed_over() {
    let (mut core, mut to) = (core_with(Policy::Skip), Destination::default());
    for _ in 0..2 {
        round(&mut core, &mut to, 1, &refuses(0));
    }
    core.producer_replaced();
    begun(&mut core, &mut to);
    assert_eq!(core.receive(&insert(0), &mut to), Ok(Taken::Yes));
    assert!(core.looks_for_probe().is_some() && core.undelivered() == 1);
    assert_eq!(core.receive(&Message::Commit(commit()), &mut to), Ok(Taken::Yes));
    core.keepalive(Lsn::new(500));
    assert_eq!(core.flush_lsn(), Lsn::new(1));
    // The feed changes, or the session is lost: the search goes on behind it.
    core.session_lost();
    core.connected(Lsn::new(1), &[relation_of(TABLE, "outbox").into()]);
    core.keepalive(Lsn::new(900));
    assert!(core.looks_for_probe().is_some() && core.resume_at() > Lsn::new(12));
    assert_eq!(core.flush_lsn(), Lsn::new(1));
    core.drain();
    assert!(core.is_drained() && core.flush_lsn() == Lsn::new(1));
}
