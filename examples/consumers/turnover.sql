-- What the consumers in this directory keep, beside the tables of
-- sql/consumer_dedupe.sql: how much each customer has ordered.
-- Running it again changes nothing.

CREATE TABLE IF NOT EXISTS public.turnover (
    customer    pg_catalog.text PRIMARY KEY,
    orders      bigint          NOT NULL,
    total_cents bigint          NOT NULL
);
