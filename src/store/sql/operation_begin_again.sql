-- Begins an operator action once more that takes many transactions and has failed. Of two at once one finds no row: the
-- other has begun it.
UPDATE tidegate.operation SET after = '{}', at = now(), who = $2, before = $3
WHERE id = $1 AND after ? 'failed'
