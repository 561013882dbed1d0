"""`python -m benchmarks payments`: a fraud detector on both backends and on Spark, compared with plain Python."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.alternating import measure_alternating
from benchmarks.result import Result

DESCRIPTION = "A fraud detector over card payments, compared with plain Python by processor time."

PLAIN = "plain Python on dicts"
BEFORE = "another commit"
AIMS = {("heap", BEFORE): 5.0, ("rocksdb", BEFORE): 3.5, ("spark", BEFORE): 2.0}
AIMS_FROM_FILES = {"heap": 0.35}
"""With the reading of the files, as the program in plain Python was measured that gave the aim."""

_PACKAGES = ("migration", "snapshots", "statebackend", "typeserializers")
_ROOT = Path(__file__).parents[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the suite."""
    parser.add_argument("--data", type=Path, help="directory of JSON lines; by default payments are generated")
    parser.add_argument("--payments", type=int, default=60_000, help="generated payments (default 60,000)")
    parser.add_argument(
        "--epochs", type=int, default=1, help="epochs of the local runtime, each with a checkpoint (default 1)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds to measure (default 3)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=["heap", "rocksdb", "spark"],
        default=["heap", "rocksdb", "spark"],
        help="which of our contenders to run",
    )
    parser.add_argument("--before", type=Path, help="a checkout of another commit to compare with")
    parser.add_argument("--no-profile", action="store_true", help="skip the profile by part")


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """Measure each contender in a child process, in alternation, in payments per second of processor time."""
    from benchmarks.payments.data import write_payments

    with TemporaryDirectory(prefix="payments-") as directory:
        data = arguments.data
        if data is None:
            data = Path(directory, "data")
            data.mkdir()
            write_payments(data, arguments.payments)
        packages = {"": _ROOT}
        if arguments.before:
            packages[BEFORE] = arguments.before.resolve()
        turns: dict[str, Callable[[], float]] = {}
        steps: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for number, (name, root) in enumerate(packages.items()):
            path = _import_path(Path(directory, str(number)), root)
            for way in arguments.only if name else ["plain", *arguments.only]:
                turn = f"{way} {name}".strip()
                turns[turn] = _turn(way, path, data, arguments.epochs, steps[turn])
        measured = measure_alternating(turns, rounds=arguments.rounds)
        for name, measurement in measured.items():
            print(f"{name}: {measurement}", file=sys.stderr, flush=True)
        for way in arguments.only:
            peers = {PLAIN: "plain", **({BEFORE: f"{way} {BEFORE}"} if arguments.before else {})}
            for peer, turn in peers.items():
                aim = AIMS.get((way, peer))
                yield Result(f"payments, {way}", measured[way].median, measured[turn].median, peer, "rows/s", aim)
            if way != "spark":
                ours, plain = (_rate_from_files(steps[turn]) for turn in (way, "plain"))
                yield Result(f"payments from files, {way}", ours, plain, PLAIN, "rows/s", AIMS_FROM_FILES.get(way))
        if not arguments.no_profile:
            for way in arguments.only:
                if way != "spark":
                    _print_profile(
                        way, _step(way, Path(directory, "0"), data, arguments.epochs, "--profile"), measured[way].median
                    )


def _import_path(path: Path, root: Path) -> Path:
    """Create a directory from which this benchmark and the packages of a checkout are imported."""
    path.mkdir()
    path.joinpath("benchmarks").symlink_to(_ROOT / "benchmarks")
    for package in _PACKAGES:
        path.joinpath(package).symlink_to(root / package)
    return path


def _turn(way: str, path: Path, data: Path, epochs: int, steps: list[dict[str, Any]]) -> Callable[[], float]:
    def turn() -> float:
        measured = _step(way, path, data, epochs)
        steps.append(measured)
        return float(measured["records"] / measured["seconds"])

    return turn


def _rate_from_files(steps: list[dict[str, Any]]) -> float:
    """Return the median rate in payments per second with the time that reads the files."""
    return float(median(step["records"] / (step["reading_seconds"] + step["seconds"]) for step in steps))


def _step(way: str, path: Path, data: Path, epochs: int, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.payments.step", way, str(data.resolve()), str(epochs), *options]
    done = subprocess.run(
        command, cwd=path, env={**os.environ, "PYTHONPATH": str(path)}, stdout=subprocess.PIPE, check=True
    )
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _print_profile(way: str, step: dict[str, Any], rows_per_second: float) -> None:
    """Print the microseconds per payment of each part; the shares come from a run under the profiler."""
    print(f"{way}, microseconds per payment by part:", file=sys.stderr)
    for part, share in step["shares"].items():
        print(f"  {part:<24} {share * 1e6 / rows_per_second:7.1f}  {share:6.1%}", file=sys.stderr, flush=True)
