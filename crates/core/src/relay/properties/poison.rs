//! Properties with an undeliverable event, and with a broker that refuses everything.

use proptest::prelude::*;

use super::super::*;
use super::outside::{Guilt, sizes};
use super::{CASES, World, step};
use crate::property;
use crate::record::Policy;

#[test]
fn a_poison_event_halts_with_everything_before_it_delivered_and_nothing_after_it_confirmed() {
    let whose = (any::<prop::sample::Index>(), guilt());
    let cases = (sizes(), 1_u64..40, whose, prop::collection::vec(step(), 0..100));
    let name =
        "a_poison_event_halts_with_everything_before_it_delivered_and_nothing_after_it_confirmed";
    property::holds(name, CASES, &cases, |(sizes, budget_rows, (at, reason), steps)| {
        let all: usize = sizes.iter().map(|size| usize::from(*size)).sum();
        let Some(guilty) = guilty(at, reason, all) else { return };
        let mut world = World::new(&sizes, budget_rows, Some((guilty, reason)));
        for step in &steps {
            world.step(step);
        }
        world.finish();
        world.confirm();
        world.judge_order();
        let id = match world.core.halted() {
            Some(Halt::Poison { poison, .. }) => poison.id.clone().unwrap_or_default(),
            other => panic!("not halted: {other:?}"),
        };
        assert_eq!(id, guilty.to_string());
        let is_there = |event: usize| world.broker.appended.contains(&event);
        assert!((0..guilty).all(is_there), "something before it is not delivered");
        assert!(!is_there(guilty), "it was not delivered");
    });
}

#[test]
fn a_diverted_event_does_not_block_others() {
    let policies = prop_oneof![Just(Policy::DeadLetter), Just(Policy::Skip)];
    let whose = (any::<prop::sample::Index>(), guilt(), policies);
    let cases = (sizes(), 1_u64..40, whose, prop::collection::vec(step(), 0..100));
    let name = "a_diverted_event_does_not_block_others";
    property::holds(name, CASES, &cases, |(sizes, budget_rows, (at, reason, policy), steps)| {
        let all: usize = sizes.iter().map(|size| usize::from(*size)).sum();
        let Some(guilty) = guilty(at, reason, all) else { return };
        let mut world = World::with_policy(policy, &sizes, budget_rows, Some((guilty, reason)));
        for step in &steps {
            world.step(step);
        }
        world.finish();
        world.confirm();
        world.judge_order();
        let missing = (0..all).filter(|event| !world.broker.appended.contains(event));
        let expected = if policy == Policy::Skip { vec![guilty] } else { vec![] };
        assert_eq!(missing.collect::<Vec<_>>(), expected, "I5: something is missing");
        assert_eq!(world.core.flush_lsn(), world.end(), "I4: the flush LSN stays behind");
        let in_its_topic = world.broker.log.values().flatten().any(|(_, event)| *event == guilty);
        assert!(!in_its_topic, "it was delivered");
    });
}

/// While everything is refused, nothing is diverted; behind one outage, the guilty event alone is.
#[test]
fn an_outage_that_refuses_everything_diverts_nothing() {
    let policies = prop_oneof![Just(Policy::Halt), Just(Policy::DeadLetter), Just(Policy::Skip)];
    let steps = |most| prop::collection::vec(step(), 0..most);
    let whose = prop::option::of(any::<prop::sample::Index>());
    let cases = (sizes(), 1_u64..40, (whose, policies), (steps(40), steps(80), steps(40)));
    let name = "an_outage_that_refuses_everything_diverts_nothing";
    property::holds(name, CASES, &cases, |(sizes, budget_rows, (at, policy), steps)| {
        let all: usize = sizes.iter().map(|size| usize::from(*size)).sum();
        let guilty = at.and_then(|at| guilty(at, Guilt::Suspect, all));
        let suspect = guilty.map(|guilty| (guilty, Guilt::Suspect));
        let mut world = World::with_policy(policy, &sizes, budget_rows, suspect);
        let (before, during, after) = &steps;
        for (steps, refuses_all) in [(before, false), (during, true), (after, false)] {
            world.broker.refuses_all = refuses_all;
            for step in steps {
                world.step(step);
            }
        }
        world.finish();
        world.confirm();
        world.judge_order();
        match world.core.halted() {
            Some(Halt::Poison { poison, .. }) => {
                let id = guilty.map(|guilty| guilty.to_string());
                assert_eq!((poison.id.clone(), policy), (id, Policy::Halt));
            }
            Some(other) => panic!("{other}"),
            None => {
                let missing = (0..all).filter(|event| !world.broker.appended.contains(event));
                let expected = guilty.filter(|_| policy == Policy::Skip);
                assert_eq!(missing.collect::<Vec<_>>(), Vec::from_iter(expected), "I5");
                assert_eq!(world.core.flush_lsn(), world.end(), "I4: the flush LSN stays behind");
            }
        }
    });
}

/// Any reason.
fn guilt() -> impl Strategy<Value = Guilt> {
    prop_oneof![
        Just(Guilt::Refused),
        Just(Guilt::RefusedHere),
        Just(Guilt::Keyless),
        Just(Guilt::Suspect),
    ]
}

/// The guilty one of so many events. One that is last might wait for ever for evidence.
fn guilty(at: prop::sample::Index, reason: Guilt, all: usize) -> Option<usize> {
    let all = all.saturating_sub(usize::from(reason == Guilt::Suspect));
    (all > 0).then(|| at.index(all))
}
