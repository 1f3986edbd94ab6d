-- Who has given up a dead letter, when and why.
SELECT who, at, coalesce(arguments ->> 'why', '') AS why
FROM tidegate.operation
WHERE projection = $1 AND kind = 'discard' AND before -> 'dead_letters' @> to_jsonb($2::bigint)
ORDER BY at DESC
LIMIT 1
