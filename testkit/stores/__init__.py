"""What a store of completed checkpoints promises, and the storage below it, as tests: for our own, and those of others.

A subclass of `CompletedCheckpointStoreContract`, or of `StorageContract`, in a test module is enough:

    class TestMyStore(CompletedCheckpointStoreContract):
        def lead(self, directory, max_retained):
            ...
            return LedStore(store, file_system, lose, close)

    class TestMyStorage(StorageContract):
        def make_files(self, directory):
            return CheckpointFileSystem("mine://...", MyStorage(directory))
"""

from testkit.stores.completed_checkpoint_store_contract import CompletedCheckpointStoreContract
from testkit.stores.led_store import LedStore
from testkit.stores.storage_contract import StorageContract

__all__ = ["CompletedCheckpointStoreContract", "LedStore", "StorageContract"]
