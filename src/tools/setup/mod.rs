//! The setup on the server: the SQL of table, function, role, publication and slot, and its application.

mod apply;
mod init_error;
mod managed_service;
mod new_slot;
mod partition_by;
mod sql;
mod state_topic;

pub(crate) use apply::{Step, apply};
pub(crate) use init_error::InitError;
pub(crate) use managed_service::Hosting;
pub(crate) use new_slot::Doubt;
pub(crate) use partition_by::PartitionBy;
pub(crate) use sql::{InitPlan, Object, Stage};
pub(crate) use state_topic::{AdoptError, Positions, Wanted};
