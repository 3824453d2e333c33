//! Connection strings as libpq users know them.
