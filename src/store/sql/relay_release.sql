-- Gives up leases at a clean stop, so that another relay need not wait for them to run out.
UPDATE tidegate.relay AS r
SET owner = '', lease_until = '-infinity'
FROM unnest($1::text[], $2::bigint[]) AS h (stream, lease_epoch)
WHERE r.stream = h.stream AND r.lease_epoch = h.lease_epoch
