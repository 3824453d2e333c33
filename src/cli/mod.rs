//! Command line: one file a command.
