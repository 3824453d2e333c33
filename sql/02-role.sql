
-- The role as which walpost connects. Running it again changes nothing.
--
-- REPLICATION is all it needs: it cannot read or write any table. It can read,
-- move and drop any replication slot, though, so let it in only where walpost
-- runs, by a line in pg_hba.conf that names database, role and address:
--   hostssl  your_database  walpost  192.0.2.10/32  scram-sha-256
-- Name the database: the word `replication` is for physical replication, which
-- walpost does not use.
--
-- It has no password yet. In psql: \password walpost
-- It cannot do what the other parts do: run those as the owner of the database.

DO $init$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) 'walpost') THEN
        CREATE ROLE walpost LOGIN REPLICATION;
    END IF;
END
$init$;
