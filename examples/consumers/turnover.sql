-- What the consumers in this directory keep, beside the tables of
-- sql/consumer_dedupe.sql: how much each customer has ordered.
-- Running it again changes nothing.

CREATE TABLE IF NOT EXISTS public.turnover (
    -- The record's key.
    customer pg_catalog.text PRIMARY KEY,
    orders   bigint          NOT NULL,
    total    numeric         NOT NULL
);
