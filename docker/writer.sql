-- Ten orders a second, each with its event in the same transaction. The rows of the outbox
-- go again at once: walpost reads them in the log.
SET search_path = pg_catalog, pg_temp;
DO $order$
BEGIN
    FOR i IN 1..10 LOOP
        WITH placed AS (
            INSERT INTO public.orders (customer, total)
            VALUES ('customer-' || i, round((random() * 100)::numeric, 2))
            RETURNING number, customer, total
        )
        INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
        SELECT 'order', customer, 'order_placed', to_jsonb(placed) FROM placed;
        DELETE FROM public.outbox;
        COMMIT;
    END LOOP;
    DELETE FROM public.orders WHERE placed_at < now() - interval '10 minutes';
END
$order$;
\watch 1
