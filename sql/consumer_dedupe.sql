-- For consumers, in their own database: how to act once on an event that comes
-- twice. walpost delivers at least once: after a crash or a lost connection it
-- sends again, in the same order, what it is not sure of. Choose one of the two
-- tables; docs/consumers.md says which, with programs. PostgreSQL 14 or later.
-- Running it again changes nothing. Names are qualified so that the session's
-- search_path cannot replace them.
--
-- Do not run it as a superuser. Run it as the role that is to own the tables, in
-- a schema of your own: write its name in the place of public throughout this
-- file. Where other roles may create objects in the schema, one of them can create
-- these names first, and the owner of a table or a function decides what code runs
-- in the session of whoever uses it.

-- Fails where another role owns one of the names. CREATE TABLE IF NOT EXISTS would
-- keep that role's table, and CREATE OR REPLACE FUNCTION that role's ownership.
DO $guard$
DECLARE
    taken pg_catalog.text;
BEGIN
    SELECT found.object INTO taken
    FROM (
        SELECT pg_catalog.format('relation %I.%I belongs to role %I', n.nspname, c.relname,
                                 pg_catalog.pg_get_userbyid(c.relowner)) AS object
        FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
        WHERE n.nspname OPERATOR(pg_catalog.=) 'public'
          AND c.relname OPERATOR(pg_catalog.=) ANY (ARRAY['processed_events',
                  'processed_events_processed_at', 'processed_positions']::pg_catalog.name[])
          AND pg_catalog.pg_get_userbyid(c.relowner) OPERATOR(pg_catalog.<>) current_user
        UNION ALL
        SELECT pg_catalog.format('function %I.%I(%s) belongs to role %I', n.nspname, p.proname,
                                 pg_catalog.pg_get_function_identity_arguments(p.oid),
                                 pg_catalog.pg_get_userbyid(p.proowner))
        FROM pg_catalog.pg_proc AS p
        JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
        WHERE n.nspname OPERATOR(pg_catalog.=) 'public'
          AND p.proname OPERATOR(pg_catalog.=) 'prune_processed_events'
          AND pg_catalog.pg_get_userbyid(p.proowner) OPERATOR(pg_catalog.<>) current_user
    ) AS found
    LIMIT 1;
    IF taken IS NOT NULL THEN
        RAISE EXCEPTION '%, not to role %', taken, pg_catalog.quote_ident(current_user)
            USING HINT = 'Run this file as the role that owns the tables. If another role created the object without your knowledge, drop it first, or use a schema in which only you may create objects.';
    END IF;
END
$guard$;

-- By id, or by an idempotency key. Ids are text, so that a uuid, a bigint and a
-- key that somebody chose all fit, as they stand in the record, and no odd one
-- stops a consumer; a uuid takes 37 bytes so instead of 16. COLLATE "C" compares
-- bytes: it is quicker, and no update of the system's locales breaks the index.
CREATE TABLE IF NOT EXISTS public.processed_events (
    -- Who acted: several consumers may share a database, each acts for itself.
    consumer     pg_catalog.text        NOT NULL COLLATE pg_catalog."C",
    -- The header `id`, or the idempotency key. Where ids are numbers that several
    -- outboxes count, put the outbox before them: orders:1042.
    event_id     pg_catalog.text        NOT NULL COLLATE pg_catalog."C",
    processed_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now(),
    PRIMARY KEY (consumer, event_id)
);

-- For each record, in one transaction with what the event causes:
--
--   INSERT INTO public.processed_events (consumer, event_id) VALUES ('billing', '0193a7e2-5b1c-7c3e-9f0a-6d2b8e4f1a90')
--       ON CONFLICT DO NOTHING;
--
-- One row inserted: act on the event. None: it was acted on before; skip it. Where
-- another session has just inserted the same id, this waits until that one commits
-- (then skip it) or rolls back (then act).

-- For pruning alone.
CREATE INDEX IF NOT EXISTS processed_events_processed_at ON public.processed_events (processed_at);

-- Forgets what is older than `keep`, the oldest first, at most so many at a time
-- that no lock is held for long; what another session is forgetting is left to it.
-- From cron, until it returns less than `at_most`:
--
--   SELECT public.prune_processed_events(interval '30 days', 10000);
--
-- Give both arguments with these types: then no other function of that name fits as well.
-- Keep ids for longer than an event may arrive again: see docs/consumers.md.
CREATE OR REPLACE FUNCTION public.prune_processed_events(keep interval, at_most integer DEFAULT 10000)
RETURNS bigint
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $prune$
    WITH old AS (
        SELECT consumer, event_id
        FROM public.processed_events
        WHERE processed_at < pg_catalog.now() - keep
        ORDER BY processed_at
        LIMIT at_most
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM public.processed_events AS events
        USING old
        WHERE events.consumer = old.consumer AND events.event_id = old.event_id
        RETURNING 1
    )
    SELECT pg_catalog.count(*) FROM gone;
$prune$;

-- By position, for a consumer that takes each partition in order: one row a
-- partition instead of one an event, and nothing to prune. Only where one slot
-- alone writes the topic. Positions are those of one PostgreSQL cluster and its
-- standbys: begin anew when the outbox moves to another.
CREATE TABLE IF NOT EXISTS public.processed_positions (
    consumer      pg_catalog.text NOT NULL COLLATE pg_catalog."C",
    topic         pg_catalog.text NOT NULL COLLATE pg_catalog."C",
    partition     integer         NOT NULL,
    -- The header `walpost.position`; it sorts as text, byte by byte.
    last_position pg_catalog.text NOT NULL COLLATE pg_catalog."C",
    PRIMARY KEY (consumer, topic, partition)
);

-- For each record, in one transaction with what the event causes:
--
--   INSERT INTO public.processed_positions AS seen (consumer, topic, partition, last_position)
--       VALUES ('billing', 'outbox.event.order', 3, '0000001600B374D8/00000003')
--       ON CONFLICT (consumer, topic, partition)
--       DO UPDATE SET last_position = excluded.last_position
--           WHERE seen.last_position OPERATOR(pg_catalog.<) excluded.last_position;
--
-- One row changed: act on the event. None: it was acted on before; skip it.
