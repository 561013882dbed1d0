"""A scan of a table ends after its key groups, for any other content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statebackend.state.composite_key import DELETION_MARK, KEY_GROUP
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.backends.harness import VALUE, BackendHarness


@pytest.mark.parametrize("subtask", [0, 1])
def test_rows_after_the_key_groups_of_a_subtask_are_not_read(tmp_path: Path, subtask: int) -> None:
    harness = BackendHarness(str(tmp_path))
    backend: Any = harness.open(RocksDBStateBackend(), subtask=subtask, parallelism=2)
    groups, state = backend.parameters.key_group_range, backend.get_state(VALUE)
    own = [key for key in range(500) if harness.key_group(key) in groups]
    assert {harness.key_group(key) for key in own} == set(groups)
    for key in own:
        harness.at(backend, key)
        state.update(key)
    harness.snapshot(backend)
    store = backend._store
    table = store.tables[VALUE.name]
    rows = list(table.scan())
    # The next key group, the last possible one, and a deletion mark.
    foreign = [KEY_GROUP.pack(groups.end + 1), KEY_GROUP.pack((1 << 15) - 1), DELETION_MARK + rows[0][0]]
    store.database.ingest(table, [(key + b"row", b"value") for key in foreign])
    assert list(table.scan()) == rows
    assert len(rows) == len(own)
    assert sorted(backend.get_keys(VALUE.name)) == own
    harness.close()
