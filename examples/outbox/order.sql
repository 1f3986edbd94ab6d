-- A service's transaction: the order and the message about it, both or neither.
BEGIN;
CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, total bigint NOT NULL);
INSERT INTO orders (id, total) VALUES (17, 4200);
SELECT tidegate.emit('orders', key => '17', payload => '{"order": 17, "total": 4200}', type => 'order.placed');
COMMIT;
