"""Checkpoints: handles, metadata, barriers, coordinator, stores. State is opaque bytes here."""

from statebackend.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
