-- Records what came of an operator action that takes many transactions.
UPDATE tidegate.operation SET after = $2 WHERE id = $1
