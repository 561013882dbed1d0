"""Records between operators: declared schemas, and rows in and out of Arrow."""
