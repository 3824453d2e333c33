//! What operators run beside a relay, behind the commands of [`crate::cli`].
//!
//! | folder | commands |
//! |---|---|
//! | `check` | `check` |
//! | `setup` | `init`, `adopt` |
//! | `recovery` | `recover`, `replay` |
//! | `retention` | `prune` |
//! | `dead_letters` | `replay-dead-letters` |
//! | `debezium_import` | `import-debezium` |

pub(crate) mod check;
pub(crate) mod dead_letters;
pub mod debezium_import;
pub(crate) mod recovery;
pub(crate) mod retention;
pub(crate) mod setup;
