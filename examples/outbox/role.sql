-- The role that a service of yours works as. It may emit, and see nothing of the outbox.
CREATE ROLE shop;
GRANT USAGE ON SCHEMA tidegate TO shop;
GRANT EXECUTE ON FUNCTION tidegate.emit, tidegate.emit_bytes TO shop;
