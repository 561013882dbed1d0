"""State written by released format versions, which every later release must restore.

The files are never regenerated: a new version gets new files next to the old ones. Each was written by version 1 in two
epochs, the second of which overwrites, appends and removes.
"""

import json
import pathlib

import pytest

from checkpoint.file_system import CheckpointFileSystem
from checkpoint.handles import FileHandle, StateHandle
from statebackend.backend_registry import state_backend
from statebackend.contract.contract_base import content, contents, filled
from statebackend.contract.harness import BackendHarness
from statebackend.contract.schemas import LegV1, LegV2, leg_v1, leg_v2
from statebackend.descriptors import ValueStateDescriptor
from statebackend.state_meta import decode_meta, encode_meta

GOLDEN = pathlib.Path(__file__).parent / "golden"


def golden_handle(name):
    fields = json.loads((GOLDEN / name / "handle.json").read_text())
    files = tuple(FileHandle(**file) for file in fields.pop("files"))
    return StateHandle(**{**fields, "meta": bytes.fromhex(fields["meta"])}, files=files)


def expected():
    value, elements, entries = filled(range(6), 0, 1)
    for state in (value, elements, entries):
        del state[5]
    entries[4]["null"] = None
    return value, elements, entries


@pytest.mark.parametrize(
    ("name", "backend"),
    [("heap-1", "heap"), ("rocksdb-1", "rocksdb"), ("canonical-1", "heap"), ("canonical-1", "rocksdb")],
)
def test_state_of_version_1_is_restored(tmp_path, name, backend):
    harness = BackendHarness(str(tmp_path))
    harness.file_system = CheckpointFileSystem.from_uri(GOLDEN / name / "store")
    restored = harness.open(state_backend(backend), golden_handle(name))
    assert contents(harness, restored) == expected()
    assert content(harness, restored, ValueStateDescriptor("leg", leg_v1())) == {
        key: LegV1("EWR", key + 1) for key in range(6)
    }
    restored.close()
    migrated = harness.open(state_backend(backend), golden_handle(name))
    assert content(harness, migrated, ValueStateDescriptor("leg", leg_v2())) == {
        key: LegV2("EWR", float(key + 1)) for key in range(6)
    }
    harness.close()


@pytest.mark.parametrize("name", ["heap-1", "rocksdb-1", "canonical-1"])
def test_the_meta_data_of_version_1_is_written_byte_for_byte(name):
    handle = golden_handle(name)
    meta = decode_meta(handle.meta, len(handle.files))
    assert [state.name for state in meta.states] == ["value", "list", "map", "leg"]
    assert encode_meta(meta) == handle.meta
