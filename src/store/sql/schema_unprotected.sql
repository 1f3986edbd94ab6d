-- Tables of schema $1 whose rows are protected by policies while the table of that name in schema $2 has none.
SELECT o.relname
FROM pg_catalog.pg_class o
JOIN pg_catalog.pg_class n ON n.relnamespace = $2 AND n.relname = o.relname
WHERE o.relnamespace = $1 AND o.relrowsecurity AND NOT n.relrowsecurity
ORDER BY o.relname
