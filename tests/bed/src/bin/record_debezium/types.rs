//! Each type as the key, as a header and inside the envelope.

use walpost_bed::golden::Scenario;

use crate::plan::{Plan, Profile};
use crate::values::{KINDS, Kind};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let placed = [Profile::Text, Profile::Json];
    KINDS.iter().flat_map(|kind| placed.map(|profile| placed_everywhere(kind, profile))).collect()
}

/// The same value as the key, as a header and inside the envelope.
fn placed_everywhere(kind: &Kind, profile: Profile) -> Scenario {
    let Kind { name, sql, before, values } = kind;
    let columns =
        format!("id uuid, aggregatetype text, aggregateid {sql}, payload jsonb, placed {sql}");
    Plan::new(profile, &format!("type/{name}"), &columns)
        .before(before)
        .router(&[("table.fields.additional.placement", "placed:header,placed:envelope:inside")])
        .rows(r#"{id}, 'order', {}, '{"a": 1.50}', {}"#, values.iter().copied().chain(["NULL"]))
        .done()
}
