"""The suite `backends` runs at a small scale and reports every required line."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.backends import suite
from benchmarks.backends.setting import MAX_PARALLELISM, Setting, key_group_of
from benchmarks.result import Result

LINES = {
    "rocksdb_value": 6,
    "heap_value": 4,
    "heap_bytes": 3,
    "heap_snapshot": 9,
    "rocksdb_snapshot": 8,
    "rocksdb_epoch": 2,
    "rocksdb_restore": 4,
    "rocksdb_migration": 2,
    "heap_restore": 2,
    "memory": 4,
    "fat_values": 10,
    "rocksdb_map": 4,
    "list_append": 4,
    "operator_state": 2,
    "state_ttl": 4,
    "timers": 3,
    "state_metrics": 4,
}


def arguments(directory: Path, *given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    suite.add_arguments(parser)
    return parser.parse_args(["--scale", "0.0005", "--rounds", "1", "--directory", str(directory), *given])


@pytest.mark.parametrize("name", list(suite.GROUPS))
@pytest.mark.extended
def test_each_group_measures_both_sides_and_removes_its_files(name: str, tmp_path: Path) -> None:
    results = list(suite.run(arguments(tmp_path, "--only", name)))
    assert len(results) == LINES[name]
    for result in results:
        assert isinstance(result, Result)
        assert result.ours is not None
        assert result.peer is not None
        assert result.peer > 0
        assert result.ratio is not None or result.ours == 0
    assert len({(result.name, result.peer_name) for result in results}) == len(results)
    assert not list(tmp_path.iterdir())


def test_every_required_line_has_its_aim(tmp_path: Path) -> None:
    results = list(suite.run(arguments(tmp_path, "--only", "rocksdb_value", "heap_value", "rocksdb_map")))
    aims = {result.aim for result in results if "each once" in result.name and "RocksDB" in result.name}
    assert aims == {0.5}
    assert {result.aim for result in results if "20 times" in result.name} == {3.0}
    assert {result.aim for result in results if result.name.startswith("heap value")} == {0.3}
    assert {result.aim for result in results if "map iteration" in result.name} == {0.4}


def test_an_unknown_group_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(tmp_path, "--only", "rocksdb_valeu")
    assert "rocksdb_value" in capsys.readouterr().err


def test_the_data_of_a_run_depend_on_the_seed_alone() -> None:
    first, same, other = (Setting("unused", seed=seed).shuffled_records(50, 2) for seed in (4, 4, 5))
    assert first == same != other
    assert sorted(first) == sorted([(key, key_group_of(key)) for key in range(50)] * 2)


def test_neighbouring_keys_spread_over_the_key_groups() -> None:
    groups = [key_group_of(key) for key in range(10_000)]
    counts = [groups.count(group) for group in range(MAX_PARALLELISM)]
    assert sum(counts) == 10_000
    assert 40 < min(counts) <= max(counts) < 160
