-- How much space the relations of a schema take, with their indexes.
SELECT coalesce(sum(pg_catalog.pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_catalog.pg_class c
WHERE c.relnamespace = $1 AND c.relkind IN ('r', 'm')
