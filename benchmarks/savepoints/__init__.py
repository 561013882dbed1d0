"""State as data: what is asked of a savepoint without a job, beside bare pyarrow on the same Parquet files."""
