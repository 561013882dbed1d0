"""Restores, migrations and exports report their progress, on every backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statebackend import MapStateDescriptor, Operation, Progress, ValueStateDescriptor, state_backend
from statebackend.state.canonical_files import export_canonical_handle
from statebackend.testing.backends.harness import BackendHarness

COUNT: Any = ValueStateDescriptor("count", int)
NAMES: Any = MapStateDescriptor("names", str, str)


@pytest.fixture
def harness(tmp_path: Path) -> Any:
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


def written(harness: BackendHarness, backend_name: str, *, is_canonical: bool, reported: list[Progress]) -> Any:
    """State of ten keys, as a handle."""
    backend = harness.open(state_backend(backend_name))
    count, names = backend.get_state(COUNT), backend.get_state(NAMES)
    for key in range(10):
        harness.at(backend, key)
        count.update(key)
        names.put("a", "b" * key)
        names.put("c", "d")
    if not is_canonical:
        return harness.snapshot(backend).handle
    export = export_canonical_handle(backend, harness.file_system, "exported", "part", "id", progress=reported.append)
    return export[0]


def check(reported: list[Progress], operation: Operation, state_name: str) -> Progress:
    """Progress of one operation on one state never falls, and the last one is done; returns that."""
    ours = [one for one in reported if one.operation is operation and one.state_name == state_name]
    assert ours
    assert [one.is_done for one in ours] == [False] * (len(ours) - 1) + [True]
    for counted in ([one.entries for one in ours], [one.size_bytes for one in ours]):
        assert counted == sorted(counted)
    return ours[-1]


@pytest.mark.parametrize("is_canonical", [True, False])
@pytest.mark.parametrize("backend_name", ["heap", "rocksdb"])
def test_a_restore_reports_the_bytes_of_its_files(
    harness: BackendHarness, backend_name: str, is_canonical: bool
) -> None:
    handle = written(harness, backend_name, is_canonical=is_canonical, reported=[])
    reported: list[Progress] = []
    backend = harness.open(state_backend(backend_name), handle, progress=reported.append)
    for descriptor in (COUNT, NAMES):
        backend.get_state(descriptor)
    last = [check(reported, Operation.RESTORE, name) for name in ("count", "names")]
    assert [one.size_bytes for one in last] == [one.total_bytes for one in last]
    assert sum(one.size_bytes for one in last) == sum(file.size_bytes for file in handle.files)
    if is_canonical or backend_name == "heap":
        assert [one.entries for one in last] == [10, 20]


@pytest.mark.parametrize("is_canonical", [True, False])
@pytest.mark.parametrize("backend_name", ["heap", "rocksdb"])
def test_each_subtask_of_a_rescaled_operator_reports_its_own_entries(
    harness: BackendHarness, backend_name: str, is_canonical: bool
) -> None:
    handle = written(harness, backend_name, is_canonical=is_canonical, reported=[])
    entries = 0
    for subtask in range(2):
        reported: list[Progress] = []
        options: Any = {"subtask": subtask, "parallelism": 2, "progress": reported.append}
        harness.open(state_backend(backend_name), handle, **options).get_state(COUNT)
        entries += check(reported, Operation.RESTORE, "count").entries
    assert entries == (10 if is_canonical or backend_name == "heap" else 0)


@pytest.mark.parametrize("backend_name", ["heap", "rocksdb"])
def test_an_export_reports_rows_and_bytes_of_each_state(harness: BackendHarness, backend_name: str) -> None:
    reported: list[Progress] = []
    handle = written(harness, backend_name, is_canonical=True, reported=reported)
    last = [check(reported, Operation.SAVEPOINT, name) for name in ("count", "names")]
    assert [one.entries for one in last] == [10, 20]
    assert sum(one.size_bytes for one in last) == sum(file.size_bytes for file in handle.files)
