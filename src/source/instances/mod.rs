//! Coordination between instances: advisory locks on the slot, and the notice of a halt.

pub(super) mod advisory_lock;
pub(super) mod halt_notice;
pub(super) mod slot_lock;
