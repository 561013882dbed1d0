"""Savepoints and checkpoints of the real engine are read: ``make test-flink``.

``FLINK_LIB`` is the directory of Flink's jars, as the package apache-flink-libraries has it. Without it the tests are
skipped. They need a JDK.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

from snapshots.errors import UnresolvableSerializerError
from statebackend.savepoint.savepoint import Savepoint

LIBRARIES = os.environ.get("FLINK_LIB", "")
pytestmark = pytest.mark.skipif(not LIBRARIES, reason="FLINK_LIB is not set")

SOURCE = pathlib.Path(__file__).with_name("SavepointCase.java")
VALUES = [*range(500), *range(50001, 50500)]
"""What the two subtasks of the source send until they slow down."""

HEAP_TIMERS = "state.backend.rocksdb.timer-service.factory=HEAP"
CASES = {
    "hashmap": (128, ["state.backend.type=hashmap"]),
    "hashmap compressed": (4096, ["state.backend.type=hashmap", "execution.checkpointing.snapshot-compression=true"]),
    "rocksdb": (128, ["state.backend.type=rocksdb"]),
    "rocksdb heap timers": (128, ["state.backend.type=rocksdb", HEAP_TIMERS]),
    "rocksdb incremental": (
        4096,
        [
            "state.backend.type=rocksdb",
            "execution.checkpointing.incremental=true",
            "execution.checkpointing.snapshot-compression=true",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_state_of_the_engine_is_the_state_of_the_model(case: str, tmp_path: pathlib.Path) -> None:
    max_parallelism, options = CASES[case]
    names = ("flink-dist-*.jar", "log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j-impl-*.jar")
    jars = ":".join(str(jar) for name in names for jar in pathlib.Path(LIBRARIES).glob(name))
    subprocess.run(["javac", "-cp", jars, "-d", tmp_path, SOURCE], check=True)
    opens = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util", "time")]
    command = ["java", *opens, "-cp", f"{jars}:{tmp_path}", "SavepointCase", tmp_path / "state", str(max_parallelism)]
    subprocess.run([*command, *options], check=True, timeout=300)
    for form in ("CANONICAL", "NATIVE"):
        [place] = (tmp_path / "state" / form).iterdir()
        # Flink does not write heap timers into native savepoints of RocksDB.
        check(Savepoint.open(place), has_timers=(case, form) != ("rocksdb heap timers", "NATIVE"))
    # A retained checkpoint names absolute paths; it may be moved as a whole.
    moved = shutil.move(tmp_path / "state" / "checkpoints", tmp_path / "elsewhere")
    [checkpoint] = pathlib.Path(moved).glob("*/chk-*")
    check(Savepoint.open(checkpoint))


def check(savepoint: Savepoint, *, has_timers: bool = True) -> None:
    keys = {f"key-{value % 100}" for value in VALUES}
    of_key = {key: [value for value in VALUES if f"key-{value % 100}" == key] for key in keys}
    read = savepoint.read
    assert {entry.key: entry.value for entry in read("counting", "count")} == {
        key: len(values) for key, values in of_key.items()
    }
    assert {entry.key: sorted(entry.value) for entry in read("counting", "list")} == of_key
    assert sorted((entry.key, entry.user_key, entry.value) for entry in read("counting", "map")) == sorted(
        (f"key-{value % 100}", f"m{value}", value) for value in VALUES
    )
    if has_timers:
        timers = read("counting", "_timer_state/event_user-timers")
        assert sorted(timer.value for timer in timers) == [1_000_000_000 + value for value in VALUES]
    with pytest.raises(UnresolvableSerializerError, match="Opaque with Kryo"):
        list(read("counting", "opaque"))
    assert len(list(savepoint.read_operator_state("numbers", "SourceReaderState"))) > 0
