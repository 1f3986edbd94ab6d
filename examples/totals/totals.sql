CREATE TABLE sales (
    country text NOT NULL,
    day     date NOT NULL,
    sales   bigint NOT NULL,
    cents   bigint NOT NULL,
    PRIMARY KEY (country, day)
) WITH (fillfactor = 70);

CREATE TABLE sales_of_partition (
    country text NOT NULL,
    part    integer NOT NULL,
    cents   bigint NOT NULL,
    PRIMARY KEY (country, part)
) WITH (fillfactor = 70);

CREATE VIEW sales_of_country AS
SELECT country, sum(cents) AS cents FROM sales_of_partition GROUP BY country;
