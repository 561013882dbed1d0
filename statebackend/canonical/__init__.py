"""The canonical form of keyed state: rows of bytes in Parquet that every store and any tool reads and writes.

Nothing here knows what a state is, or who wrote it.
"""
