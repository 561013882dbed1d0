"""If `_metadata` of the newest checkpoint is lost, the local runtime uses no older checkpoint without permission."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statebackend import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor
from statebackend.checkpoint import CorruptMetadataError
from statebackend.local import LocalStreamEnvironment


class Count(KeyedProcessFunction[Any, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value["k"], self.count.value()


def run(job: Path, records: int, **options: Any) -> list[int]:
    env = LocalStreamEnvironment(job_dir=job, epoch_size=2)
    out: list[Any] = []
    counted = env.from_elements([{"k": "a"}] * records, schema="k string").key_by("k")
    counted.process(Count(), uid="count", schema="k string, n bigint").sink_to(out)
    env.execute(**options)
    return [row["n"] for row in out]


def checkpoints(job: Path) -> list[Path]:
    return sorted(job.glob("checkpoints/chk-*"))


def test_a_start_names_the_lost_file_and_changes_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, 6) == [1, 2, 3, 4, 5, 6]
    metadata = checkpoints(tmp_path)[-1] / "_metadata"
    content = metadata.read_bytes()
    metadata.unlink()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CorruptMetadataError, match=r"chk-000000000002/_metadata is missing.*start with roll_back_to=1"):
        run(tmp_path, 2)
    assert sorted(tmp_path.rglob("*")) == before
    metadata.write_bytes(content)
    assert run(tmp_path, 2) == [7, 8]


@pytest.mark.parametrize("roll_back_to", ["previous", 1])
def test_a_start_with_permission_continues_from_an_older_checkpoint(tmp_path: Path, roll_back_to: int | str) -> None:
    run(tmp_path, 6)
    (checkpoints(tmp_path)[-1] / "_metadata").unlink()
    assert run(tmp_path, 2, roll_back_to=roll_back_to) == [5, 6]
    assert run(tmp_path, 2) == [7, 8]


def test_a_job_that_lost_its_only_checkpoint_does_not_start_from_nothing(tmp_path: Path) -> None:
    run(tmp_path, 2)
    [directory] = checkpoints(tmp_path)
    (directory / "_metadata").unlink()
    with pytest.raises(CorruptMetadataError, match=r"_metadata is missing.*No other checkpoint is readable"):
        run(tmp_path, 2)


def test_remains_of_a_crashed_checkpoint_are_removed(tmp_path: Path) -> None:
    run(tmp_path, 4)
    left = tmp_path / "checkpoints" / ".chk-000000000002"
    left.mkdir()
    (left / "_metadata").write_bytes((checkpoints(tmp_path)[-1] / "_metadata").read_bytes())
    dropped = tmp_path / "checkpoints" / "chk-000000000000"
    (dropped / "_metadata").unlink()
    assert run(tmp_path, 2) == [5, 6]
    assert not left.exists()
    assert not dropped.exists()
