-- The function outbox.publish: inserts an event into the outbox, in the caller's
-- transaction, and returns the event's id. Optional: an INSERT does the same.
-- `walpost init --publish-function` prints this file with the configured names.
-- PostgreSQL 14 or later. Running it again replaces the function's body.
--
--   SELECT outbox.publish('order', '42', 'order_placed', '{"total_cents": 9900}');
--   SELECT outbox.publish('order', '42', 'order_paid', '{"total_cents": 9900}', headers => '{"tenant": "acme"}');
--
-- Run it as the owner of the table. The application needs USAGE on the schema and
-- INSERT on the table. The function runs with the caller's rights (SECURITY
-- INVOKER), so it gives nobody a right that the table did not give:
--   GRANT USAGE ON SCHEMA outbox TO your_application;
--   GRANT INSERT ON public.outbox TO your_application;
--
-- Before a later version adds or renames a parameter, drop the function:
-- CREATE OR REPLACE would keep the old one beside the new one, or fail.

CREATE SCHEMA IF NOT EXISTS outbox;

-- Fails if a role that is neither the current one, nor the table's owner, nor a
-- superuser owns the schema or a function of this name: the owner decides what code
-- runs in the caller's session, and CREATE OR REPLACE does not change the owner.
DO $init$
DECLARE
    fault pg_catalog.text;
BEGIN
    SELECT pg_catalog.format('%s belongs to role %I', found.object, pg_catalog.pg_get_userbyid(found.owner))
    INTO fault
    FROM (
        SELECT 'schema outbox' AS object, n.nspowner AS owner
        FROM pg_catalog.pg_namespace AS n
        WHERE n.nspname OPERATOR(pg_catalog.=) 'outbox'
        UNION ALL
        SELECT 'function outbox.publish', p.proowner
        FROM pg_catalog.pg_proc AS p
        JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
        WHERE n.nspname OPERATOR(pg_catalog.=) 'outbox' AND p.proname OPERATOR(pg_catalog.=) 'publish'
    ) AS found
    JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) found.owner
    WHERE NOT r.rolsuper
      AND r.rolname OPERATOR(pg_catalog.<>) current_user
      AND NOT EXISTS (
          SELECT FROM pg_catalog.pg_class AS c
          WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('public.outbox')::pg_catalog.oid
            AND c.relowner OPERATOR(pg_catalog.=) found.owner
      )
    LIMIT 1;
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION '%, who could change the function', fault
            USING HINT = 'Change the owner, or drop the object if its owner created it without your knowledge.';
    END IF;
END
$init$;

CREATE OR REPLACE FUNCTION outbox.publish(
    aggregate_type pg_catalog.text,
    aggregate_id   pg_catalog.text,
    event_type     pg_catalog.text,
    payload        pg_catalog.jsonb,
    headers        pg_catalog.jsonb DEFAULT NULL,
    id             pg_catalog.uuid  DEFAULT pg_catalog.gen_random_uuid()
) RETURNS pg_catalog.uuid
LANGUAGE plpgsql
SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $init$
BEGIN
    -- An event that cannot be delivered halts walpost. Here it fails the transaction instead.
    IF aggregate_type = '' OR aggregate_id = '' THEN
        RAISE EXCEPTION 'aggregate_type and aggregate_id must not be empty'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF pg_catalog.jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers must be a JSON object, not %', pg_catalog.jsonb_typeof(headers)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Without RETURNING, which would need the right SELECT.
    INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
    VALUES (publish.id, publish.aggregate_type, publish.aggregate_id, publish.event_type,
            publish.payload, publish.headers);
    RETURN publish.id;
END
$init$;
