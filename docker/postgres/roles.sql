-- Who connects to the shop's database. `walpost init` makes the rest, and finds its role.
CREATE ROLE walpost LOGIN REPLICATION PASSWORD 'walpost';
CREATE ROLE shop LOGIN PASSWORD 'shop';
CREATE TABLE orders (
    number    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer  text        NOT NULL,
    total     numeric     NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
);
-- The outbox, too, once it is there.
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, DELETE ON TABLES TO shop;
GRANT SELECT, INSERT, DELETE ON orders TO shop;
