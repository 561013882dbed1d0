"""Compares table sinks with `ParquetSink`, and measures the rows per second of PostgreSQL and Kafka."""
