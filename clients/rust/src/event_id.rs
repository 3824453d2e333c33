//! The id of an event.

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// What distinguishes the hashes from those of anything else.
const DOMAIN: &[u8] = b"walpost-outbox event id v1";

/// An id from what the event says: a UUID of version 8 with the first bits of a SHA-256 hash.
///
/// Each part is preceded by its length, so that no two events have the same bytes. A payload of
/// none differs from an empty one.
pub(crate) fn from_content(
    aggregate_type: &str,
    aggregate_id: &str,
    event_type: &str,
    payload: Option<&[u8]>,
) -> Uuid {
    let mut hash = Sha256::new();
    let parts = [
        Some(DOMAIN),
        Some(aggregate_type.as_bytes()),
        Some(aggregate_id.as_bytes()),
        Some(event_type.as_bytes()),
        payload,
    ];
    for part in parts {
        let Some(part) = part else {
            hash.update([0]);
            continue;
        };
        hash.update([1]);
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_depends_on_each_part_and_on_their_borders() {
        let events = [
            ("order", "7", "placed", Some(b"{}".as_slice())),
            ("orde", "r7", "placed", Some(b"{}")),
            ("order", "7p", "laced", Some(b"{}")),
            ("order", "8", "placed", Some(b"{}")),
            ("order", "7", "shipped", Some(b"{}")),
            ("order", "7", "placed", Some(b"")),
            ("order", "7", "placed", None),
        ];
        let id = |(a, b, c, d): (&str, &str, &str, Option<&[u8]>)| from_content(a, b, c, d);
        let ids: std::collections::BTreeSet<_> = events.into_iter().map(id).collect();
        assert_eq!(ids.len(), events.len());
    }

    #[test]
    fn an_id_never_changes() {
        let id = from_content("order", "A-7", "order_placed", Some(br#"{"total":1.5}"#));
        assert_eq!(id.get_version_num(), 8);
        assert_eq!(id.to_string(), "5269dd97-850a-8464-8be4-a06f6560f29c");
    }
}
