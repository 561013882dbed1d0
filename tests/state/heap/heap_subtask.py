"""A heap backend and its store. The store outlives the backend, as in a worker between epochs."""

from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.keyed_state_backend import KeyedStateBackend

HEAP = HeapStateBackend()


class HeapSubtask:
    """The backend of the epoch, and its store."""

    def __init__(self, backend):
        self.backend = backend
        self.store = backend._store

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def entries(self, name):
        """The table of entries of a state."""
        return self.store.tables[name].content.table

    def all_entries(self):
        return {name: table.content.table for name, table in self.store.tables.items()}

    def release_states(self):
        """Ends the epoch and starts another."""
        self.backend.release().release_states()
        self.backend = KeyedStateBackend(self.store.parameters, self.store)

    def catch_up(self, restored, parameters=None):
        is_caught_up = self.store.catch_up(restored, parameters)
        if is_caught_up:
            self.backend = KeyedStateBackend(self.store.parameters, self.store)
        return is_caught_up

    def estimated_bytes(self):
        return self.store.estimated_bytes()

    @property
    def last_checkpoint_id(self):
        return self.store.last_checkpoint_id

    def check_open(self):
        """Raises once the backend or the store is closed."""
        self.backend.check_open()
        self.store.check_open()


def open_heap(harness, *handles, **options):
    """A backend of the harness, and its store."""
    return HeapSubtask(harness.open(HEAP, *handles, **options))
