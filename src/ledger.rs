//! What is in flight, and the LSN that may be confirmed.
