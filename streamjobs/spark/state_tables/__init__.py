"""State as tables of Spark: savepoints and checkpoints read by ``spark.read.format("statebackend")``.

A table's columns, parts and rows are told without Spark; one module is Spark's source, which asks them. What a table
holds is read by `savepoints.reading` and `savepoints.tabular`, and a frame is written by `savepoints.writing`; nothing
here knows how state is stored.
"""

from streamjobs.spark.state_tables.registration import register_state_tables
from streamjobs.spark.state_tables.table_options import StateTableError

__all__ = ["StateTableError", "register_state_tables"]
