-- Records an operator action, in its transaction.
INSERT INTO tidegate.operation (id, kind, projection, who, arguments, before, after)
VALUES ($1, $2, $3, $4, $5, $6, $7)
