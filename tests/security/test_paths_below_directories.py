"""Ids, links and pipes in untrusted directories: no command, job start or sink leaves its directory."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hostile_directories import (
    COMMANDS,
    arguments_of,
    change_checksummed_json,
    command,
    content_of,
    limited,
    run_job,
)

from statebackend import KeyedProcessFunction, RuntimeContext, Savepoint, ValueStateDescriptor
from statebackend.connectors import ParquetSink, SinkEpoch, SinkLineage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

NOT_READABLE = 3

HOSTILE_IDS = [
    "{outside}",
    "../{name}",
    "../../{name}",
    "..",
    ".",
    "%2e%2e",
    "123e4567-e89b-12d3-a456-426614174000/../../{name}",
    "123e4567-e89b-12d3-a456-426614174000\n",
    "\u2024\u2024/{name}",
    "count",
    7,
    None,
]

DIRECTORIES = ["shared", "restore-plans", "checkpoints", "set-aside", "shared/count", "checkpoints/{newest}"]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """An untrusted directory, with files that look like leftovers of a job."""
    directory = tmp_path / "outside"
    for path in ("precious", "00002/precious", "chk-000000000099/half", "chk-000000000098-1/precious", "lock"):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(b"precious")
    return directory


@pytest.fixture(scope="module")
def made_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made") / "job"
    run_job(directory, "abc")
    return directory


@pytest.fixture
def job(made_job: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_job, tmp_path / "job"))


def replace_by_link(job: Path, name: str, outside: Path) -> Path:
    """Replace a directory of the job by a link to a copy outside of the job."""
    newest = max(path.name for path in (job / "checkpoints").iterdir())
    directory = job / name.format(newest=newest)
    if directory.exists():
        shutil.copytree(directory, outside, dirs_exist_ok=True)
        shutil.rmtree(directory)
    directory.symlink_to(outside)
    return directory


@pytest.mark.parametrize("job_id", HOSTILE_IDS)
def test_an_id_that_is_no_uuid_is_rejected_by_each_command_that_opens_the_job_and_by_a_start(
    tmp_path: Path, job: Path, outside: Path, job_id: object
) -> None:
    if isinstance(job_id, str):
        job_id = job_id.format(outside=outside, name=outside.name)
    change_checksummed_json(job / "job.json", job_id=job_id)
    before = content_of(tmp_path)
    for name in ("inspect", "check", "migrate", "gc", "roll-back"):
        answer = command(*arguments_of(name, job, tmp_path / "written"))
        assert answer.status == NOT_READABLE
        assert "job_id must be a UUID" in answer.errors
    with pytest.raises(Exception, match=r"job\.json is not valid: job_id must be a UUID"):
        run_job(job, "a")
    assert {path: content for path, content in content_of(tmp_path).items() if "written" not in path} == before


def run_on_spark(spark: SparkSession, directory: Path) -> None:
    from statebackend.spark import NoopSink, SparkStreamEnvironment

    # Workers cannot import the modules of this directory.
    class Seen(KeyedProcessFunction[Any, Any, Any]):
        def open(self, context: RuntimeContext) -> None:
            self.seen = context.get_state(ValueStateDescriptor("seen", int))

        def process_element(self, value: Any, context: Any) -> Iterator[Any]:
            self.seen.update(1)
            yield value["key"], 1

    (directory / "in").mkdir(exist_ok=True)
    (directory / "in" / "records.json").write_text('{"key": "a"}')
    frame = spark.readStream.schema("key string").json(str(directory / "in"))
    env = SparkStreamEnvironment(
        spark, job_dir=directory / "job", parallelism=1, local_state_directory=str(directory / "local")
    )
    stream = env.from_dataframe(frame).key_by("key").process(Seen(), uid="seen", schema="key string, seen int")
    stream.sink_to(NoopSink())
    env.execute("count", trigger={"availableNow": True}).await_termination()


@pytest.mark.spark
def test_a_start_on_spark_rejects_an_id_that_is_a_path_and_leaves_what_is_there(
    spark: SparkSession, tmp_path: Path, job: Path, outside: Path
) -> None:
    change_checksummed_json(job / "job.json", job_id=str(outside))
    before = content_of(outside)
    with pytest.raises(Exception, match="job_id must be a UUID"):
        run_on_spark(spark, tmp_path)
    assert content_of(outside) == before


@pytest.mark.spark
def test_a_start_on_spark_uses_no_log_of_sources_with_links_or_pipes(spark: SparkSession, tmp_path: Path) -> None:
    run_on_spark(spark, tmp_path)
    for name in ("spark", "spark/offsets", "spark/commits/0", "spark/metadata", "shared"):
        place = tmp_path / "job" / name
        place.rename(tmp_path / "outside")
        place.symlink_to(tmp_path / "outside")
        before = content_of(tmp_path)
        with pytest.raises(Exception, match=r"symbolic link|is missing"):
            run_on_spark(spark, tmp_path)
        after = content_of(tmp_path)
        for path in (str(tmp_path / "outside"), str(place)):
            assert {one: after[one] for one in after if one.startswith(path)} == {
                one: before[one] for one in before if one.startswith(path)
            }
        place.unlink()
        (tmp_path / "outside").rename(place)
    os.mkfifo(tmp_path / "job" / "spark" / "offsets" / "1")
    with limited(), pytest.raises(Exception, match="neither a file nor a directory"):
        run_on_spark(spark, tmp_path)


@pytest.mark.parametrize("name", DIRECTORIES)
@pytest.mark.parametrize("given", COMMANDS)
def test_no_command_changes_the_target_of_a_link_in_place_of_a_directory(
    tmp_path: Path, job: Path, outside: Path, name: str, given: str
) -> None:
    replace_by_link(job, name, outside)
    before = content_of(outside)
    command(*arguments_of(given, job, tmp_path / "written"))
    assert content_of(outside) == before


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_start_changes_nothing_at_the_target_of_a_link_in_place_of_a_directory(
    job: Path, outside: Path, name: str
) -> None:
    replace_by_link(job, name, outside)
    before = content_of(outside)
    for start in ({}, {"roll_back_to": "previous"}):
        with suppress(Exception):
            run_job(job, "d", **start)
        assert content_of(outside) == before


@pytest.mark.parametrize("name", ["shared", "restore-plans", "checkpoints", "set-aside"])
def test_gc_names_the_link_and_gives_advice(job: Path, outside: Path, name: str) -> None:
    link = replace_by_link(job, name, outside)
    answer = command("gc", job)
    assert answer.status == NOT_READABLE
    assert str(link) in answer.errors
    assert "is a symbolic link, and no link is followed here; put what it leads to in its place" in answer.errors


def test_a_job_directory_may_itself_be_a_link(tmp_path: Path, job: Path) -> None:
    (tmp_path / "link").symlink_to(job)
    assert command("gc", tmp_path / "link").status == 0
    run_job(tmp_path / "link", "d")
    assert command("inspect", tmp_path / "link", "--verify").status == 0


def test_links_and_pipes_among_the_files_are_removed_and_not_followed(job: Path, outside: Path) -> None:
    (job / "shared" / "link").symlink_to(outside / "precious")
    os.link(outside / "precious", job / "shared" / "other-name")
    os.mkfifo(job / "shared" / "pipe")
    unfinished = job / "checkpoints" / ".chk-000000000050"
    unfinished.mkdir()
    (unfinished / "link").symlink_to(outside)
    before = content_of(outside)
    assert command("gc", job).status == 0
    assert content_of(outside) == before
    assert not unfinished.exists()
    assert not {"link", "other-name", "pipe"} & {path.name for path in (job / "shared").iterdir()}
    assert command("inspect", job, "--verify").status == 0


def in_the_place_of_the_lock(kind: str, lock: Path, victim: Path) -> None:
    lock.unlink(missing_ok=True)
    if kind == "hard link":
        os.link(victim, lock)
    elif kind == "symbolic link":
        lock.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(lock)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(lock))
    else:
        lock.mkdir()


@pytest.mark.parametrize("kind", ["hard link", "symbolic link", "pipe", "socket", "directory"])
def test_a_lock_file_with_other_content_is_rejected_and_not_written_to(
    tmp_path: Path, job: Path, outside: Path, kind: str
) -> None:
    in_the_place_of_the_lock(kind, job / "driver.lock", outside / "precious")
    before = content_of(tmp_path)
    for name in ("gc", "roll-back"):
        assert command(*arguments_of(name, job, tmp_path / "written")).status == NOT_READABLE
    with limited(), pytest.raises(Exception, match=r"driver\.lock"):
        run_job(job, "d")
    assert {path: content for path, content in content_of(tmp_path).items() if "written" not in path} == before


@pytest.mark.parametrize("name", ["job.json", "origin.json", "high-availability.json", "_metadata", "data"])
def test_no_command_waits_for_a_pipe_in_place_of_a_file(tmp_path: Path, job: Path, name: str) -> None:
    file = {
        "_metadata": max(job.glob("checkpoints/*/_metadata")),
        "data": next(path for path in sorted(job.rglob("shared/**/*")) if path.is_file()),
    }.get(name, job / name)
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    for given in COMMANDS:
        command(*arguments_of(given, job, tmp_path / "written"))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/proc/self/environ", path)])
def test_a_savepoint_is_not_read_through_a_pipe_or_a_link(tmp_path: Path, make: Callable[[Path], None]) -> None:
    run_job(tmp_path / "job", "abc").savepoint(tmp_path / "savepoint")
    with limited():
        assert Savepoint.open(tmp_path / "savepoint").read("count", "count")
        for path in sorted(tmp_path.joinpath("savepoint").rglob("*")):
            if path.is_file():
                path.rename(tmp_path / "kept")
                make(path)
                for given in ("inspect", "rewrite", "migrate", "check"):
                    arguments = arguments_of(given, tmp_path / "savepoint", tmp_path / "written")
                    assert command(*arguments).status == NOT_READABLE
                with pytest.raises(Exception, match=path.name):
                    run_job(tmp_path / "new", "a", from_savepoint=tmp_path / "savepoint")
                path.unlink()
                (tmp_path / "kept").rename(path)


def test_directories_of_a_savepoint_that_are_links_are_not_followed(tmp_path: Path) -> None:
    run_job(tmp_path / "job", "abc").savepoint(tmp_path / "savepoint")
    directory = next(path for path in sorted((tmp_path / "savepoint").iterdir()) if path.is_dir())
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    before = content_of(tmp_path / "elsewhere")
    for given in COMMANDS:
        assert command(*arguments_of(given, tmp_path / "savepoint", tmp_path / "written")).status in (1, NOT_READABLE)
    with pytest.raises(Exception, match="symbolic link"):
        run_job(tmp_path / "new", "a", from_savepoint=tmp_path / "savepoint")
    assert content_of(tmp_path / "elsewhere") == before


def test_a_cycle_of_directories_is_an_error(job: Path) -> None:
    unfinished = job / "checkpoints" / ".chk-000000000050"
    unfinished.mkdir()
    inner = os.open(unfinished, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 500):
        os.mkdir("d", dir_fd=inner)
        below = os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = below
    os.close(inner)
    try:
        answer = command("gc", job)
        assert answer.status == NOT_READABLE
        assert "directories are nested too deeply" in answer.errors
    finally:
        with suppress(OSError):
            os.system(f"rm -r '{unfinished}'")


def stage_by_hand(directory: Path, attempt: str) -> None:
    (directory / attempt).mkdir(parents=True)
    (directory / attempt / "part.parquet").write_bytes(b"precious")


def test_a_sink_removes_and_moves_nothing_through_a_link(tmp_path: Path) -> None:
    job = SinkLineage("sink", "job")
    epoch = SinkEpoch(job, 1, "a")
    stage_by_hand(tmp_path / "elsewhere", "000000000001-job.a")
    (tmp_path / "out" / "epoch=000000000002").mkdir(parents=True)
    committable = b'{"version": 1, "epoch": 2, "attempt": "job.a"}'
    (tmp_path / "out" / "epoch=000000000002" / "_committable").write_bytes(committable)
    for name in ("_staging", "_set_aside"):
        (tmp_path / "out" / name).symlink_to(tmp_path / "elsewhere")
    before = content_of(tmp_path)
    sink = ParquetSink(tmp_path / "out")
    for step in (
        lambda: sink.recover(job, None),
        lambda: sink.stage(epoch, 0, pa.table({"n": [1]}).to_reader()),
        lambda: sink.abort(epoch),
        lambda: sink.commit(epoch, [b'{"version": 1, "epoch": 1, "attempt": "job.a"}']),
        lambda: sink.roll_back(job, 0),
    ):
        with suppress(Exception):
            step()
        assert content_of(tmp_path) == before
