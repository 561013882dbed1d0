"""The store whose pointers are in ZooKeeper passes the contract, on a real server."""

from __future__ import annotations

import pathlib
import uuid
from typing import TYPE_CHECKING

import pytest

from checkpointing import JobDirectory
from checkpointing.storage.default_checkpoint_store import DefaultCompletedCheckpointStore
from checkpointing.storage.zookeeper_high_availability import ZooKeeperHighAvailability
from testkit.stores import CompletedCheckpointStoreContract, LedStore

if TYPE_CHECKING:
    from zookeeper_server import ZooKeeperServer


class TestZooKeeperStore(CompletedCheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, zookeeper_server: ZooKeeperServer) -> None:
        self._hosts = zookeeper_server.hosts
        self._roots: dict[pathlib.Path, str] = {}

    def lead(self, directory: pathlib.Path, max_retained: int) -> LedStore:
        root = self._roots.setdefault(directory, f"/{uuid.uuid4().hex}")
        services = ZooKeeperHighAvailability(self._hosts, root, session_timeout_s=20.0, stand_by_timeout_s=60.0)
        opened = JobDirectory.open(
            str(directory), "flights", 4, leadership=services, kept_in=services.kept_in("flights")
        )
        records = services.take_over(opened)
        store = DefaultCompletedCheckpointStore(
            records.file_system, records.pointers, max_retained, leadership=opened.leadership
        )

        def lose() -> None:
            # Somebody else ends the session, as the servers would.
            from kazoo.client import KazooClient

            other = KazooClient(self._hosts, client_id=opened.leadership.session.client.client_id)
            other.start()
            other.stop()
            other.close()

        return LedStore(store, records.file_system, lose, opened.close)
