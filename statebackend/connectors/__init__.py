"""Connectors: sources, and sinks that write each epoch exactly once."""

from statebackend.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
