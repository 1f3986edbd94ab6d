-- What a projection's `role` may do in the projection's schema. Both names are checked and quoted.
GRANT USAGE ON SCHEMA "{schema}" TO "{role}";
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO "{role}";
GRANT USAGE ON ALL SEQUENCES IN SCHEMA "{schema}" TO "{role}";
REVOKE ALL ON "{schema}"._gate, "{schema}"._inbox, "{schema}"._held FROM "{role}"
