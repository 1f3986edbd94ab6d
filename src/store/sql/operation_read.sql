-- What was done under an id, if anything was.
SELECT kind, projection, who, at, arguments, before, after FROM tidegate.operation WHERE id = $1
