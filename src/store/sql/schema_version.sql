-- The highest migration applied, 0 if none.
SELECT coalesce(max(version), 0)
FROM tidegate.migration
WHERE success
