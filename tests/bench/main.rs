//! The conditions of the pipeline bench, which has no test harness of its own.

#[path = "../../benches/pipeline/conditions.rs"]
mod conditions;

use std::time::Duration;

use clap::Parser;
use serde_json::json;

use conditions::{ConditionArgs, Conditions, OtherWrites};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    conditions: ConditionArgs,
}

fn parse(arguments: &str) -> Result<ConditionArgs, String> {
    let arguments = std::iter::once("bench").chain(arguments.split_whitespace());
    let parsed = Command::try_parse_from(arguments);
    parsed.map(|command| command.conditions).map_err(|error| error.to_string())
}

fn cells(arguments: &str) -> Vec<Conditions> {
    parse(arguments).unwrap().of_backlogs()
}

fn labels(arguments: &str) -> Vec<String> {
    cells(arguments).iter().map(|cell| cell.label("part")).collect()
}

#[test]
fn no_option_means_the_default() {
    let args = parse("").unwrap();
    assert_eq!(args.of_backlogs(), [Conditions::default()]);
    assert!(!args.are_given());
    assert!(!args.need_own_servers());
    assert_eq!(labels(""), ["part"]);
    assert_eq!(labels("--round-trip 0 --partitions 3 --outbox-share 100"), ["part"]);
}

#[test]
fn all_values_are_combined() {
    assert_eq!(
        labels("--round-trip 0,1,5 --partitions 12,50"),
        [
            "part, 12 partitions",
            "part, 50 partitions",
            "part, round trip 1 ms, 12 partitions",
            "part, round trip 1 ms, 50 partitions",
            "part, round trip 5 ms, 12 partitions",
            "part, round trip 5 ms, 50 partitions",
        ]
    );
}

#[test]
fn each_condition_is_named_and_written() {
    let arguments = "--round-trip 0.5 --partitions 12 --topics 20 --payload 2000 --outbox-share 7 \
                     --other-writes lumps --open-transaction --brokers 3";
    let [cell] = cells(arguments)[..] else { panic!("not one cell") };
    assert_eq!(
        cell.label("drain"),
        "drain, round trip 0.5 ms, 20 topics × 12 partitions, payload 2000 B, \
         outbox 7 % of WAL, lumps, open transaction, 3 brokers"
    );
    assert_eq!(
        cell.json(),
        json!({
            "round_trip_ms": 0.5,
            "partitions": 12,
            "topics": 20,
            "payload_bytes": 2000,
            "outbox_share_percent": 7,
            "other_writes": "lumps",
            "open_transaction": true,
            "brokers": 3,
            "replicas": 3,
        })
    );
    assert_eq!(
        cell.of_backlog().label("drain"),
        "drain, 20 topics × 3 partitions, payload 2000 B, outbox 7 % of WAL, lumps, open transaction"
    );
}

#[test]
fn other_writes_count_only_beside_an_outbox_that_is_not_all() {
    assert_eq!(
        labels("--outbox-share 100,7 --other-writes interleaved,lumps,lumps-first"),
        [
            "part",
            "part, outbox 7 % of WAL, interleaved",
            "part, outbox 7 % of WAL, lumps",
            "part, outbox 7 % of WAL, lumps first",
        ]
    );
    assert_eq!(cells("--other-writes lumps")[0].other_writes(), None);
}

#[test]
fn cells_with_the_same_backlog_are_adjacent() {
    let cells = cells("--brokers 1,3 --topics 1,20 --payload 200,2000 --round-trip 0,5");
    let of_brokers = cells.chunk_by(|one, next| one.brokers == next.brokers);
    assert_eq!(of_brokers.count(), 2);
    let of_backlog = cells
        .chunk_by(|one, next| one.brokers == next.brokers && one.of_backlog() == next.of_backlog());
    assert_eq!(of_backlog.map(<[Conditions]>::len).collect::<Vec<_>>(), [2; 8]);
}

#[test]
fn each_rate_is_measured_under_all_conditions() {
    let cells = parse("--round-trip 1,5").unwrap().of_latency(&[1000, 5000]);
    let found: Vec<_> = cells.iter().map(|(rate, cell)| (*rate, cell.round_trip)).collect();
    let [one, five] = [1, 5].map(Duration::from_millis);
    assert_eq!(found, [(1000, one), (1000, five), (5000, one), (5000, five)]);
}

#[test]
fn distant_or_several_brokers_need_own_servers() {
    for (arguments, needed) in [
        ("--round-trip 0,1", true),
        ("--brokers 3", true),
        ("--matrix", true),
        ("--partitions 50 --topics 20 --open-transaction --outbox-share 7", false),
    ] {
        let args = parse(arguments).unwrap();
        assert_eq!(args.need_own_servers(), needed, "{arguments}");
        assert!(args.are_given(), "{arguments}");
    }
}

#[test]
fn matrix_has_distinct_cells_of_every_condition() {
    let args = parse("--matrix").unwrap();
    let (backlogs, latency) = (args.of_backlogs(), args.of_latency(&[1]));
    for (number, cell) in backlogs.iter().enumerate() {
        assert!(!backlogs[..number].contains(cell), "{cell:?}");
    }
    for (number, cell) in latency.iter().enumerate() {
        assert!(!latency[..number].contains(cell), "{cell:?}");
    }
    assert!(backlogs.iter().any(|cell| cell.open_transaction && cell.outbox_share == 7));
    let of_latency: Vec<_> = latency.iter().map(|(_, cell)| *cell).collect();
    for cells in [backlogs, of_latency] {
        let wanted: [fn(&Conditions) -> bool; 7] = [
            |cell| cell.round_trip == Duration::from_millis(5),
            |cell| cell.partitions == 50,
            |cell| cell.topics == 20 && cell.partitions == 12,
            |cell| cell.payload_bytes == 2000,
            |cell| cell.other_writes() == Some(OtherWrites::Interleaved),
            |cell| cell.other_writes() == Some(OtherWrites::Lumps),
            |cell| cell.brokers == 3,
        ];
        assert!(wanted.iter().all(|wanted| cells.iter().any(wanted)));
    }
}

#[test]
fn invalid_values_are_rejected() {
    for (arguments, error) in [
        ("--round-trip -1", "unexpected argument"),
        ("--round-trip=-1", "not between 0 and 1000"),
        ("--round-trip NaN", "not between 0 and 1000"),
        ("--round-trip 5ms", "not a number"),
        ("--partitions 0", "0 is not in 1..=1000"),
        ("--topics 101", "101 is not in 1..=100"),
        ("--payload 20", "20 is not in 100..=100000"),
        ("--outbox-share 0", "0 is not in 1..=100"),
        ("--other-writes some", "invalid value"),
        ("--brokers 2", "neither 1 nor 3"),
        ("--matrix --round-trip 5", "cannot be used with"),
    ] {
        let found = parse(arguments).unwrap_err();
        assert!(found.contains(error), "{arguments}: {found}");
    }
}
