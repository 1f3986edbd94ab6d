CREATE TABLE order_state (
    order_id text COLLATE "C" PRIMARY KEY,
    status   text NOT NULL,
    total    bigint NOT NULL,
    at       timestamptz NOT NULL,
    coupon   text,
    channel  text NOT NULL
) WITH (fillfactor = 80);
