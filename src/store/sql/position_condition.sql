-- Says how a partition fares. Only its newest owner may: a fenced worker has no opinion.
UPDATE tidegate.position
SET condition = $7, cause = $8, in_doubt = in_doubt OR $9, since = CASE WHEN condition = $7 THEN since ELSE clock_timestamp() END
WHERE projection = $1 AND generation = $2 AND topic = $3 AND partition = $4 AND epoch = $5 AND claim_token = $6
