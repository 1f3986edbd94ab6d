CREATE TABLE turnover (
    day     date PRIMARY KEY,
    entries bigint NOT NULL,
    credit  bigint NOT NULL,
    debit   bigint NOT NULL
);
