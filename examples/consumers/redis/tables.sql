-- The last entry that each consumer has processed, of each stream.
CREATE TABLE IF NOT EXISTS public.processed_entries (
    consumer pg_catalog.text NOT NULL,
    stream   pg_catalog.text NOT NULL,
    last_id  pg_catalog.text NOT NULL,
    PRIMARY KEY (consumer, stream)
);
