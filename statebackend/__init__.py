"""Evolvable keyed and operator state for PySpark: all that a job imports.

The names are imported on first use. Environments and sinks are in `statebackend.spark` and `statebackend.local`.
"""

from statebackend.lazy_exports import lazy_exports

__version__ = "0.1.0"

__getattr__, __dir__ = lazy_exports(__name__)
