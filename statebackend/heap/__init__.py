"""The heap store: state as Python dicts, for state that fits into memory, with incremental checkpoints all the same.

`HeapStateBackend` is all of it that is public. Nothing here knows of registrations, verdicts or current keys, and no
other room looks into it.
"""

from statebackend.heap.heap_state_backend import HeapStateBackend

__all__ = ["HeapStateBackend"]
