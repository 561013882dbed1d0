"""A savepoint starts a job of the local runtime: which sources continue, and which starts are rejected."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import evolve

from statebackend import (
    JobDefinitionError,
    JobRestoreError,
    KeyedProcessFunction,
    UserFunctionError,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import ReadSource, SourcePositions
from statebackend.checkpoint.metadata_bytes import decode_metadata, encode_metadata
from statebackend.checkpoint.store.job_directory import read_origin, write_origin
from statebackend.connectors import JsonLinesSource
from statebackend.local import LocalStreamEnvironment

SCHEMA = "shop string, at bigint"
FILES = "FileStreamSource[file:/sales]"
SPLITS = "statebackend-source"


class Count(KeyedProcessFunction[Any, Any, Any]):
    """Counts the sales of a shop; its rows have the watermark."""

    count = ValueStateDescriptor("count", int, default=0)

    def process_element(self, sale: Any, context: Any) -> Any:
        self.count.update(self.count.value() + 1)
        yield sale.shop, self.count.value(), context.timer_service.current_watermark()


class Shops:
    """Files of sales in directories by uid, and jobs that count them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rows: list[Any] = []

    def sell(self, source: str, *sales: tuple[str, int]) -> None:
        path = self.directory / source
        path.mkdir(exist_ok=True)
        lines = "".join(json.dumps({"shop": shop, "at": at}) + "\n" for shop, at in sales)
        (path / f"{len(list(path.iterdir()))}.jsonl").write_text(lines)

    def environment(self, *uids: str, job: str | None = None, elements: Sequence[Any] = ()) -> LocalStreamEnvironment:
        env = LocalStreamEnvironment(job_dir=None if job is None else self.directory / job)
        streams = [env.from_source(JsonLinesSource(str(self.directory / uid), SCHEMA), SCHEMA, uid=uid) for uid in uids]
        if elements:
            streams.append(env.from_elements(list(elements), SCHEMA, uid="sales"))
        strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
        timed = [one.assign_timestamps_and_watermarks(strategy) for one in streams]
        sales = timed[0].union(*timed[1:]) if len(timed) > 1 else timed[0]
        counts = sales.key_by("shop").process(Count(), uid="counts", schema="shop string, count bigint, time bigint")
        counts.sink_to(self.rows)
        return env

    def run(self, *uids: str, job: str | None = None, elements: Sequence[Any] = (), **execute: Any) -> dict[str, int]:
        """The last count of each shop in the output of this run."""
        self.rows.clear()
        self.job = self.environment(*uids, job=job, elements=elements).execute("shops", **execute)
        return {shop: count for shop, count, _ in self.rows}

    def savepoint_of(self, *uids: str) -> Path:
        self.run(*uids)
        self.job.savepoint(self.directory / "savepoint")
        return self.directory / "savepoint"

    def savepoint_of_spark(self, read: Mapping[str, tuple[str, str]], *, names_sources: bool = True) -> Path:
        """A savepoint as of a job on Spark. ``read`` has Spark's source and its offset by uid."""
        path = self.savepoint_of("sales")
        metadata = decode_metadata((path / "_metadata").read_bytes(), str(path))
        positions = SourcePositions(
            batch_id=0,
            offsets="\n".join(["v1", "{}", *(offset for _, offset in read.values())]).encode(),
            sources=tuple(ReadSource(name, uid, str(place)) for place, (uid, (name, _)) in enumerate(read.items()))
            if names_sources
            else None,
        )
        operators = tuple(one for one in metadata.operators if one.uid != "sales")
        written = evolve(metadata, operators=operators, source_positions=positions)
        (path / "_metadata").write_bytes(encode_metadata(written))
        return path


@pytest.fixture
def shops(tmp_path: Path) -> Shops:
    made = Shops(tmp_path)
    made.sell("sales", ("north", 5), ("north", 9))
    made.sell("kafka", ("south", 5), ("south", 6))
    return made


READ: Mapping[str, tuple[str, str]] = {"sales": (FILES, '{"logOffset":0}')}


def test_a_source_that_cannot_continue_at_the_position_of_spark_is_rejected_before_anything_is_written(
    shops: Shops,
) -> None:
    savepoint = shops.savepoint_of_spark(READ)
    for options in ({}, {"allow_non_restored_state": True}):
        with pytest.raises(JobRestoreError) as rejected:
            shops.run("sales", job="job", from_savepoint=savepoint, **options)
    text = str(rejected.value)
    assert f"the savepoint {savepoint}" in text
    assert f"'sales': it was taken of a job on Spark, and has positions of 'sales' ({FILES})" in text
    assert "Pass restore_source_progress=False" in text
    assert not (shops.directory / "job").exists()


def test_an_accepted_source_is_read_from_its_beginning_once_and_event_time_starts_again(shops: Shops) -> None:
    savepoint = shops.savepoint_of_spark(READ)
    first = {"from_savepoint": savepoint, "restore_source_progress": False}
    assert shops.run("sales", job="job", **first) == {"north": 4}
    assert {time for _, _, time in shops.rows} == {-(1 << 63)}
    assert shops.job.watermarks()["counts"] == 8
    shops.sell("sales", ("north", 10))
    for number, options in enumerate([{}, {"from_savepoint": savepoint}, first]):
        assert shops.run("sales", job="job", **options) == ({"north": 5} if number == 0 else {})


def test_a_start_that_died_before_its_first_checkpoint_does_not_ask_again(
    shops: Shops, monkeypatch: pytest.MonkeyPatch
) -> None:
    savepoint = shops.savepoint_of_spark(READ)

    def dies(*_: Any) -> Any:
        raise OSError("the process dies")

    with monkeypatch.context() as patched:
        patched.setattr(JsonLinesSource, "read", dies)
        with pytest.raises(UserFunctionError, match="the process dies"):
            shops.run("sales", job="job", from_savepoint=savepoint, restore_source_progress=False)
    with pytest.raises(JobRestoreError, match="restore_source_progress=False"):
        shops.run("sales", job="job", from_savepoint=savepoint)
    assert shops.run("sales", job="job") == {"north": 4}


def test_the_check_of_a_start_rejects_the_same_sources(shops: Shops) -> None:
    savepoint = shops.savepoint_of_spark(READ)
    env = shops.environment("sales")
    with pytest.raises(JobRestoreError, match="the source 'sales': it was taken of a job on Spark"):
        env.check(from_savepoint=savepoint)
    for accepted in (False, {"sales": False}):
        reports = env.check(from_savepoint=savepoint, restore_source_progress=accepted)
        assert reports["counts"].is_compatible
    with pytest.raises(JobDefinitionError, match="restore_source_progress has 'tills': False"):
        env.check(from_savepoint=savepoint, restore_source_progress={"tills": False})


def test_one_source_starts_over_while_another_one_continues_at_the_position_of_spark(shops: Shops) -> None:
    [first, _] = (shops.directory / "kafka" / "0.jsonl").read_bytes().splitlines(keepends=True)
    position_after_one_record = len(first)
    read = {**READ, "kafka": (SPLITS, json.dumps({"0.jsonl": position_after_one_record}))}
    savepoint = shops.savepoint_of_spark(read)
    with pytest.raises(JobRestoreError, match=r"Pass restore_source_progress=\{'sales': False\} to read these"):
        shops.run("sales", "kafka", from_savepoint=savepoint)
    assert shops.run("sales", "kafka", from_savepoint=savepoint, restore_source_progress={"sales": False}) == {
        "north": 4,
        "south": 1,
    }
    assert shops.run("sales", "kafka", from_savepoint=savepoint, restore_source_progress=False) == {
        "north": 4,
        "south": 2,
    }
    assert shops.run("kafka", from_savepoint=savepoint) == {"south": 1}


def test_a_source_with_another_uid_than_on_spark_is_no_new_source(shops: Shops) -> None:
    savepoint = shops.savepoint_of_spark({"source": READ["sales"]})
    with pytest.raises(JobRestoreError, match=r"the source 'sales': .* has positions of 'source' \(FileStreamSource"):
        shops.run("sales", from_savepoint=savepoint)
    assert shops.run("sales", from_savepoint=savepoint, restore_source_progress={"sales": False}) == {"north": 4}


def test_a_new_source_beside_those_of_spark_starts_at_its_beginning(shops: Shops) -> None:
    savepoint = shops.savepoint_of_spark(READ)
    accepted = {"sales": False}
    assert shops.run("sales", "kafka", from_savepoint=savepoint, restore_source_progress=accepted)["south"] == 2


def test_a_savepoint_that_does_not_name_its_sources_is_rejected(shops: Shops) -> None:
    savepoint = shops.savepoint_of_spark(READ, names_sources=False)
    with pytest.raises(JobRestoreError, match="does not name the sources of its positions"):
        shops.run("sales", from_savepoint=savepoint)
    assert shops.run("sales", from_savepoint=savepoint, restore_source_progress=False) == {"north": 4}


def test_a_source_that_spark_has_not_read_yet_is_not_rejected(shops: Shops) -> None:
    savepoint = shops.savepoint_of_spark({"sales": (FILES, "-"), "others": ("rate", '{"offset":1}')})
    assert shops.run("sales", from_savepoint=savepoint) == {"north": 4}


def test_elements_have_no_positions_so_a_savepoint_of_spark_continues_with_them(shops: Shops) -> None:
    savepoint = shops.savepoint_of_spark(READ)
    sale = {"shop": "north", "at": 20}
    assert shops.run(elements=[sale], from_savepoint=savepoint) == {"north": 3}
    assert shops.rows[0][2] == 8
    assert shops.run(elements=[sale], from_savepoint=savepoint, restore_source_progress=False) == {"north": 3}
    assert shops.rows[0][2] == -(1 << 63)


def test_sources_of_a_savepoint_of_the_local_runtime_start_over_on_request(shops: Shops) -> None:
    savepoint = shops.savepoint_of("sales", "kafka")
    shops.sell("sales", ("north", 10))
    assert shops.run("sales", "kafka", from_savepoint=savepoint) == {"north": 3}
    assert shops.rows[0][2] == 5
    for accepted in (False, {"sales": False, "kafka": False}):
        read = shops.run("sales", "kafka", from_savepoint=savepoint, restore_source_progress=accepted)
        assert read == {"north": 5, "south": 4}
        assert (shops.rows[0][2] == -(1 << 63)) == (accepted is False)
    only = {"sales": False}
    assert shops.run("sales", "kafka", from_savepoint=savepoint, restore_source_progress=only) == {"north": 5}
    # All sources start over, so one that is gone is accepted.
    with pytest.raises(JobRestoreError, match="has operators that the job does not have: 'kafka'"):
        shops.run("sales", from_savepoint=savepoint)
    assert shops.run("sales", from_savepoint=savepoint, restore_source_progress=False) == {"north": 5}


def test_an_origin_of_version_0_1_continues_its_sources(shops: Shops) -> None:
    savepoint = shops.savepoint_of("sales")
    assert shops.run("sales", job="job", from_savepoint=savepoint) == {}
    files = CheckpointFileSystem.from_uri(shops.directory / "job")
    origin = read_origin(files)
    assert origin is not None
    write_origin(files, attrs.evolve(origin, with_source_progress=False))
    for path in (shops.directory / "job" / "checkpoints").iterdir():
        files.delete_directory(f"checkpoints/{path.name}")
    shops.sell("sales", ("north", 10))
    assert shops.run("sales", job="job") == {"north": 3}


@pytest.mark.parametrize(
    ("progress", "why"),
    [
        ("sales", "takes True, False, or a dict"),
        ({"tills": False}, "'tills': False; it takes True or False for a source of the job, which has 'sales'"),
        ({"sales": None}, "'sales': None; it takes True or False"),
    ],
)
def test_an_invalid_choice_of_sources_is_rejected(shops: Shops, progress: Any, why: str) -> None:
    with pytest.raises(JobDefinitionError, match=why):
        shops.run("sales", restore_source_progress=progress)
