"""The suite `inprocess` runs at a small scale, and all contenders return the same counts."""

from __future__ import annotations

import argparse
import time

import pytest

from benchmarks.inprocess import suite
from benchmarks.inprocess.keyed_count import Count, arrow_count, our_count, records_of, table_of
from statebackend.local import LocalStreamEnvironment

RECORDS = records_of(300, 10)


def test_each_contender_is_measured_and_each_setting_is_reported() -> None:
    pytest.importorskip("bytewax.dataflow", reason="bytewax has no build for this Python")
    parser = argparse.ArgumentParser()
    suite.add_arguments(parser)
    given = ["--records", "300", "--keys", "10", "--repeats", "2", "--rounds", "1", "--clock", "processor"]
    results = list(suite.run(parser.parse_args(given)))
    assert [(result.peer_name, result.aim) for result in results] == [
        ("bytewax with recovery", 0.8),
        ("bytewax without recovery", None),
        ("bytewax without recovery", 0.8),
        ("required", 1.0),
        ("bytewax with recovery", 10.0),
        ("Flink 2.3 on its heap", 1.0),
    ]
    assert all(result.ours for result in results)
    assert all(result.peer for result in results)


@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_our_job_is_measured_with_and_without_checkpoints(has_checkpoints: bool) -> None:
    assert our_count(RECORDS, has_checkpoints=has_checkpoints, clock=time.perf_counter) > 0


def test_the_count_from_arrow_batches_is_measured_over_all_rows() -> None:
    table = table_of(RECORDS, 3)
    assert table.num_rows == 3 * len(RECORDS)
    assert arrow_count(table, clock=time.perf_counter) > 0


def test_our_program_counts_per_key() -> None:
    results: list[tuple[str, int]] = []
    environment = LocalStreamEnvironment()
    stream = environment.from_elements(RECORDS).key_by(lambda record: record[0])
    stream.process(Count(), uid="count", schema="k string, n bigint").sink_to(results)
    environment.execute("count")
    last = {key: count for key, count in results}  # noqa: C416
    assert sum(last.values()) == len(RECORDS) == len(results)
