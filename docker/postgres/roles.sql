-- Who connects to the shop's database. `walpost init` makes the rest, and finds its role.
CREATE ROLE walpost LOGIN REPLICATION PASSWORD 'walpost';
CREATE ROLE shop LOGIN PASSWORD 'shop';
CREATE TABLE public.orders (
    number    bigint                 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer  pg_catalog.text        NOT NULL,
    total     numeric                NOT NULL,
    placed_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now()
);
-- The outbox, too, once it is there.
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, DELETE ON TABLES TO shop;
GRANT SELECT, INSERT, DELETE ON public.orders TO shop;
