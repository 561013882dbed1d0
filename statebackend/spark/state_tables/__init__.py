"""State as Spark tables, which a query reads and writes by ``spark.read.format("statebackend")``."""

from statebackend.spark.state_tables.options import StateTableError
from statebackend.spark.state_tables.source import register_state_tables

__all__ = ["StateTableError", "register_state_tables"]
