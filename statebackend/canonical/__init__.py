"""The canonical form of keyed state: rows of bytes in Parquet that every backend and any tool reads."""
