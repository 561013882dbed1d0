"""`python -m benchmarks connectors`: table sinks compared with `ParquetSink`, and rows per second of servers.

`--servers` starts the servers of `make test-connectors`, and measures PostgreSQL and Kafka too. By processor time, the
time of a server counts as the job's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.alternating import measure_alternating
from benchmarks.result import Result

if TYPE_CHECKING:
    import pyarrow as pa

    from statebackend.connectors import Sink
    from statebackend.streaming.sink import SinkEpoch

DESCRIPTION = "Sinks of tables compared with ParquetSink; PostgreSQL and Kafka compared with what is required."

MOST_STAGING = 1.2
"""The maximum time of staging, as a multiple of the time of `ParquetSink`."""

MOST_COMMIT_MS = 100.0
"""The maximum time of a commit beyond a commit of `ParquetSink`."""

LEAST_ROWS_PER_S = 50_000.0
MEASURED_COMMITS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the suite."""
    parser.add_argument("--rows", type=int, default=200_000, help="rows of an epoch (default 200,000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to measure (default 5)")
    parser.add_argument("--commits", type=int, default=1000, help="commits of the table before (default 1,000)")
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall", help="the clock (default wall)")
    parser.add_argument("--servers", action="store_true", help="start PostgreSQL and Kafka, and measure them too")
    parser.add_argument("--only", choices=("staging", "commit", "postgres", "kafka"), help="measure one part")


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """Measure, and yield each result when it is available."""
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    parts = {"staging": _staging, "commit": _commits, "postgres": _postgres, "kafka": _kafka}
    without = () if arguments.servers else ("postgres", "kafka")
    for name, part in parts.items():
        if arguments.only in (None, name) and name not in without:
            yield from part(arguments, clock)


def _rows(count: int) -> pa.Table:
    import pyarrow as pa

    numbers = range(count)
    return pa.table(
        {
            "account": pa.array([f"account-{number}" for number in numbers]),
            "amount": pa.array(numbers, pa.int64()),
            "rate": pa.array([number / 7 for number in numbers]),
            "at": pa.array(numbers, pa.timestamp("us", "UTC")),
        }
    )


def _table_sinks(directory: Path) -> Mapping[str, Sink]:
    from statebackend.connectors import DeltaSink, IcebergSink, ParquetSink

    properties = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": (directory / "warehouse").as_uri(),
    }
    return {
        "parquet": ParquetSink(directory / "parquet"),
        "delta": DeltaSink(str(directory / "delta")),
        "iceberg": IcebergSink("bank.payments", "default", properties),
    }


class _Job:
    """The epochs of a job with one sink."""

    def __init__(self, sink: Sink) -> None:
        from statebackend.streaming.sink import SinkLineage

        self._sink = sink
        self._lineage = SinkLineage("benchmark", f"job-{uuid.uuid4().hex}")
        self._epochs = itertools.count()
        sink.recover(self._lineage, None)

    def stage(self, table: pa.Table) -> tuple[SinkEpoch, bytes]:
        from statebackend.streaming.sink import SinkEpoch

        epoch = SinkEpoch(self._lineage, next(self._epochs), "run-1")
        return epoch, self._sink.stage(epoch, 0, table.to_reader())

    def commit(self, epoch: SinkEpoch, committable: bytes) -> None:
        self._sink.commit(epoch, [committable])

    def write(self, table: pa.Table) -> None:
        self.commit(*self.stage(table))

    def close(self) -> None:
        self._sink.close()


def _timed(clock: Callable[[], float], act: Callable[[], object]) -> float:
    started = clock()
    act()
    return clock() - started


def _staging(arguments: argparse.Namespace, clock: Callable[[], float]) -> Iterator[Result]:
    table = _rows(arguments.rows)
    with tempfile.TemporaryDirectory(prefix="statebackend-connectors-") as directory:
        jobs = {name: _Job(sink) for name, sink in _table_sinks(Path(directory)).items()}
        for one in jobs.values():
            # The first epoch creates the table.
            one.write(table.slice(0, 1))
        contenders = {name: partial(_timed, clock, partial(one.stage, table)) for name, one in jobs.items()}
        measured = measure_alternating(contenders, rounds=arguments.rounds, warm_up_rounds=1)
        for name in ("delta", "iceberg"):
            print(f"staging, {name}: {measured[name]}; parquet {measured['parquet']}", file=sys.stderr)
            medians = measured[name].median, measured["parquet"].median
            yield Result(f"staging, {name}", *medians, "ParquetSink", "s", 1 / MOST_STAGING)


def _commits(arguments: argparse.Namespace, clock: Callable[[], float]) -> Iterator[Result]:
    row = _rows(1)
    with tempfile.TemporaryDirectory(prefix="statebackend-connectors-") as directory:
        milliseconds: dict[str, float] = {}
        for name, sink in _table_sinks(Path(directory)).items():
            job = _Job(sink)
            for _ in range(arguments.commits):
                job.write(row)
            staged = [job.stage(row) for _ in range(MEASURED_COMMITS)]
            costs = [_timed(clock, partial(job.commit, *one)) * 1000 for one in staged]
            milliseconds[name] = median(costs)
            print(f"commit, {name}: {milliseconds[name]:.1f} ms, at most {max(costs):.1f}", file=sys.stderr)
            if name != "parquet":
                beyond = max(0.0, milliseconds[name] - milliseconds["parquet"])
                yield Result(
                    f"a commit after {arguments.commits:,}, {name}, beyond ParquetSink",
                    beyond,
                    MOST_COMMIT_MS,
                    "the limit",
                    "ms",
                    1.0,
                )


def _processor_s(pid: int) -> float:
    """Return the processor time of a server and its processes, also of those that have ended."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            is_server = stat.parent.name == str(pid)
            if is_server or fields[1] == str(pid):
                ticks += sum(map(int, fields[11 : 15 if is_server else 13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _with_server(clock: Callable[[], float], pid: int) -> Callable[[], float]:
    return clock if clock is time.perf_counter else lambda: clock() + _processor_s(pid)


def _required(name: str, arguments: argparse.Namespace, seconds: list[float]) -> Result:
    rates = [arguments.rows / one for one in seconds]
    print(f"{name}: {', '.join(f'{rate:,.0f}' for rate in rates)} rows/s", file=sys.stderr)
    return Result(name, median(rates), LEAST_ROWS_PER_S, "required", "rows/s", 1.0)


def _postgres(arguments: argparse.Namespace, clock: Callable[[], float]) -> Iterator[Result]:
    from statebackend.connectors import PostgresSink
    from tests.connectors.postgres_server import running_server

    table, columns = _rows(arguments.rows), "account text, amount bigint, rate double precision, at timestamptz"
    with running_server() as server, tempfile.TemporaryDirectory(prefix="statebackend-connectors-") as directory:
        conninfo, timed = server.conninfo(), partial(_timed, _with_server(clock, server.process.pid))
        for target, key in (("append", []), ("upsert", ["account"])):
            with server.connect() as connection:
                primary = f", PRIMARY KEY ({', '.join(key)})" if key else ""
                connection.execute(f"CREATE TABLE {target} ({columns}{primary})".encode())
            job = _Job(PostgresSink(conninfo, target, key=key, staging=directory))
            seconds = [timed(partial(job.write, table)) for _ in range(arguments.rounds)]
            yield _required(f"PostgresSink, {target}", arguments, seconds)


def _kafka(arguments: argparse.Namespace, clock: Callable[[], float]) -> Iterator[Result]:
    from statebackend.connectors import KafkaSink, KafkaSource
    from tests.connectors.kafka_server import running_broker

    table = _rows(arguments.rows)
    with running_broker() as server, tempfile.TemporaryDirectory(prefix="statebackend-connectors-") as directory:
        topic, timed = server.new_topic(), partial(_timed, _with_server(clock, server.process.pid))
        job = _Job(KafkaSink(server.settings, topic, key="account", staging=directory))
        seconds = [timed(partial(job.write, table)) for _ in range(arguments.rounds)]
        job.close()
        yield _required("KafkaSink", arguments, seconds)

        def read() -> None:
            source, split = KafkaSource(server.settings, topic, until="latest"), f"{topic}-0"
            records = source.read_range(split, 0, source.end_positions()[split])
            assert sum(map(len, records)) == arguments.rows * arguments.rounds

        seconds = [timed(read) / arguments.rounds for _ in range(arguments.rounds)]
        yield _required("KafkaSource", arguments, seconds)
