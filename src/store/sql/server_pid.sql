-- Which of the server's processes answers.
SELECT pg_catalog.pg_backend_pid()
