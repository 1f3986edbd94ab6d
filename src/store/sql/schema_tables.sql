-- The tables of a schema that are not Tidegate's own, with the bytes that they take.
SELECT c.relname::text,
       (pg_catalog.pg_total_relation_size(c.oid)
        + coalesce((SELECT sum(pg_catalog.pg_total_relation_size(t.relid))
                    FROM pg_catalog.pg_partition_tree(c.oid) t WHERE t.relid <> c.oid), 0))::bigint
FROM pg_catalog.pg_class c
WHERE c.relnamespace = $1 AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND left(c.relname, 1) <> '_'
ORDER BY c.relname
