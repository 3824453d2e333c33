-- The outbox, partitioned by time: one row is one event. PostgreSQL 14 or later.
-- Running it again changes nothing; an existing table without partitions is an error.
--
-- Dropping a partition costs nothing, where deleting its rows costs WAL and vacuum.
-- `walpost prune` makes partitions ahead, and drops those that are old and proved to
-- be delivered. Run it at least as often as a partition begins, from a timer.
--
-- The application inserts into the outbox as into any table, and needs no other right:
--   GRANT INSERT ON public.outbox TO your_application;
--
-- Names are qualified so that the session's search_path cannot replace them.

CREATE TABLE IF NOT EXISTS public.outbox (
    -- For consumers, to tell a repeated event from a new one (see consumer_dedupe.sql).
    id             pg_catalog.uuid        NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
    -- What kind of thing it is about, for instance order. Chooses the topic.
    aggregate_type pg_catalog.text        NOT NULL,
    -- Which one of them. The record's key: events with the same key stay in order.
    aggregate_id   pg_catalog.text        NOT NULL,
    -- What happened, for instance order_placed.
    event_type     pg_catalog.text        NOT NULL,
    -- The record's value, as it is. NULL makes a tombstone. Use bytea for Avro or Protobuf.
    payload        pg_catalog.jsonb,
    -- A JSON object of further headers, for instance {"tenant": "acme"}.
    headers        pg_catalog.jsonb,
    -- Chooses the partition. Leave it to its default: a row with another time may come
    -- into an old partition, or into the default partition.
    created_at     pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now(),
    -- A key of a partitioned table includes the column of the partitions. So the id
    -- alone is not checked to be unique.
    PRIMARY KEY (id, created_at)
) PARTITION BY RANGE (created_at);

-- The first partitions, in UTC: the current period and three days ahead, at least the
-- next one. Rows of a period that has no partition go to the default partition, so
-- that no writer ever fails because one is missing. `walpost prune` reports them.
DO $init$
DECLARE
    outbox pg_catalog.regclass  := pg_catalog.to_regclass('public.outbox');
    step   pg_catalog.interval  := '1 day';
    period pg_catalog.timestamp := pg_catalog.date_trunc('day', pg_catalog.now() AT TIME ZONE 'UTC');
    until  pg_catalog.timestamp := (pg_catalog.now() AT TIME ZONE 'UTC') OPERATOR(pg_catalog.+) interval '3 days';
    bound  pg_catalog.text      := 'YYYY-MM-DD HH24:MI:SS"+00"';
    place  pg_catalog.text;
    parent pg_catalog.text;
    base   pg_catalog.text;
    kind   pg_catalog."char";
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_inherits
        WHERE inhparent OPERATOR(pg_catalog.=) outbox::pg_catalog.oid
    ) THEN
        RETURN;
    END IF;
    SELECT n.nspname, c.relname, c.relname, c.relkind INTO place, parent, base, kind
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
    WHERE c.oid OPERATOR(pg_catalog.=) outbox::pg_catalog.oid;
    IF kind OPERATOR(pg_catalog.<>) 'p' THEN
        RAISE EXCEPTION 'table % exists, and is not partitioned', outbox;
    END IF;
    -- PostgreSQL would cut off the end of a longer name.
    WHILE pg_catalog.octet_length(base) OPERATOR(pg_catalog.>) 45 LOOP
        base := pg_catalog.left(base, -1);
    END LOOP;
    IF until OPERATOR(pg_catalog.<) (period OPERATOR(pg_catalog.+) step) THEN
        until := period OPERATOR(pg_catalog.+) step;
    END IF;
    WHILE period OPERATOR(pg_catalog.<=) until LOOP
        EXECUTE pg_catalog.format(
            'CREATE TABLE %I.%I PARTITION OF %I.%I FOR VALUES FROM (%L) TO (%L)', place,
            pg_catalog.concat(base, '_p', pg_catalog.to_char(period, 'YYYYMMDD')),
            place, parent, pg_catalog.to_char(period, bound),
            pg_catalog.to_char(period OPERATOR(pg_catalog.+) step, bound));
        period := period OPERATOR(pg_catalog.+) step;
    END LOOP;
    EXECUTE pg_catalog.format('CREATE TABLE %I.%I PARTITION OF %I.%I DEFAULT', place,
                              pg_catalog.concat(base, '_default'), place, parent);
END
$init$;

