CREATE TABLE balance (
    account text COLLATE "C" PRIMARY KEY,
    amount  bigint NOT NULL,
    entries bigint NOT NULL
) WITH (fillfactor = 80);
