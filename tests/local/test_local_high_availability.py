"""Local jobs with ZooKeeper leadership: one runs at a time, and the next continues."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_staged_sinks import Files
from zookeeper_server import GIVE_UP_S, ZooKeeperServer

from statebackend import KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor
from statebackend.checkpoint import JobDirectoryMismatchError, LeadershipLostError, ZooKeeperHighAvailability
from statebackend.local import LocalStreamEnvironment
from statebackend.local import checkpoints as local_checkpoints


class Count(KeyedProcessFunction[str, Any, tuple[str, int]]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value["key"], count


@pytest.fixture
def services(zookeeper_server: ZooKeeperServer) -> ZooKeeperHighAvailability:
    # Longer than any test, so that no session expires on a busy machine.
    return ZooKeeperHighAvailability(
        zookeeper_server.hosts, f"/{uuid.uuid4().hex}", session_timeout_s=120.0, connection_timeout_s=GIVE_UP_S
    )


def run(
    job_dir: Path,
    services: ZooKeeperHighAvailability | None,
    keys: str,
    at_record: Callable[[Any], None] = lambda record: None,
    **execute: Any,
) -> list[tuple[str, int]]:
    """Run the job with one record per key, and one record per epoch."""
    environment = LocalStreamEnvironment(job_dir=job_dir, epoch_size=1, high_availability=services)
    rows: list[Any] = []

    def sink(record: Any) -> None:
        rows.append(tuple(record))
        at_record(record)

    stream = environment.from_elements([{"key": key} for key in keys], schema="key string")
    stream.key_by("key").process(Count(), uid="count", schema="key string, count bigint").sink_to(sink)
    environment.execute("count", **execute)
    return rows


def test_a_job_continues_after_the_one_before_and_rolls_back_to_an_older_checkpoint(
    tmp_path: Path, services: ZooKeeperHighAvailability
) -> None:
    assert run(tmp_path / "job", None, "a") == [("a", 1)]
    assert run(tmp_path / "job", services, "aab") == [("a", 2), ("a", 3), ("b", 1)]
    assert run(tmp_path / "job", services, "a", roll_back_to="previous") == [("a", 4)]
    assert run(tmp_path / "job", services, "b", roll_back_to=1) == [("b", 1)]
    with pytest.raises(JobDirectoryMismatchError, match=r"recorded in zookeeper:"):
        run(tmp_path / "job", None, "a")


def test_a_standby_driver_continues_from_the_last_checkpoint_of_the_leader(
    tmp_path: Path, services: ZooKeeperHighAvailability
) -> None:
    leads, standing_by = threading.Event(), threading.Event()
    rows: dict[str, list[tuple[str, int]]] = {}

    def stand_by() -> None:
        rows["second"] = run(tmp_path / "job", services, "a")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "standing by" in record.getMessage():
                standing_by.set()

    logger = logging.getLogger("statebackend.checkpoint.ha.zookeeper")
    handler = Handler()
    logger.addHandler(handler)
    second = threading.Thread(target=stand_by)

    def at_record(record: Any) -> None:
        if not leads.is_set():
            leads.set()
            second.start()
            assert standing_by.wait(GIVE_UP_S)

    try:
        rows["first"] = run(tmp_path / "job", services, "aaa", at_record)
        second.join()
    finally:
        logger.removeHandler(handler)
    assert rows == {"first": [("a", 1), ("a", 2), ("a", 3)], "second": [("a", 4)]}


def take_away_the_lead(services: ZooKeeperHighAvailability, server: ZooKeeperServer) -> None:
    """End the session of the leader, as the ZooKeeper servers do."""
    server.remove_node(server.leading_node(f"{services.root}/count/leaders"))


def test_a_driver_without_session_completes_nothing(
    tmp_path: Path, services: ZooKeeperHighAvailability, zookeeper_server: ZooKeeperServer
) -> None:
    def lose(record: Any) -> None:
        take_away_the_lead(services, zookeeper_server)

    with pytest.raises(LeadershipLostError, match="does not lead job 'count' any more"):
        run(tmp_path / "job", services, "aaa", lose)
    assert run(tmp_path / "job", services, "a") == [("a", 2)]


def test_a_driver_that_loses_leadership_after_a_checkpoint_leaves_its_output_to_the_next(
    tmp_path: Path,
    services: ZooKeeperHighAvailability,
    zookeeper_server: ZooKeeperServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = local_checkpoints.store_checkpoint

    def store_and_lose(*arguments: Any, **options: Any) -> Any:
        metadata = stored(*arguments, **options)
        take_away_the_lead(services, zookeeper_server)
        return metadata

    staged, given = Files(tmp_path / "out"), list[Any]()
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job", epoch_size=1, high_availability=services)
    stream = environment.from_elements([{"key": "a"}] * 3, schema="key string")
    counted = stream.key_by("key").process(Count(), uid="count", schema="key string, count bigint")
    counted.sink_to(staged, uid="staged")
    counted.sink_to(given.append)
    monkeypatch.setattr(local_checkpoints, "store_checkpoint", store_and_lose)
    with pytest.raises(LeadershipLostError, match="does not lead job 'count' any more"):
        environment.execute("count")
    assert (staged.committed(), given) == ([], [])
    monkeypatch.undo()
    environment.execute("count")
    assert staged.committed()[0] == ("a", 1), "the next run commits what is complete"
