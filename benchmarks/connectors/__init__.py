"""Measures the sinks of tables beside `ParquetSink`, and the rows per second of PostgreSQL and Kafka."""
