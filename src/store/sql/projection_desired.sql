-- Which projections there are, and whether an operator has paused them.
SELECT name, desired_state = 'paused' AS paused
FROM tidegate.projection
ORDER BY name
