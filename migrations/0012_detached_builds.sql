-- Builds that processes of the service work on, without anybody's terminal.

-- What they are to do with one: build it, and cut over once nothing differs, or whatever differs. Null where it is not
-- theirs.
ALTER TABLE tidegate.generation ADD COLUMN detached text
    CHECK (detached IN ('build', 'cut over if same', 'cut over'));
-- Why such a build does not go on by itself; empty if it does.
ALTER TABLE tidegate.generation ADD COLUMN trouble text NOT NULL DEFAULT '';
