//! Short texts: an LSN, a table name, a timestamp.

use walpost::Lsn;
use walpost::outbox::TableName;
use walpost::record::{RecordConfig, Router, TimestampSource};

use super::input::an_event;

/// The end of 294276, PostgreSQL's last year, and an offset of 16 hours.
const TIMESTAMP_END_MS: i64 = 9_224_318_016_000_000 + 57_600_000;

/// One text as each of them.
pub fn text(input: &[u8]) {
    timestamp(input);
    let Ok(text) = std::str::from_utf8(input) else { return };
    match text.parse::<Lsn>() {
        Ok(lsn) => {
            assert_eq!(lsn.to_string().parse(), Ok(lsn), "{text}");
            let (high, low) = text.split_once('/').expect("an LSN has a slash");
            let number = |half| u64::from_str_radix(half, 16).expect("hexadecimal digits");
            assert_eq!(lsn.as_u64(), number(high) << 32 | number(low), "{text}");
        }
        Err(error) => assert!(error.to_string().contains("16/B374D848")),
    }
    match text.parse::<TableName>() {
        Ok(name) => {
            assert_eq!(name.to_string().parse(), Ok(name.clone()), "{text}");
            assert!((1..=63).contains(&name.name.len()) && (1..=63).contains(&name.schema.len()));
        }
        Err(error) => assert!(error.to_string().contains("public.outbox")),
    }
}

fn timestamp(input: &[u8]) {
    let mut event = an_event();
    event.timestamp = Some(input.into());
    let config = RecordConfig {
        timestamp: TimestampSource::Column,
        ..RecordConfig::to("t".parse().expect("a template"))
    };
    match Router::new(config).route(&event) {
        Ok(record) => {
            let millis = record.timestamp_ms.expect("the column's");
            assert!((0..TIMESTAMP_END_MS).contains(&millis), "{millis}");
        }
        Err(unrouted) => {
            let poison = unrouted.poison().expect("it needs no schema");
            assert!(["missing_field", "undecodable"].contains(&poison.cause.key()));
        }
    }
}
