"""State metadata and files of canonical entries with any byte changed and a valid checksum.

All changes instead of a sample: ``STATEBACKEND_FUZZ=all``.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from random import Random
from typing import Any

import pytest

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.state import canonical_files as canonical_file
from statebackend.state.canonical import SCHEMA, CanonicalBatch, encoded_canonical, read_canonical
from statebackend.state.errors import StateBackendError
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.state_meta import decode_meta
from statebackend.testing.serializers import damaged_everywhere

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "formats"
HANDLES = sorted(path.parent.name for path in GOLDEN.glob("*/handle.json"))
ALL = KeyGroupRange(0, 127)


@pytest.mark.parametrize("name", HANDLES)
def test_any_changed_byte_of_metadata_yields_an_error_of_this_library_or_metadata(name: str) -> None:
    fields = json.loads((GOLDEN / name / "handle.json").read_text())
    for damaged in damaged_everywhere(bytes.fromhex(fields["meta"]), limit=400):
        with contextlib.suppress(StateBackendError):
            decode_meta(damaged, len(fields["files"]))


@pytest.mark.parametrize("name", [name for name in HANDLES if not name.startswith("rocksdb")])
@pytest.mark.extended
def test_any_changed_byte_of_a_file_of_entries_yields_an_error_of_this_library_or_rows(name: str) -> None:
    content = min((GOLDEN / name / "store").rglob("*.parquet")).read_bytes()
    assert list(read_canonical("the file", ALL, content))
    for damaged in damaged_everywhere(content, limit=400):
        with contextlib.suppress(StateBackendError):
            list(read_canonical("the file", ALL, damaged))


def test_partial_pages_are_read_as_written_or_rejected(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical_file, "READ_AT_ONCE_BYTES", 0)
    store = CheckpointFileSystem.from_uri(tmp_path / "store")
    random = Random(7)
    batches = [
        CanonicalBatch(
            [group] * 50, [random.randbytes(9) for _ in range(50)], [b"\0"] * 50, [None] * 50, [b"v" * 8] * 50
        )
        for group in range(4)
    ]
    content, _ = encoded_canonical(batches)
    (tmp_path / "rows").write_bytes(content)
    file = canonical_file.CanonicalFile(store, store.upload(str(tmp_path / "rows"), "rows.parquet"))

    def read() -> list[Any]:
        wanted = [KeyGroupRange(1, 1), KeyGroupRange(3, 3)]
        return [one.to_pylist() for one in file.columns(wanted, str(tmp_path), SCHEMA.names, is_verified=False)]

    whole, rejected = read(), 0
    assert sum(map(len, whole)) == 100
    # This read does not verify the file's checksum. Only the pages can show damage.
    for damaged in damaged_everywhere(content[: content.rindex(b"statebackend.keyed_state") // 2], limit=200):
        (tmp_path / "store" / "rows.parquet").write_bytes(damaged + content[len(damaged) :])
        try:
            assert read() == whole
        except StateBackendError:
            rejected += 1
    assert rejected > 20


def test_only_row_groups_with_wanted_key_groups_are_read() -> None:
    batches = [
        CanonicalBatch(*([value] * 2 for value in (group, b"key", b"namespace", b"user key", b"value")))
        for group in range(4)
    ]
    content, rows = encoded_canonical(batches)
    assert rows == 8
    for start, end in ((0, 3), (1, 2), (3, 3), (2, 2)):
        found = [group for batch in read_canonical("f", KeyGroupRange(start, end), content) for group in batch[0]]
        assert found == [group for group in range(start, end + 1) for _ in range(2)]
