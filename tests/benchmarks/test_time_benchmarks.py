"""The suite `time`: timers at a small scale, and the processor time of this process tree."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest

from benchmarks.time import suite
from benchmarks.time.processor_seconds import processor_seconds_since, processor_ticks


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    suite.add_arguments(parser)
    return parser.parse_args(list(given))


def test_timers_are_measured_on_both_backends_and_levels() -> None:
    results = list(suite.run(arguments("--only", "timers", "--timers", "50", "--rounds", "1")))
    assert len({result.name for result in results}) == 4
    for result in results:
        assert result.ours is not None
        assert result.ours > 0
        assert result.peer is not None
        assert result.peer > 0
        assert result.aim == 0.25


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_ten_aggregates_are_measured_in_two_forms(backend: str) -> None:
    pytest.importorskip("numpy")
    given = arguments("--only", "forms", "--backend", backend, "--rows", "200", "--keys", "20", "--rounds", "1")
    results = list(suite.run(given))
    assert len({result.name for result in results}) == 2
    assert all(result.ours and result.peer and result.peer_name == "per-record function" for result in results)


def test_processor_time_counts_child_processes_only() -> None:
    # The child ends its loop by its own processor clock, which agrees with /proc.
    program = "import os\nwhile sum(os.times()[:2]) < 0.1: pass\nprint(flush=True)\ninput()"
    before = processor_ticks()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        assert child.pid in processor_ticks()
        assert child.pid not in before
        used = processor_seconds_since(before)
        child.stdin.close()
    assert used > 0
    assert os.getppid() not in before
