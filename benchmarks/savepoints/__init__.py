"""Reads and writes savepoints without a job, compared with bare pyarrow on the same Parquet files."""
