"""Jobs with ZooKeeper as leadership service, in the form that tests run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import frozen
from zookeeper_server import GIVE_UP_S

from statebackend.checkpoint import JobDirectory, ZooKeeperHighAvailability
from statebackend.checkpoint.ha.services import JobRecords
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.testing.stores import LeaderStore

SESSION_TIMEOUT_S = 120.0
"""Longer than any test, so that no session expires on a busy machine."""


@frozen
class Led:
    """A job with leadership, its store, and its recorded events."""

    directory: JobDirectory
    records: JobRecords
    store: CompletedCheckpointStore

    @property
    def led(self) -> LeaderStore:
        return LeaderStore(self.store, self.records.file_system, self.directory.close, self.directory.close)

    @property
    def client(self) -> Any:
        leadership: Any = self.directory.leadership
        return leadership.session.client


def services_of(hosts: str, root: str, **options: Any):
    return ZooKeeperHighAvailability(
        hosts, root, session_timeout_s=SESSION_TIMEOUT_S, connection_timeout_s=GIVE_UP_S, **options
    )


def led(job: Path, services: ZooKeeperHighAvailability) -> Led:
    directory = JobDirectory.open(str(job), "flights", 4, leadership=services, stored_in=services.stored_in("flights"))
    try:
        records = services.take_over(directory)
        store = CompletedCheckpointStore(records.file_system, records.pointers, 3, leadership=directory.leadership)
        store.recover()
    except BaseException:
        directory.close()
        raise
    return Led(directory, records, store)
