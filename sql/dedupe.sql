-- For consumers, in their own database: how to act once on an event that comes
-- twice. walpost delivers at least once: after a crash or a lost connection it
-- sends again, in the same order, what it is not sure of.
-- Running it again changes nothing.

-- By id, for any consumer. Keep ids for longer than anything may be replayed.
CREATE TABLE IF NOT EXISTS public.inbox (
    consumer    text        NOT NULL,
    event_id    uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);

-- For each record, in one transaction with what the event causes; event_id is the
-- record's header `id`:
--
--   BEGIN;
--   INSERT INTO public.inbox (consumer, event_id)
--       VALUES ('billing', '0193a7e2-5b1c-7c3e-9f0a-6d2b8e4f1a90')
--       ON CONFLICT DO NOTHING;
--   -- One row inserted: act on the event. None: it was acted on before; skip it.
--   COMMIT;
--
-- From time to time:
--
--   DELETE FROM public.inbox WHERE received_at < now() - interval '30 days';

-- By position, for a consumer that takes each partition in order: one row a
-- partition instead of one an event. Positions are those of one PostgreSQL
-- server and its standbys: begin anew when the outbox moves to another cluster.
CREATE TABLE IF NOT EXISTS public.inbox_position (
    consumer      text    NOT NULL,
    topic         text    NOT NULL,
    partition     integer NOT NULL,
    -- The header `walpost.position`; it sorts as text, byte by byte.
    last_position text    NOT NULL COLLATE "C",
    PRIMARY KEY (consumer, topic, partition)
);

-- For each record, in one transaction with what the event causes:
--
--   INSERT INTO public.inbox_position AS seen (consumer, topic, partition, last_position)
--       VALUES ('billing', 'outbox.event.order', 3, '0000001600B374D8/00000003')
--       ON CONFLICT (consumer, topic, partition)
--       DO UPDATE SET last_position = excluded.last_position
--           WHERE seen.last_position < excluded.last_position;
--   -- One row changed: act on the event. None: it was acted on before; skip it.
