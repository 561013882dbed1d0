"""Settings of all tests, one small Spark session, and a report of the slowest files.

Hypothesis draws new examples in every run, and prints how to repeat a failing one. With ``CI`` set it draws the same
examples each time, so that the result of a change does not depend on chance. No test may fail because the machine is
slow or busy: there are no deadlines and no health checks by time or by the number of draws. A property without its own
number runs 30 examples. With ``STATEBACKEND_FUZZ=all`` it runs 1000, and tests every damaged byte instead of a sample.
``make test`` sets it to ``few``: each property then draws a third of its examples.

Temporary files are in memory if there is space: every snapshot syncs its files, and a test takes dozens of snapshots.
Tests kill processes, never the machine.

Tests that need a real Spark session use the fixture `spark`, one per process. Those that need ZooKeeper use
`zookeeper_server`.

No file may leave changes that other files can see. `process_state` lists such changes, and such a file fails.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import process_state
import pytest
from effort import FUZZ, examples
from hypothesis import HealthCheck, settings
from java_options import use_short_lived_java

if TYPE_CHECKING:
    from object_store import Bucket, FaultyProxy, ObjectStoreServer
    from pyspark.sql import SparkSession
    from zookeeper_server import ZooKeeperServer

REPOSITORY = Path(__file__).resolve().parents[1]
PYTHON_DAEMON = REPOSITORY / "tests" / "spark_daemon"

use_short_lived_java()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell makes its background jobs ignore Ctrl-C. Programs that tests start and interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY_DIRECTORY = "/dev/shm"
NEEDED_BYTES = 4 << 30
if (
    "TMPDIR" not in os.environ
    and os.access(MEMORY_DIRECTORY, os.R_OK | os.W_OK | os.X_OK)
    # Java unpacks native libraries there and maps them as code, which many containers forbid in this directory.
    and not os.statvfs(MEMORY_DIRECTORY).f_flag & os.ST_NOEXEC
    and shutil.disk_usage(MEMORY_DIRECTORY).free >= NEEDED_BYTES
):
    # The other processes of this run and the programs that tests start inherit this variable.
    os.environ["TMPDIR"] = tempfile.tempdir = MEMORY_DIRECTORY

settings.register_profile(
    "tests",
    max_examples=1000 if FUZZ == "all" else examples(30),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.register_profile("ci", settings.get_profile("tests"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "tests")

# A test that kills a process forks it from a server that has imported these modules.
multiprocessing.set_forkserver_preload(
    [
        "statebackend.testing.backends.harness",
        "statebackend.testing.backends.evolving_records",
        "statebackend.state.heap.heap_state_backend",
        "statebackend.state.rocksdb.rocksdb_state_backend",
    ]
)

GARBAGE_THRESHOLD = 20_000
SLOWEST_FILES = 15
LONG_FILES_S = {
    "test_spark_golden_time": 58.0,
    "test_spark_processes": 115.0,
    "test_spark_job": 110.0,
    "test_rocksdb_backend_contract": 85.0,
    "test_flights_demo": 85.0,
    "test_weather_demo": 72.0,
    "test_flights_on_object_store": 70.0,
    "test_spark_restarts": 65.0,
    "test_spark_high_availability": 60.0,
    "test_spark_program_modules": 52.0,
    "test_third_party_backend": 50.0,
    "test_heap_backend_contract": 50.0,
    "test_spark_state_tables": 48.0,
    "test_spark_timed_inputs": 47.0,
    "test_schedules": 18.0,
    "test_first_job": 40.0,
    "test_spark_several_inputs": 40.0,
    "test_spark_stateful_processors": 40.0,
    "test_spark_several_sources": 40.0,
    "test_joins_in_jobs": 35.0,
    "test_serializer_contract": 35.0,
    "test_rewritten_savepoints": 35.0,
    "test_spark_graphs": 34.0,
    "test_spark_killed_no_data_epoch": 32.0,
    "test_zookeeper_failures": 30.0,
    "test_golden_durable": 28.0,
    "test_same_chain_in_both_environments": 25.0,
    "test_family_laws": 25.0,
    "test_job_commands": 25.0,
    "test_object_store_contract": 25.0,
    "test_ttl_state_machine": 24.0,
    "test_backend_benchmarks": 22.0,
    "test_merging_increments": 22.0,
    "test_keyed_state_machine": 21.0,
    "test_interrupted_writing": 20.0,
    "test_snapshot_stress": 15.0,
    "test_operator_state_of_jobs": 13.0,
}
"""Approximate processor time of the slowest files, in seconds. Only their order matters."""

LONG_WITH_SPARK_S = 20.0
"""The assumed time of any other file with Spark."""


@pytest.fixture(scope="module", autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before = process_state.process_state()
    yield
    left = process_state.left_behind(before)
    if left:
        pytest.fail(f"this file leaves behind what other files see:\n{chr(10).join(left)}", pytrace=False)


@pytest.fixture
def own_registrations() -> Iterator[None]:
    """Reverts registrations and removes imported modules that the test created."""
    with process_state.own_registrations():
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two local cores, two shuffle partitions, the time zone UTC, and no web interface.

    Its workers use this interpreter and can import the packages of this repository, which the daemon imports before it
    forks them. Tests change its configuration only through `statebackend.spark.session.configured`, which restores the
    old values.
    """
    from py4j.protocol import Py4JNetworkError

    with process_state.for_all_tests():
        session = _new_session(tmp_path_factory.mktemp("spark"))
    try:
        yield session
    finally:
        # All tests have ended. If the JVM has already exited, that is no failure of the last test.
        with contextlib.suppress(Py4JNetworkError, ConnectionError):
            session.stop()


def _new_session(scratch: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    (scratch / "java").mkdir()
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={scratch / 'java'}")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(map(str, (REPOSITORY, PYTHON_DAEMON))))
        .config("spark.python.daemon.module", "python_daemon")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # These files belong to Spark's own state store, with which tests compare this project.
        .config("spark.sql.streaming.checkpoint.fileChecksum.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStoreServer]:
    """An S3-compatible store over HTTP in its own process; each test process has one."""
    from object_store import ObjectStoreServer

    server = ObjectStoreServer()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def bucket(object_store: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket of that store, with its credentials in the environment."""
    from object_store import Bucket

    bucket = Bucket(object_store, f"bucket-{uuid.uuid4().hex}")
    object_store.new_bucket(bucket.name)
    for name, value in bucket.credentials.items():
        monkeypatch.setenv(name, value)
    return bucket


@pytest.fixture
def faulty_store(object_store: ObjectStoreServer) -> Iterator[FaultyProxy]:
    """The proxy of that store, through which tests inject faults."""
    from object_store import faulty_proxy

    with faulty_proxy(object_store) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper server for all tests of this process. Each test uses its own nodes, and none may stop the server."""
    from zookeeper_server import running_server

    with running_server(tmp_path_factory.mktemp("zookeeper") / "server") as server:
        yield server


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the slowest files first, so that short files fill the end of all processes.

    A test that uses a Spark session or a ZooKeeper server gets the marker ``spark``. So `-m "not spark"` starts no JVM.
    The parameters of a test after the number in its marker ``extended_after`` get the marker ``extended``.
    """
    parameters: Counter[str] = Counter()
    for item in items:
        limit = item.get_closest_marker("extended_after")
        if limit is not None:
            name = item.nodeid.partition("[")[0]
            parameters[name] += 1
            if parameters[name] > limit.args[0]:
                item.add_marker("extended")
        if {"spark", "zookeeper_server"}.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("spark")
    with_spark = {item.path for item in items if item.get_closest_marker("spark") is not None}

    def seconds(item: pytest.Item) -> float:
        return LONG_FILES_S.get(item.path.stem, LONG_WITH_SPARK_S if item.path in with_spark else 0.0)

    items.sort(key=seconds, reverse=True)


@pytest.fixture(scope="module", autouse=True)
def _set_aside() -> Iterator[None]:
    """Freezes the objects that a file left, so that the garbage collector does not visit them again."""
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Turns the garbage collector off: test collection creates a million objects, and nearly all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Freezes the million objects of test collection, so that the garbage collector does not visit them."""
    gc.collect()
    gc.freeze()
    # Tests create few objects. With the default threshold, garbage collection takes a twentieth of the time.
    gc.set_threshold(GARBAGE_THRESHOLD)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the slowest files, each with the sum of its tests."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, int] = defaultdict(int)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file_name = report.nodeid.partition("::")[0]
                seconds[file_name] += report.duration
                tests[file_name] += report.when == "call"
    if len(seconds) < 2:
        return
    slowest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:SLOWEST_FILES]
    terminalreporter.section(f"slowest files ({sum(seconds.values()):.0f} s in all)")
    for file_name in slowest:
        terminalreporter.line(f"{seconds[file_name]:7.1f} s  {tests[file_name]:5d} tests  {file_name}")
