-- Dead letters of live generations by partition: parked ever, and what became of them (I6).
SELECT d.projection, d.topic, d.partition, count(*) AS letters
FROM tidegate.dead_letter d
JOIN tidegate.projection p ON p.name = d.projection AND p.live_generation = d.generation
GROUP BY d.projection, d.topic, d.partition
