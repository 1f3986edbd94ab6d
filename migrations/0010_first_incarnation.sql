-- Which log of its name a generation began to read: one that has gone on with another since has more in its tables than
-- the present log can tell. Of older generations that is not known: 1 is the careful answer.
ALTER TABLE tidegate.position ADD COLUMN first_incarnation integer NOT NULL DEFAULT 1;
