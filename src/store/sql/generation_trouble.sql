-- Says why a build that was left to the service does not go on, or with '' that it does.
UPDATE tidegate.generation
SET trouble = $3
WHERE projection = $1 AND number = $2 AND state = 'building' AND detached IS NOT NULL AND trouble <> $3
