-- Resets to another point than the beginning: one that goes forward leaves records out that no live generation has
-- passed, and a later one may come back to them. Their right to emit is kept as a range: see `unemitted_leave_out.sql`.

-- Offsets from `from_offset` on, up to but without `to_offset`; ranges do not overlap.
ALTER TABLE tidegate.unemitted RENAME COLUMN record_offset TO from_offset;
ALTER TABLE tidegate.unemitted ADD COLUMN to_offset bigint;
UPDATE tidegate.unemitted SET to_offset = from_offset + 1;
ALTER TABLE tidegate.unemitted ALTER COLUMN to_offset SET NOT NULL;
ALTER TABLE tidegate.unemitted ADD CHECK (to_offset > from_offset);
