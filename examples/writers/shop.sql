-- The table that the example writers change, beside the outbox of `walpost init`.
CREATE TABLE IF NOT EXISTS public.orders (
    id          pg_catalog.int8 NOT NULL PRIMARY KEY,
    customer    pg_catalog.text NOT NULL,
    total_cents pg_catalog.int8 NOT NULL,
    status      pg_catalog.text NOT NULL DEFAULT 'placed'
);
