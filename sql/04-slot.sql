
-- The replication slot: PostgreSQL retains WAL from here on until
-- walpost has delivered it. Needs wal_level = logical (a restart) and the
-- REPLICATION attribute. Running it again changes nothing; a slot of that name in
-- another database, or for another plugin, is an error.
--
-- A slot that nobody reads retains WAL until the disk is full: start walpost soon,
-- set max_slot_wal_keep_size, and drop a slot that is no longer wanted:
--   SELECT pg_catalog.pg_drop_replication_slot('walpost');
--
-- It must be a transaction of its own: do not run this with psql --single-transaction.

SELECT pg_catalog.pg_create_logical_replication_slot('walpost', 'pgoutput')
WHERE NOT EXISTS (
    SELECT FROM pg_catalog.pg_replication_slots
    WHERE slot_name OPERATOR(pg_catalog.=) 'walpost'
        AND plugin OPERATOR(pg_catalog.=) 'pgoutput'
        AND database OPERATOR(pg_catalog.=) pg_catalog.current_database()
);
