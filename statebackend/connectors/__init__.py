"""Connectors: sinks of both runtimes that write each epoch exactly once, and sources."""

from statebackend.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
