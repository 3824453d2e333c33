//! Connections to PostgreSQL: how they are made and secured, which server they reached, how long
//! they may be silent, and what their failures mean.

pub(super) mod connect;
pub(super) mod deadline;
pub(super) mod error;
pub(super) mod instance;
pub(super) mod tls;
