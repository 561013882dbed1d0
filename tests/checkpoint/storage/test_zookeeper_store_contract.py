"""The store with pointers in ZooKeeper passes the contract on a real server."""

from __future__ import annotations

import pathlib
import uuid
from typing import TYPE_CHECKING

import pytest
from zookeeper_server import GIVE_UP_S

from statebackend.checkpoint import JobDirectory
from statebackend.checkpoint.ha.zookeeper import ZooKeeperHighAvailability
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.testing.stores import CompletedCheckpointStoreContract, LeaderStore

if TYPE_CHECKING:
    from zookeeper_server import ZooKeeperServer


class TestZooKeeperStore(CompletedCheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def _servers(self, zookeeper_server: ZooKeeperServer) -> None:
        self._server = zookeeper_server
        self._roots: dict[pathlib.Path, str] = {}

    def lead(self, directory: pathlib.Path, max_retained: int) -> LeaderStore:
        root = self._roots.setdefault(directory, f"/{uuid.uuid4().hex}")
        # No session expires by itself, and no driver has to wait for another one.
        services = ZooKeeperHighAvailability(
            self._server.hosts,
            root,
            session_timeout_s=120.0,
            connection_timeout_s=GIVE_UP_S,
            stand_by_timeout_s=GIVE_UP_S,
        )
        opened = JobDirectory.open(
            str(directory), "flights", 4, leadership=services, stored_in=services.stored_in("flights")
        )
        records = services.take_over(opened)
        store = CompletedCheckpointStore(
            records.file_system, records.pointers, max_retained, leadership=opened.leadership
        )

        def lose() -> None:
            self._server.end_session(opened.leadership.session.client.client_id)

        return LeaderStore(store, records.file_system, lose, opened.close)
