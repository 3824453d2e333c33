-- Keeps the outbox small. Run it as often as you like, from cron or your
-- scheduler, with the rights SELECT, UPDATE (for the row locks) and DELETE. Where
-- the table is kept large, an index on created_at is worth its cost.
--
-- walpost reads the WAL and publishes inserts only: it neither needs
-- the rows nor notices that they go. What a row is kept for is you: to look up
-- what was sent, and to send it again should the slot ever be lost. Choose the
-- interval for that.
--
-- This goes by the rows' age alone. `walpost prune` deletes only what is proved to
-- be delivered, so that a slot that is lost after a long outage loses no event.

-- Run it as the table's owner, not as a superuser: a trigger on the table runs as
-- whoever deletes. Names and operators are qualified so that the session's
-- search_path cannot replace them.

-- At most 10,000 rows at a time, the oldest first, so that no lock is held for
-- long; rows that another run is deleting are left to it.
DELETE FROM public.outbox
WHERE id OPERATOR(pg_catalog.=) ANY (
    SELECT id
    FROM public.outbox
    WHERE created_at OPERATOR(pg_catalog.<) (pg_catalog.now() OPERATOR(pg_catalog.-) interval '7 days')
    ORDER BY created_at
    LIMIT 10000
    FOR UPDATE SKIP LOCKED
);

-- Without any retention: delete in the transaction that inserts. The event is in
-- the WAL all the same, the table stays empty, and vacuum has little to do.
--
--   BEGIN;
--   UPDATE orders SET status = 'paid' WHERE id = 42;
--   INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload)
--       VALUES ('0193a7e2-5b1c-7c3e-9f0a-6d2b8e4f1a90', 'order', '42', 'order_paid', '{"total": 99}');
--   DELETE FROM public.outbox WHERE id = '0193a7e2-5b1c-7c3e-9f0a-6d2b8e4f1a90';
--   COMMIT;
--
-- With many millions of rows: a table partitioned by day, where dropping a day
-- costs nothing. 01-schema-partitioned.sql creates it, and `walpost prune` makes and
-- drops its partitions. By hand:
--
--   DROP TABLE public.outbox_p20260101;
