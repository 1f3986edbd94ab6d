CREATE TABLE balance (
    account text PRIMARY KEY,
    amount  bigint NOT NULL,
    entries bigint NOT NULL
) WITH (fillfactor = 80);
