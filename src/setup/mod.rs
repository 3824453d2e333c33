//! The setup on the server: the SQL of table, role, publication and slot, and its application.

mod apply;
mod managed_service;
mod sql;

pub(crate) use apply::InitError;
pub(crate) use apply::apply;
pub(crate) use managed_service::Hosting;
pub(crate) use sql::InitPlan;
