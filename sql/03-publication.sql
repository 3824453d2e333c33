
-- What is published: inserts into the outbox, nothing else. Deleting rows thus
-- costs walpost nothing. Needs ownership of the table and CREATE on the database.
--
-- A publication of that name is left as it is, whatever it says. Check with
--   walpost check
-- It must exist before the slot is created: the slot sees it only from then on.

DO $init$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_publication WHERE pubname OPERATOR(pg_catalog.=) 'walpost'
    ) THEN
        -- Partitions, where the table has some, are published under its own name.
        CREATE PUBLICATION walpost FOR TABLE public.outbox
            WITH (publish = 'insert', publish_via_partition_root = true);
    END IF;
END
$init$;
