//! Where changes come from: the replication session and the control connection.
