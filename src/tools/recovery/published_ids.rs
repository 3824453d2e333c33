//! The ids of events that are published with certain positions.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;

use super::error::{RecoveryError, RowReplayError};
use crate::destination::published::{Published, WantedRecords};
use crate::position::EventPosition;

/// The ids of the records of `topics` whose header `walpost.position` is in the range, and of such
/// dead letters, in the order of their positions: an id that was published more than once has its
/// first place. Reads the topics from their beginning, and calls `note` with what is worth knowing.
///
/// # Errors
/// If the records cannot be read, none has such a position, or one of these has no id.
pub(crate) async fn ids_at(
    mut published: Box<dyn Published>,
    topics: &[String],
    range: &RangeInclusive<EventPosition>,
    mut note: impl FnMut(&str),
) -> Result<Vec<String>, RowReplayError> {
    let wanted = WantedRecords { topics: topics.to_vec(), others_too: false, since_ms: None };
    let records = published.open(wanted, &mut note).await.map_err(RecoveryError::from)?;
    if let Some(topic) = records.topics.iter().find(|topic| !topic.exists) {
        return Err(RecoveryError::NoTopic(topic.name.clone()).into());
    }
    note(&format!("reading {} records of {}", records.records, topics.join(", ")));
    let lacking = |topic: &str, gap: &str| {
        format!("topic {topic}: {gap}; the events of these records are not found")
    };
    for (topic, gap) in records.topics.iter().filter_map(|one| Some((&one.name, one.gap.as_ref()?)))
    {
        note(&lacking(topic, gap));
    }
    let mut found: BTreeMap<EventPosition, Vec<String>> = BTreeMap::new();
    let mut without_id = 0;
    while let Some(part) = published.next().await.map_err(RecoveryError::from)? {
        for (topic, why) in part.gaps {
            note(&lacking(&topic, &why));
        }
        for event in part.events {
            let Some(position) = event.position.filter(|position| range.contains(position)) else {
                continue;
            };
            match event.id.and_then(|id| String::from_utf8(id).ok()) {
                Some(id) => found.entry(position).or_default().push(id),
                None => without_id += 1,
            }
        }
    }
    if without_id > 0 {
        return Err(RowReplayError::PositionsWithoutIds(without_id));
    }
    let mut known = HashSet::new();
    let ids = found.into_values().flatten().filter(|id| known.insert(id.clone()));
    let ids: Vec<String> = ids.collect();
    if ids.is_empty() { Err(RowReplayError::NoSuchPositions(topics.join(", "))) } else { Ok(ids) }
}
