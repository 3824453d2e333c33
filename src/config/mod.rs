//! Configuration: file, environment and flags become values that are valid by construction.
