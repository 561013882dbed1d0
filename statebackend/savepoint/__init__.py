"""State as data: open, read, tables, rewrite and the schema lockfile, without a running job."""
