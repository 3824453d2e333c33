//! Each type as the key, as a header and inside the envelope.

use walpost_bed::golden::Scenario;

use crate::plan::{Plan, Profile};
use crate::rare::RARE;
use crate::values::{KINDS, Kind};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let placed = [Profile::Text, Profile::Json];
    // Their key and value are written as in the other two.
    let of_both = KINDS.iter().filter(|kind| ["bytea", "int8", "uuid"].contains(&kind.name));
    let usual = KINDS.iter().map(|kind| ("type", kind));
    usual
        .chain(RARE.iter().map(|kind| ("rare", kind)))
        .flat_map(|(part, kind)| placed.map(|profile| placed_everywhere(part, kind, profile)))
        .chain(of_both.map(|kind| placed_everywhere("type", kind, Profile::TextJson)))
        .collect()
}

/// The same value as the key, as a header and inside the envelope.
fn placed_everywhere(part: &str, kind: &Kind, profile: Profile) -> Scenario {
    let Kind { name, sql, before, values } = kind;
    let columns =
        format!("id uuid, aggregatetype text, aggregateid {sql}, payload jsonb, placed {sql}");
    Plan::new(profile, &format!("{part}/{name}"), &columns)
        .before(before)
        .router(&[("table.fields.additional.placement", "placed:header,placed:envelope:inside")])
        .rows(r#"{id}, 'order', {}, '{"a": 1.50}', {}"#, values.iter().copied().chain(["NULL"]))
        .done()
}
