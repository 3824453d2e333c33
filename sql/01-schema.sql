-- The outbox: one row is one event. PostgreSQL 14 or later.
-- Running it again changes nothing.
--
-- The application inserts in the transaction that makes the change, so that the
-- event exists if and only if the change does. It needs no right but INSERT:
--   GRANT INSERT ON public.outbox TO your_application;
--
-- walpost reads the WAL and never the table: a row may be deleted
-- as soon as it is inserted, in the same transaction too (see retention.sql).
--
-- Names are qualified so that the session's search_path cannot replace them.

CREATE TABLE IF NOT EXISTS public.outbox (
    -- For consumers, to tell a repeated event from a new one (see consumer_dedupe.sql).
    id             pg_catalog.uuid        NOT NULL DEFAULT pg_catalog.gen_random_uuid() PRIMARY KEY,
    -- What kind of thing it is about, for instance order. Chooses the topic.
    aggregate_type pg_catalog.text        NOT NULL,
    -- Which one of them. The record's key: events with the same key stay in order.
    aggregate_id   pg_catalog.text        NOT NULL,
    -- What happened, for instance order_placed.
    event_type     pg_catalog.text        NOT NULL,
    -- The record's value, as it is. NULL makes a tombstone. Use bytea for Avro or Protobuf.
    payload        pg_catalog.jsonb,
    -- A JSON object of further headers, for instance {"tenant": "acme"}.
    headers        pg_catalog.jsonb,
    created_at     pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now()
);
