-- How many records of a projection are parked, and the most of one of these entities.
SELECT (SELECT count(*) FROM tidegate.dead_letter d
        WHERE d.projection = $1 AND d.generation = $2 AND d.state = 'waiting') AS all_parked,
       coalesce((SELECT max(n) FROM (
            SELECT count(*) AS n FROM tidegate.dead_letter d
            WHERE d.projection = $1 AND d.generation = $2 AND d.state = 'waiting' AND d.entity = ANY ($3::text[])
            GROUP BY d.entity) e), 0) AS most_of_one
