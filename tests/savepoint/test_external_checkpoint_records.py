"""Jobs whose checkpoints are recorded outside of their job directory can be read."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from object_store import Bucket
from zookeeper_server import GIVE_UP_S, ZooKeeperServer

from statebackend import KeyedProcessFunction, RuntimeContext, Savepoint, ValueStateDescriptor
from statebackend.checkpoint import CheckpointNotFoundError, JobDirectoryMismatchError, ZooKeeperHighAvailability
from statebackend.checkpoint.ha.object_store import COMPLETED_FILE_NAME, ObjectStoreHighAvailability
from statebackend.checkpoint.ha.services import JobServices
from statebackend.cli.main import main
from statebackend.cli.main import main as job_main
from statebackend.cli.streams import NOT_READABLE
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.state_location import completed_checkpoints
from statebackend.spark.state_tables.options import StateTableError, parsed_options
from statebackend.spark.state_tables.tables import opened_table

pytestmark = pytest.mark.slow


class Count(KeyedProcessFunction[Any, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        return iter(())


def counting(keys: str, **settings: Any) -> LocalStreamEnvironment:
    """One record per epoch."""
    environment = LocalStreamEnvironment(epoch_size=1, **settings)
    environment.from_elements([{"key": key} for key in keys], schema="key string").key_by("key").process(
        Count(), uid="count", schema="key string"
    ).sink_to([])
    return environment


def program() -> LocalStreamEnvironment:
    """The program that the command is called with."""
    return counting("")


def run(job_dir: str | Path, services: JobServices, keys: str) -> None:
    with closing(counting(keys, job_dir=job_dir, high_availability=services)) as environment:
        environment.execute("count")


def counts(savepoint: Savepoint) -> dict[str, int]:
    return {entry.key: entry.value for entry in savepoint.read("count", "count")}


def test_an_incomplete_checkpoint_on_an_object_store_is_not_read(bucket: Bucket) -> None:
    services = ObjectStoreHighAvailability(lease_ms=500, monotonic_ms=lambda: 0)
    uri = bucket.uri("job")
    run(uri, services, "ab")
    before = bucket.read(f"job/{COMPLETED_FILE_NAME}")
    run(uri, services, "a")
    [unnoted] = set(completed_checkpoints(uri).ids).difference([0, 1])
    # The driver died after it wrote all files of the last checkpoint, and before the object named that checkpoint.
    bucket.write(f"job/{COMPLETED_FILE_NAME}", before)
    opened = Savepoint.open(uri)
    assert (opened.metadata.checkpoint_id, counts(opened)) == (1, {"a": 1, "b": 1})
    assert counts(Savepoint.open(uri, 0)) == {"a": 1}
    with pytest.raises(CheckpointNotFoundError, match=f"no checkpoint {unnoted}; there are: 0, 1"):
        Savepoint.open(uri, unnoted)
    names = {key.split("/")[2] for key in bucket.keys if key.endswith("/_metadata")}
    assert len(names) == 3
    own = {name: bucket.uri(f"job/checkpoints/{name}") for name in names}
    for name, place in own.items():
        if name.startswith(f"chk-{unnoted:012d}"):
            with pytest.raises(CheckpointNotFoundError, match="did not complete"):
                Savepoint.open(place)
        else:
            assert Savepoint.open(place).metadata.checkpoint_id in (0, 1)


def test_checkpoints_in_zookeeper_are_read_from_there_and_rejected_without_it(
    tmp_path: Path, zookeeper_server: ZooKeeperServer, capsys: pytest.CaptureFixture[str]
) -> None:
    root = f"/{uuid.uuid4().hex}"
    services = ZooKeeperHighAvailability(
        zookeeper_server.hosts, root, session_timeout_s=120.0, connection_timeout_s=GIVE_UP_S
    )
    job = tmp_path / "job"
    run(job, services, "ab")
    [newest] = (job / "checkpoints").glob("chk-000000000001-*")
    unnoted = newest.with_name(f"chk-000000000002-{uuid.uuid4().hex}")
    shutil.copytree(newest, unnoted)
    for place in (job, newest):
        with pytest.raises(JobDirectoryMismatchError, match=f"recorded in zookeeper:{root}/count, .*--zookeeper"):
            Savepoint.open(place)
        assert counts(Savepoint.open(place, high_availability=services)) == {"a": 1, "b": 1}
    with pytest.raises(CheckpointNotFoundError, match="did not complete"):
        Savepoint.open(unnoted, high_availability=services)
    option = f"--zookeeper={zookeeper_server.hosts}{root}"
    assert main(["show", str(job), "count", "count", "--key=a", option]) == 0
    assert capsys.readouterr().out == "key\tvalue\na\t1\n"
    migration = ["migrate", str(job), str(tmp_path / "new"), "--job", f"{__name__}:program", "--drop-source-progress"]
    assert job_main(migration) == NOT_READABLE
    assert "--zookeeper" in capsys.readouterr().err
    assert job_main([*migration, option]) == 0
    assert counts(Savepoint.open(tmp_path / "new")) == {"a": 1, "b": 1}
    options = parsed_options({"path": str(job), "kind": "metadata", "zookeeper": f"{zookeeper_server.hosts}{root}"})
    assert opened_table(options).parts([])
    with pytest.raises(StateTableError, match=r"the option zookeeper is HOSTS\[/ROOT\]"):
        parsed_options({"path": str(job), "zookeeper": "/root"})
    capsys.readouterr()
    assert main(["inspect", str(job)]) == NOT_READABLE
    [line] = capsys.readouterr().err.splitlines()
    assert "zookeeper:" in line
