-- Which definition the live tables of each projection have.
SELECT p.name, g.definition
FROM tidegate.projection p
JOIN tidegate.generation g ON g.projection = p.name AND g.number = p.live_generation
ORDER BY p.name
