//! Where records go: the sink seam and its Kafka implementation.
