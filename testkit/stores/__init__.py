"""What a store of completed checkpoints promises, as tests: for our own, and for those of others.

A subclass of `CompletedCheckpointStoreContract` in a test module is enough:

    class TestMyStore(CompletedCheckpointStoreContract):
        def lead(self, directory, max_retained):
            ...
            return LedStore(store, file_system, lose, close)
"""

from testkit.stores.completed_checkpoint_store_contract import CompletedCheckpointStoreContract
from testkit.stores.led_store import LedStore

__all__ = ["CompletedCheckpointStoreContract", "LedStore"]
