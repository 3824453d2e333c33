//! Events of the tests.

use std::collections::BTreeMap;

use serde::Serialize;
use walpost_outbox::Event;

/// Order 7 has a new version.
#[derive(Clone, Serialize, Event)]
#[event(aggregate_type = "order", event_type = "order_changed")]
pub(crate) struct Changed {
    #[event(aggregate_id)]
    pub(crate) order: i32,
    pub(crate) version: i32,
}

pub(crate) fn changed(version: i32) -> Changed {
    Changed { order: 7, version }
}

/// JSON has no such keys.
#[derive(Serialize, Event)]
#[event(aggregate_type = "order", event_type = "order_broken")]
pub(crate) struct Broken {
    #[event(aggregate_id)]
    order: i32,
    totals: BTreeMap<(u8, u8), u8>,
}

pub(crate) fn broken() -> Broken {
    Broken { order: 7, totals: [((1, 2), 3)].into() }
}

/// With a tenant in a header.
#[derive(Serialize, Event)]
#[event(aggregate_type = "order", event_type = "order_placed")]
pub(crate) struct Placed<'a> {
    #[event(aggregate_id)]
    pub(crate) order: &'a str,
    pub(crate) note: &'a str,
    #[event(header = "tenant")]
    #[serde(skip)]
    pub(crate) tenant: &'a str,
}

/// The change that belongs to an event.
pub(crate) const CHANGE: &str = "UPDATE orders SET version = version + 1 WHERE id = 7";
