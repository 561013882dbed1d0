"""Records between operators: declared schemas, and conversion between rows and Arrow."""
