"""Snapshots of unknown classes: loaded from declared modules, or kept undecoded."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import typeserializers as ts
from snapshots import (
    CompatibilityIssue,
    DataInputView,
    DataOutputView,
    FieldCompatibility,
    SerializationError,
    SimpleTypeSerializerSnapshot,
    SnapshotFormatError,
    TypeSerializerSchemaCompatibility,
    UnknownSnapshotError,
    UnresolvableSerializerError,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
    write_versioned_snapshot,
)
from snapshots.envelope import MAX_NESTING, snapshot_class_for, snapshot_or_unopened
from snapshots.permitted_modules import declare_snapshot_modules, declare_unavailable_snapshots, import_class_of
from snapshots.type_serializer_snapshot import defined_snapshot_classes

pytestmark = pytest.mark.usefixtures("own_registrations")

LONG = snapshot_to_bytes(ts.LongSerializer().snapshot_configuration())
UNKNOWN = LONG.replace(b"LongSerializerSnapshot", b"Lost_SerializerSnapsho")

MODULE = """
from snapshots import SimpleTypeSerializerSnapshot, register_snapshot
import typeserializers as ts

@register_snapshot({name!r})
class DeclaredSnapshot(SimpleTypeSerializerSnapshot[int]):
    def create_serializer(self):
        return ts.LongSerializer()
"""


def test_a_snapshot_of_an_unknown_class_is_kept_unchanged() -> None:
    carried = snapshot_or_unopened(UNKNOWN)
    assert snapshot_to_bytes(carried) == UNKNOWN
    for nesting in (0, MAX_NESTING):
        out = DataOutputView()
        out.nesting = nesting
        out.write(b"before")
        write_versioned_snapshot(out, carried)
        assert out.to_bytes() == b"before" + UNKNOWN
    known = snapshot_or_unopened(LONG)
    assert known.restore_serializer() == ts.LongSerializer()


def test_access_to_its_content_names_the_missing_class() -> None:
    carried = snapshot_or_unopened(UNKNOWN)
    with pytest.raises(UnresolvableSerializerError, match="Lost_Serializer"):
        carried.restore_serializer()
    compatibility = resolve_compatibility(carried, ts.LongSerializer())
    assert compatibility.is_incompatible
    assert "Lost_Serializer" in str(compatibility)
    asked: list[Any] = [
        lambda: carried.current_version,
        lambda: carried.write_snapshot(DataOutputView()),
        lambda: carried.read_snapshot(1, DataInputView(b"")),
    ]
    for ask in asked:
        with pytest.raises(SnapshotFormatError, match="unread snapshot"):
            ask()


def test_damage_is_not_an_unknown_class() -> None:
    for data in (LONG[:-1], LONG + b"\0", b"", UNKNOWN[:20]):
        with pytest.raises(SnapshotFormatError):
            snapshot_or_unopened(data)


def test_a_declared_module_is_imported_when_its_name_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    name, module = f"declared.{uuid.uuid4().hex}", f"declared_{uuid.uuid4().hex}"
    with pytest.raises(UnknownSnapshotError, match="unknown serializer snapshot"):
        snapshot_class_for(name)
    declare_snapshot_modules({name: module, f"{name}.gone": module, f"{name}.lost": f"{module}_lost"})
    with pytest.raises(UnknownSnapshotError, match="cannot be imported"):
        snapshot_class_for(name)
    (tmp_path / f"{module}.py").write_text(MODULE.format(name=name))
    assert snapshot_class_for(name).__name__ == "DeclaredSnapshot"
    with pytest.raises(UnknownSnapshotError, match="no longer defines it"):
        snapshot_class_for(f"{name}.gone")
    with pytest.raises(UnknownSnapshotError, match="_lost' of the serializer snapshot"):
        snapshot_class_for(f"{name}.lost")


@pytest.mark.parametrize("name", ["unavailable.Snapshot", "unavailable_module:Snapshot"])
def test_the_error_has_the_reason_why_a_class_is_missing(name: str) -> None:
    declare_unavailable_snapshots({name: "it is of __main__, which is another program here"})
    with pytest.raises(UnknownSnapshotError, match=r"\(it is of __main__, which is another program here\)"):
        snapshot_class_for(name)
    with pytest.raises(UnknownSnapshotError) as other:
        snapshot_class_for("unavailable.Other")
    assert "(" not in str(other.value)


class CountedSnapshot(SimpleTypeSerializerSnapshot[int]):
    """Adopts any schema, and counts the calls."""

    def create_serializer(self) -> ts.LongSerializer:
        return Counted()

    def adopt_schema(self, old_snapshot: Any) -> TypeSerializerSchemaCompatibility[int] | None:
        Counted.asked += 1
        return TypeSerializerSchemaCompatibility.compatible_as_is(
            [CompatibilityIssue("", FieldCompatibility.AS_IS, "adopted", "any")]
        )


class Counted(ts.LongSerializer):
    asked = 0

    def snapshot_configuration(self) -> Any:
        return CountedSnapshot()


def test_the_new_serializer_decides_only_if_the_old_snapshot_rejects() -> None:
    assert resolve_compatibility(CountedSnapshot(), Counted()).is_as_is
    assert Counted.asked == 0
    adopted = resolve_compatibility(ts.StringSerializer().snapshot_configuration(), Counted())
    assert Counted.asked == 1
    assert [issue.rule for issue in adopted.issues] == ["adopted"]
    assert resolve_compatibility(ts.StringSerializer().snapshot_configuration(), ts.LongSerializer()).is_incompatible


@pytest.mark.parametrize("version", [-1, 0, 4])
def test_a_version_error_has_both_versions(version: int) -> None:
    snapshot = snapshot_from_bytes(LONG)
    for known in (1, 2, 3):
        snapshot.check_version(known)
    for ask in (snapshot.check_version, lambda asked: snapshot.read_snapshot(asked, DataInputView(b""))):
        with pytest.raises(SnapshotFormatError, match=f"version {version} of .*newest supported: 3"):
            ask(version)


def test_a_rejected_value_has_the_reason_of_every_step() -> None:
    error = SerializationError("Long", ("value: 'x' is not an int", ".a: 'y' is not an int"))
    assert str(error) == "Long cannot write this value: 'x' is not an int; .a: 'y' is not an int"
    assert str(error.within("state 'n'")).startswith("state 'n': Long cannot write")
    assert error.at("[3]").problems == ("[3]: 'x' is not an int", "[3].a: 'y' is not an int")


def test_bytes_that_end_before_the_name_are_rejected() -> None:
    for data in (b"", b"\0", b"\0\5abc"):
        with pytest.raises(SnapshotFormatError, match=r"snapshot \(no name\) at byte 0: .*truncated"):
            snapshot_from_bytes(data)
    with pytest.raises(SnapshotFormatError, match=r"LongSerializerSnapshot at byte 0: .*truncated"):
        snapshot_from_bytes(LONG[:-1])


def test_a_class_local_to_a_function_is_not_found_by_its_path() -> None:
    class Local(CountedSnapshot):
        pass

    assert Local not in defined_snapshot_classes().values()
    assert CountedSnapshot in defined_snapshot_classes().values()
    with pytest.raises(UnknownSnapshotError):
        snapshot_class_for(f"{__name__}:{Local.__qualname__}")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("org.apache.flink.table.runtime.typeutils.VariantSerializer$Snapshot", "Cast the column"),
        ("org.apache.flink.api.scala.typeutils.ScalaOptionSerializerSnapshot", "Use POJOs or tuples"),
        ("org.apache.flink.cep.nfa.NFAStateSerializerSnapshot", "pattern matching"),
    ],
)
def test_snapshots_of_flink_that_cannot_be_read_are_errors_with_advice(name: str, advice: str) -> None:
    with pytest.raises(UnknownSnapshotError, match=f"unknown serializer snapshot .*{advice}.* a savepoint of that job"):
        import_class_of(name)
