"""Pickles of version 0.1, in which classes stood in other modules, are unpickled as what they were."""

from __future__ import annotations

import importlib

import pytest

import typeserializers as ts
from snapshots import DataOutputView, snapshot_from_bytes
from typeserializers.opaque import MOVED_MODULES, unpickled

MAP_OF_LISTS_0_1 = bytes.fromhex(
    "80049509010000000000008c147479706573657269616c697a6572732e6d617073948c0d4d617053657269616c697a65729493942981947d94"
    "288c0e6b65795f73657269616c697a6572948c177479706573657269616c697a6572732e737472696e6773948c10537472696e675365726961"
    "6c697a65729493942981947d94628c1076616c75655f73657269616c697a6572948c157479706573657269616c697a6572732e6c6973747394"
    "8c0e4c69737453657269616c697a65729493942981947d948c12656c656d656e745f73657269616c697a6572948c1b7479706573657269616c"
    "697a6572732e66697865645f7769647468948c0e4c6f6e6753657269616c697a65729493942981947d9462736275622e"
)
INSTANT_0_1 = bytes.fromhex(
    "8004954e000000000000008c1c7479706573657269616c697a6572732e65706f63685f76616c756573948c07496e7374616e74949394298194"
    "7d94288c0c65706f63685f7365636f6e64944b018c046e616e6f944b0275622e"
)


def test_a_serializer_that_version_0_1_persisted_whole_is_restored() -> None:
    out = DataOutputView()
    out.write_utf("statebackend.PickledSerializerSnapshot")
    out.write(b"\0\0\0\x01")
    out.write_sized_bytes(MAP_OF_LISTS_0_1)
    snapshot = snapshot_from_bytes(out.to_bytes())

    with ts.allow_legacy_serializers():
        assert snapshot.restore_serializer() == ts.MapSerializer(
            ts.StringSerializer(), ts.ListSerializer(ts.LongSerializer())
        )


def test_a_value_that_version_0_1_pickled_is_read() -> None:
    serializer = ts.PickleSerializer(ts.Instant)
    out = DataOutputView()
    out.write_sized_bytes(INSTANT_0_1)

    assert serializer.from_bytes(out.to_bytes()) == ts.Instant(1, 2)


@pytest.mark.parametrize("module_name", sorted(MOVED_MODULES.values()))
def test_each_place_exists(module_name: str) -> None:
    assert importlib.import_module(module_name).__name__ == module_name


def test_names_of_others_are_looked_up_as_they_stand() -> None:
    assert unpickled(b"ccollections\nOrderedDict\n.").__name__ == "OrderedDict"
