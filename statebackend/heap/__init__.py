"""State on the heap, for state that fits into memory. `HeapStateBackend` is all of it that is public."""

from statebackend.heap.keyed_backend import HeapStateBackend

__all__ = ["HeapStateBackend"]
