-- The last message that each consumer has processed, of each stream.
CREATE TABLE IF NOT EXISTS public.processed_messages (
    consumer      pg_catalog.text NOT NULL,
    stream        pg_catalog.text NOT NULL,
    last_sequence pg_catalog.int8 NOT NULL,
    PRIMARY KEY (consumer, stream)
);
