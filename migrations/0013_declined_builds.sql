-- Builds that were left to the service and that nobody works on.

-- When it was said what the service is to do. Null where it is not the service's, and of what was left to it before.
ALTER TABLE tidegate.generation ADD COLUMN left_at timestamptz;
-- Which process could, but for one thing, and when it said so; a process that has another definition says nothing.
ALTER TABLE tidegate.generation ADD COLUMN declined text NOT NULL DEFAULT '';
ALTER TABLE tidegate.generation ADD COLUMN declined_at timestamptz;
