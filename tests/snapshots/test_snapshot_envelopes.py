"""The versioned envelope and its class names: moved classes are found, unknown ones are rejected."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import typeserializers as ts
from snapshots import (
    DataInputView,
    DataOutputView,
    SimpleTypeSerializerSnapshot,
    SnapshotFormatError,
    StateFormatError,
    UnknownSnapshotError,
    allow_snapshot_modules,
    allowed_snapshot_modules,
    read_versioned_snapshot,
    register_snapshot,
    registered_names,
    snapshot_class_for,
    snapshot_class_name,
    snapshot_from_bytes,
    snapshot_to_bytes,
    write_versioned_snapshot,
)

pytestmark = pytest.mark.usefixtures("own_registrations")

LONG = snapshot_to_bytes(ts.LongSerializer().snapshot_configuration())


class UnregisteredSnapshot(SimpleTypeSerializerSnapshot[int]):
    def create_serializer(self) -> ts.LongSerializer:
        return ts.LongSerializer()


def envelope(name: str, version: int, content: bytes = b"") -> bytes:
    out = DataOutputView()
    out.write_utf(name)
    out.write_int(version)
    out.write(content)
    return out.to_bytes()


def test_a_registered_class_is_written_under_its_stable_name() -> None:
    name = "org.apache.flink.api.common.typeutils.base.LongSerializer$LongSerializerSnapshot"
    assert envelope(name, 3) == LONG
    assert type(snapshot_from_bytes(LONG)) is registered_names()[name]


def test_a_class_that_moved_is_found_by_its_alias() -> None:
    name = f"tests.{uuid.uuid4()}"

    @register_snapshot(name, aliases=(name + ".old",))
    class Moved(UnregisteredSnapshot):
        pass

    for known in (name, name + ".old"):
        assert type(snapshot_from_bytes(envelope(known, 3))) is Moved
    assert snapshot_to_bytes(snapshot_from_bytes(envelope(name + ".old", 3))) == envelope(name, 3)
    # No other class may take the name or an alias, whether it sorts before or after this class.
    for taken in (name, name + ".old"):
        for other in (UnregisteredSnapshot, type("aaa", (UnregisteredSnapshot,), {}), NeedsMore):
            with pytest.raises(ValueError, match="belongs to"):
                register_snapshot(taken)(other)
        with pytest.raises(ValueError, match="belongs to"):
            register_snapshot(f"{taken}.free", aliases=(taken,))(UnregisteredSnapshot)
    assert f"{name}.free" not in registered_names()
    assert register_snapshot(name)(Moved) is Moved


def test_a_class_without_a_name_is_found_by_its_module() -> None:
    assert snapshot_class_name(UnregisteredSnapshot) == f"{__name__}:UnregisteredSnapshot"
    data = snapshot_to_bytes(UnregisteredSnapshot())
    assert isinstance(snapshot_from_bytes(data), UnregisteredSnapshot)


def test_a_local_class_without_a_name_cannot_be_written() -> None:
    class Local(UnregisteredSnapshot):
        pass

    with pytest.raises(SnapshotFormatError, match="local to a function"):
        snapshot_class_name(Local)


@pytest.mark.parametrize(
    "name",
    ["nothing.known", "os:system", "builtins:int", "no_such_module:X", f"{__name__}:missing", ":x", "os:", "a:b:c"],
)
def test_other_classes_are_rejected(name: str) -> None:
    with pytest.raises(SnapshotFormatError):
        snapshot_class_for(name)
    with pytest.raises(SnapshotFormatError):
        snapshot_from_bytes(envelope(name, 1))


MODULE = """
import pathlib, sys
from tests_of_snapshots import UnregisteredSnapshot
pathlib.Path(__file__).with_suffix(".ran").touch()
class Found(UnregisteredSnapshot):
    pass
"""


def write_module(directory: Path, text: str) -> str:
    name = f"written_{uuid.uuid4().hex}"
    (directory / f"{name}.py").write_text(text.replace("tests_of_snapshots", __name__))
    return name


def test_reading_a_snapshot_imports_no_module_that_is_not_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = write_module(tmp_path, MODULE)
    for near in (f"{module}er", module[:-1], "written"):
        allow_snapshot_modules(near)
    with pytest.raises(UnknownSnapshotError, match=f"allow_snapshot_modules.'{module}'"):
        snapshot_from_bytes(envelope(f"{module}:Found", 3))
    assert not (tmp_path / f"{module}.ran").exists()
    allow_snapshot_modules(module)
    assert module in allowed_snapshot_modules()
    assert type(snapshot_from_bytes(envelope(f"{module}:Found", 3))).__name__ == "Found"
    with pytest.raises(UnknownSnapshotError, match="no longer defines it"):
        snapshot_class_for(f"{module}:Gone")


def test_a_module_in_an_allowed_package_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = f"package_{uuid.uuid4().hex}"
    (tmp_path / package).mkdir()
    module = write_module(tmp_path / package, MODULE)
    allow_snapshot_modules(package)
    assert snapshot_class_for(f"{package}.{module}:Found").__name__ == "Found"


@pytest.mark.parametrize("text", ["import sys; sys.exit(0)", "raise SystemExit", "1 / 0", "import no_such_module"])
def test_a_module_that_exits_or_fails_is_an_error_and_not_an_exit(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = write_module(tmp_path, text)
    allow_snapshot_modules(module)
    with pytest.raises(UnknownSnapshotError, match="cannot be imported"):
        snapshot_from_bytes(envelope(f"{module}:X", 1))


class NeedsMore(UnregisteredSnapshot):
    def __init__(self, more: int) -> None:
        self.more = more


class Careless(UnregisteredSnapshot):
    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        raise KeyError("a part that is missing")


class Indifferent(UnregisteredSnapshot):
    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        """Reads any version."""


@pytest.mark.parametrize("version", [0, -1, 4])
def test_an_unknown_version_is_not_passed_to_a_snapshot(version: int) -> None:
    with pytest.raises(SnapshotFormatError, match=r"newest supported: 3.*newer release"):
        snapshot_from_bytes(envelope(f"{__name__}:Indifferent", version))


def test_a_failing_snapshot_class_is_a_format_error() -> None:
    with pytest.raises(SnapshotFormatError, match="without arguments"):
        snapshot_from_bytes(envelope(f"{__name__}:NeedsMore", 3))
    with pytest.raises(SnapshotFormatError, match="without arguments"):
        snapshot_from_bytes(envelope("snapshots.composite:CompositeTypeSerializerSnapshot", 3))
    of_nothing = snapshot_from_bytes(envelope("snapshots.type_serializer_snapshot:SimpleTypeSerializerSnapshot", 3))
    for use in (of_nothing.restore_serializer, lambda: of_nothing.resolve_schema_compatibility(ts.LongSerializer())):
        with pytest.raises(SnapshotFormatError, match="no serializer_class"):
            use()
    with pytest.raises(SnapshotFormatError, match="KeyError: 'a part that is missing'"):
        snapshot_from_bytes(envelope(f"{__name__}:Careless", 3))


@pytest.mark.parametrize("version", [0, -1, 4, 1 << 30])
def test_unknown_versions_are_rejected_with_both_versions(version: int) -> None:
    name = snapshot_class_name(type(snapshot_from_bytes(LONG)))
    with pytest.raises(SnapshotFormatError, match=f"version {version} .*newest supported: 3"):
        snapshot_from_bytes(envelope(name, version))


def test_older_versions_of_a_simple_snapshot_are_read() -> None:
    name = snapshot_class_name(type(snapshot_from_bytes(LONG)))
    assert snapshot_to_bytes(snapshot_from_bytes(envelope(name, 2, b"\0\1x"))) == LONG
    assert snapshot_to_bytes(snapshot_from_bytes(envelope(name, 1))) == LONG


def test_trailing_and_missing_bytes_are_rejected() -> None:
    with pytest.raises(SnapshotFormatError, match="1 bytes follow"):
        snapshot_from_bytes(LONG + b"\0")
    for length in range(len(LONG)):
        with pytest.raises(StateFormatError):
            snapshot_from_bytes(LONG[:length])


def nested_lists(levels: int) -> ts.TypeSerializer:
    serializer: ts.TypeSerializer = ts.LongSerializer()
    for _ in range(levels):
        serializer = ts.ListSerializer(serializer)
    return serializer


def test_the_deepest_readable_nesting_is_written_and_nothing_deeper() -> None:
    deepest = nested_lists(63).snapshot_configuration()
    assert snapshot_from_bytes(snapshot_to_bytes(deepest)).restore_serializer() == nested_lists(63)
    for snapshot, nesting in ((nested_lists(64).snapshot_configuration(), 0), (deepest, 1)):
        with pytest.raises(SnapshotFormatError, match="nested deeper than 64"):
            snapshot_to_bytes(snapshot, nesting=nesting)


def test_bytes_nested_too_deep_are_rejected() -> None:
    # The frame of a list snapshot without its element snapshot.
    frame = snapshot_to_bytes(ts.ListSerializer(ts.LongSerializer()).snapshot_configuration())[: -len(LONG)]
    assert snapshot_from_bytes(frame * 63 + LONG).restore_serializer() == nested_lists(63)
    with pytest.raises(SnapshotFormatError, match="nested deeper than 64"):
        snapshot_from_bytes(frame * 64 + LONG)


def test_any_number_of_siblings_is_allowed() -> None:
    wide = ts.TupleSerializer([nested_lists(3)] * 100)
    data = snapshot_to_bytes(wide.snapshot_configuration())
    assert snapshot_from_bytes(data).restore_serializer() == wide
    out = DataOutputView()
    for _ in range(100):
        write_versioned_snapshot(out, wide.snapshot_configuration())
    source = DataInputView(out.to_bytes())
    for _ in range(100):
        assert read_versioned_snapshot(source).restore_serializer() == wide
    assert source.remaining == 0


def test_a_failed_snapshot_leaves_the_depth_unchanged() -> None:
    out, source = DataOutputView(), DataInputView(envelope("nothing.known", 1) * 70)
    for _ in range(70):
        with pytest.raises(SnapshotFormatError, match="local to a function"):
            write_versioned_snapshot(out, type("Local", (UnregisteredSnapshot,), {"__qualname__": "f.<locals>.X"})())
        with pytest.raises(UnknownSnapshotError):
            read_versioned_snapshot(source)
    assert (out.nesting, source.nesting) == (0, 0)
