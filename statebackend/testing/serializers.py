"""The contract of serializers as a pytest class, golden files of serializers, and damaged bytes for tests.

    class TestPointSerializer(SerializerContract):
        def serializer(self):
            return PointSerializer()

        def values(self):
            return [Point(0, 0), Point(-1, 2**62)]

        def different_serializers(self):            # optional: other configurations
            return []

        def strategy(self):                         # optional: hypothesis makes more values
            return st.builds(Point, st.integers(...), st.integers(...))

The contract has the tests of Flink's ``SerializerTestBase`` (copy, round trip alone and in sequence, no trailing bytes,
null, duplicates in threads, snapshot, equality) and more: generated and view-based code write the same bytes and reject
the same values; a failed write leaves no bytes; damaged bytes result in a value or an error, within bounded memory and
without waiting for more bytes. Damaged bytes are created from real encodings, because random bytes fail at the first
field.

Golden files are written once for each released version and never changed. The data is written before the snapshot,
because a serializer may learn while it writes:

    <directory>/<version>/serializer-snapshot      the versioned snapshot
    <directory>/<version>/test-data                the values, one after the other
    <directory>/<version>/values                   one line per value: its length in bytes, and its repr for people
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import frozen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapshots.compatibility import CompatibilityKind
from snapshots.composite import CompositeTypeSerializerSnapshot, merge_snapshots
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import snapshot_from_bytes, snapshot_to_bytes
from snapshots.errors import SerializationError, StateFormatError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, resolve_compatibility
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.stepping_over import stepping_over
from typeserializers.kernel.type_serializer import TypeSerializer

SNAPSHOT_FILE = "serializer-snapshot"
DATA_FILE = "test-data"
VALUES_FILE = "values"


@frozen
class GoldenVersion:
    """The golden files of one released version."""

    version: str
    snapshot_bytes: bytes
    encoded_values: tuple[bytes, ...]

    @property
    def snapshot(self) -> TypeSerializerSnapshot[Any]:
        """Read and return the snapshot."""
        return snapshot_from_bytes(self.snapshot_bytes)


@frozen
class GoldenFiles:
    """The golden files of one serializer in its own directory."""

    directory: Path

    def generate(self, version: str, serializer: TypeSerializer[Any], values: Sequence[Any]) -> GoldenVersion:
        """Write the files of a version. Raises `FileExistsError` if they exist."""
        folder = self.directory / version
        folder.mkdir(parents=True)
        encoded = tuple(serializer.to_bytes(value) for value in values)
        snapshot = snapshot_to_bytes(serializer.snapshot_configuration())
        (folder / DATA_FILE).write_bytes(b"".join(encoded))
        (folder / SNAPSHOT_FILE).write_bytes(snapshot)
        # A repr may have several lines, but each value needs one line.
        shown = [" ".join(ascii(value).split()) for value in values]
        lines = [f"{len(data)} {text}\n" for data, text in zip(encoded, shown, strict=True)]
        (folder / VALUES_FILE).write_text("".join(lines), encoding="ascii")
        return GoldenVersion(version, snapshot, encoded)

    def versions(self) -> Iterator[GoldenVersion]:
        """Yield all versions, sorted by name."""
        for folder in sorted(self.directory.iterdir()) if self.directory.is_dir() else ():
            if not (folder / SNAPSHOT_FILE).is_file():
                continue
            data, position, encoded = (folder / DATA_FILE).read_bytes(), 0, []
            for line in (folder / VALUES_FILE).read_text(encoding="ascii").splitlines():
                length = int(line.partition(" ")[0])
                encoded.append(data[position : position + length])
                position += length
            if position != len(data):
                raise ValueError(f"{folder}: {VALUES_FILE} describes {position} bytes, but {DATA_FILE} has {len(data)}")
            yield GoldenVersion(folder.name, (folder / SNAPSHOT_FILE).read_bytes(), tuple(encoded))


HOSTILE_NUMBERS: Final = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f",
)
"""Counts and lengths of a hostile writer: the largest and smallest numbers, and long varints."""

MEMORY_PER_BYTE: Final = 4096
MEMORY_AT_LEAST: Final = 64 * 1024 * 1024


def damaged(encoded: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy for damaged encodings: a few bytes changed, a hostile number inserted, or a part repeated."""
    places = st.integers(0, max(len(encoded) - 1, 0))
    changed = st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4).map(
        lambda changes: _with_changes(encoded, changes)
    )
    hostile = st.tuples(places, st.sampled_from(HOSTILE_NUMBERS)).map(
        lambda drawn: encoded[: drawn[0]] + drawn[1] + encoded[drawn[0] + len(drawn[1]) :]
    )
    repeated = st.tuples(places, places, st.sampled_from([10, 5000])).map(
        lambda drawn: encoded[: drawn[0]] + encoded[drawn[0] : drawn[1]] * drawn[2] + encoded[drawn[1] :]
    )
    return st.one_of(changed, hostile, repeated, st.binary(max_size=64))


def damaged_everywhere(encoded: bytes, limit: int = 300) -> Iterator[bytes]:
    """Yield all truncations, and all changes of one byte: each bit flipped, and the largest and smallest value.

    If there are more than ``limit``, a fixed sample is used, unless the environment sets ``STATEBACKEND_FUZZ=all``.
    """
    places = [(place, None) for place in range(len(encoded))]
    flips = [(place, flip) for place in range(len(encoded)) for flip in (*(1 << bit for bit in range(8)), 0xFF, 0x7F)]
    chosen: list[tuple[int, int | None]] = [*places, *flips]
    if len(chosen) > limit and os.environ.get("STATEBACKEND_FUZZ") != "all":
        chosen = random.Random(len(encoded)).sample(chosen, limit)
    for place, flip in chosen:
        if flip is None:
            yield encoded[:place]
        else:
            yield encoded[:place] + bytes((encoded[place] ^ flip,)) + encoded[place + 1 :]


def _with_changes(encoded: bytes, changes: list[tuple[int, int]]) -> bytes:
    data = bytearray(encoded or b"\0")
    for place, byte in changes:
        data[place] = byte
    return bytes(data)


def peak_memory_of(action: Callable[[], Any]) -> int:
    """Return the peak memory of Python objects in bytes that the action allocates."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        action()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()


THREADS = 8
ROUNDS_PER_THREAD = 25

_SETTINGS = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors, HealthCheck.data_too_large],
)


class Misfit:
    """A value that fits no serializer."""


class SerializerContract:
    """The tests of a serializer. Derive a class ``Test...`` and implement `serializer` and `values`."""

    expected_length: int = -1
    """The number of bytes of every value, or -1."""

    is_picklable = True
    """Whether the serializer can be pickled. False for a serializer of a class that is local to a function."""

    reads_hostile_bytes = True
    """False for a serializer that must trust its bytes, such as pickle. It is not tested with damaged bytes."""

    is_generated = True
    """False for a serializer that emits code for others, but does not use compiled code itself."""

    def serializer(self) -> TypeSerializer[Any]:
        """Return a new serializer. All returned serializers must be equal."""
        raise NotImplementedError

    def values(self) -> Sequence[Any]:
        """Return example values, edge cases first. None is not allowed."""
        raise NotImplementedError

    def different_serializers(self) -> Sequence[TypeSerializer[Any]]:
        """Return serializers of the same class. Each differs in one part of the configuration."""
        return []

    def strategy(self) -> st.SearchStrategy[Any] | None:
        """Return a hypothesis strategy for more values, or None."""
        return None

    def misfits(self) -> Sequence[Any]:
        """Return values that the serializer must reject."""
        return [Misfit()]

    def equal(self, left: Any, right: Any) -> bool:
        """Return whether two values are equal. Override it for values without ``__eq__``."""
        return bool(left == right) or (left != left and right != right)

    def assert_equal(self, left: Any, right: Any) -> None:
        """Fail with both values if they are not equal."""
        assert self.equal(left, right), f"{left!r} is not {right!r}"

    def all_values(self) -> st.SearchStrategy[Any]:
        """Return a strategy for the example values and the values of `strategy`."""
        given_values = st.sampled_from(list(self.values()))
        more = self.strategy()
        return given_values if more is None else given_values | more

    def test_it_can_write_the_instance_that_it_creates(self) -> None:
        serializer = self.serializer()
        made = serializer.create_instance()
        self.assert_equal(serializer.from_bytes(serializer.to_bytes(made)), made)

    def test_equal_configuration_means_equal_serializers(self) -> None:
        left, right = self.serializer(), self.serializer()
        assert left == right, "two results of serializer() differ: configuration() must return equal values for them"
        assert hash(left) == hash(right)
        assert self.serializer() != Misfit()

    def test_different_configurations_mean_different_serializers_and_snapshots(self) -> None:
        serializer = self.serializer()
        snapshots = {snapshot_to_bytes(serializer.snapshot_configuration())}
        for other in self.different_serializers():
            assert other != serializer, (
                f"{other!r} equals {serializer!r}: configuration() must contain every difference"
            )
            data = snapshot_to_bytes(other.snapshot_configuration())
            assert data not in snapshots, (
                f"{other!r} has the same snapshot as another serializer: write_snapshot() must write every difference"
            )
            snapshots.add(data)

    def test_composites_with_different_parts_are_not_equal(self) -> None:
        serializer = self.serializer()
        snapshot = serializer.snapshot_configuration()
        if not isinstance(snapshot, CompositeTypeSerializerSnapshot):
            pytest.skip("the serializer has no nested serializers")
        parts = list(snapshot.nested_serializers(serializer))
        for index, part in enumerate(parts):
            instead = part.inner if isinstance(part, NullableSerializer) else NullableSerializer(part)
            try:
                other = snapshot.create_outer_serializer([*parts[:index], instead, *parts[index + 1 :]])
            except (StateFormatError, ValueError, TypeError):
                continue  # The serializer does not accept such a part.
            if snapshot_to_bytes(other.snapshot_configuration()) != snapshot_to_bytes(snapshot):
                assert other != serializer, (
                    f"the serializer equals {other!r}: configuration() must contain every nested serializer"
                )

    def test_every_value_has_the_length_of_the_serializer(self) -> None:
        serializer = self.serializer()
        assert serializer.length == self.expected_length, "set expected_length to the length of the serializer"
        for value in self.values():
            encoded = serializer.to_bytes(value)
            assert self.expected_length in (-1, len(encoded))
            assert len(encoded) >= serializer.minimum_length

    def test_its_restored_snapshot_is_compatible_as_is(self) -> None:
        serializer = self.serializer()
        encoded = [serializer.to_bytes(value) for value in self.values()]
        data = snapshot_to_bytes(serializer.snapshot_configuration())
        snapshot = snapshot_from_bytes(data)
        assert snapshot_to_bytes(snapshot) == data
        compatibility = resolve_compatibility(snapshot, self.serializer())
        assert compatibility.kind in (CompatibilityKind.AS_IS, CompatibilityKind.WITH_RECONFIGURED_SERIALIZER), str(
            compatibility
        )
        restored = restored_with(snapshot, serializer)
        for one, value in zip(encoded, self.values(), strict=True):
            self.assert_equal(restored.from_bytes(one), value)
            assert restored.to_bytes(restored.from_bytes(one)) == one
        if type(restored) is type(serializer):
            assert snapshot_to_bytes(restored.snapshot_configuration()) == data
        else:
            # The restored serializer may omit a wrapper that does not affect reading. It must still be compatible.
            assert not resolve_compatibility(restored.snapshot_configuration(), self.serializer()).is_incompatible

    def test_a_snapshot_of_an_unknown_version_is_rejected(self) -> None:
        data = snapshot_to_bytes(self.serializer().snapshot_configuration())
        source = DataInputView(data)
        name = source.read_utf()
        content = data[source.position + 4 :]
        snapshot_class = type(self.serializer().snapshot_configuration())
        newest = snapshot_class().current_version
        for version in (min(newest + 1, 2**31 - 1), 2**31 - 1, 0, -1):
            envelope = DataOutputView()
            envelope.write_utf(name)
            envelope.write_int(version)
            envelope.write(content)
            with pytest.raises(StateFormatError):
                snapshot_from_bytes(envelope.to_bytes())
            with pytest.raises(StateFormatError):
                snapshot_class().read_snapshot(version, DataInputView(content))

    def test_a_damaged_snapshot_is_rejected_or_read(self) -> None:
        data = snapshot_to_bytes(self.serializer().snapshot_configuration())
        for cut in range(0, len(data), max(1, len(data) // 50)):
            with pytest.raises(StateFormatError):
                snapshot_from_bytes(data[:cut])
        with pytest.raises(StateFormatError):
            snapshot_from_bytes(data + b"\0")

    def test_a_snapshot_with_any_byte_changed_is_rejected_with_an_error_of_this_library_or_can_be_used(self) -> None:
        serializer = self.serializer()
        for data in damaged_everywhere(snapshot_to_bytes(serializer.snapshot_configuration())):
            try:
                snapshot = snapshot_from_bytes(data)
                str(resolve_compatibility(snapshot, serializer))
                restored = restored_with(snapshot, serializer)
                str(resolve_compatibility(serializer.snapshot_configuration(), restored))
            except StateFormatError:
                continue
            # The restored serializer reads other values, or rejects them.
            for value in self.values() if self.reads_hostile_bytes else ():
                with contextlib.suppress(StateFormatError):
                    restored.from_bytes(serializer.to_bytes(value))

    def test_a_value_with_any_byte_changed_is_rejected_with_an_error_of_this_library_or_read(self) -> None:
        if not self.reads_hostile_bytes:
            pytest.skip("reads_hostile_bytes is False: the serializer trusts its bytes")
        serializer = self.serializer()
        values = list(self.values())[:8]

        def read_all() -> None:
            for value in values:
                for data in damaged_everywhere(serializer.to_bytes(value), limit=100):
                    with contextlib.suppress(StateFormatError):
                        serializer.from_bytes(data)
                    with contextlib.suppress(StateFormatError):
                        serializer.deserialize(DataInputView(data))

        longest = max((len(serializer.to_bytes(value)) for value in values), default=0)
        # Run once before measuring, because objects that are created once do not count.
        read_all()
        assert peak_memory_of(read_all) <= MEMORY_AT_LEAST + MEMORY_PER_BYTE * longest

    def test_its_generated_code_is_used(self) -> None:
        serializer = self.serializer()
        if not isinstance(serializer, CompiledTypeSerializer) or not self.is_generated:
            pytest.skip("is_generated is False: the serializer has no generated code")
        # Code that does not compile would silently be replaced by the slower view-based code.
        for function in (serializer.codec.write, serializer.codec.read):
            assert hasattr(function, "__generated_source__"), f"{serializer!r} emits code that Python does not compile"

    def test_it_can_be_pickled_to_another_process(self) -> None:
        if not self.is_picklable:
            pytest.skip("is_picklable is False")
        serializer = self.serializer()
        arrived = pickle.loads(pickle.dumps(serializer))
        assert arrived == serializer
        for value in self.values():
            assert arrived.to_bytes(value) == serializer.to_bytes(value)

    def test_it_may_be_duplicated_and_used_in_many_threads(self) -> None:
        serializer, values = self.serializer(), list(self.values())
        assert serializer.duplicate() == serializer
        encoded = [serializer.to_bytes(value) for value in values]
        start, problems = threading.Barrier(THREADS), list[BaseException]()

        def work() -> None:
            own = serializer.duplicate()
            start.wait()
            try:
                for _ in range(ROUNDS_PER_THREAD):
                    for value, expected in zip(values, encoded, strict=True):
                        assert own.to_bytes(own.copy(value)) == expected
                        self.assert_equal(own.from_bytes(expected), value)
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems, problems[0]

    def test_duplicates_know_learned_types(self) -> None:
        serializer = self.serializer()
        encoded = [serializer.to_bytes(value) for value in self.values()]
        duplicate = serializer.duplicate()
        written = snapshot_to_bytes(serializer.snapshot_configuration())
        assert snapshot_to_bytes(duplicate.snapshot_configuration()) == written
        for one, value in zip(encoded, self.values(), strict=True):
            self.assert_equal(duplicate.from_bytes(one), value)

    def test_a_merged_snapshot_reads_what_either_has_written(self) -> None:
        values = list(self.values())
        halves = values[: len(values) // 2], values[len(values) // 2 :]
        writers = self.serializer(), self.serializer()
        encoded = [[writer.to_bytes(value) for value in half] for writer, half in zip(writers, halves, strict=True)]
        one, other = (snapshot_from_bytes(snapshot_to_bytes(writer.snapshot_configuration())) for writer in writers)
        for merged in (merge_snapshots(one, other), merge_snapshots(other, one)):
            # Contradicting snapshots need not have a merged snapshot.
            if merged is None:
                continue
            restored = restored_with(snapshot_from_bytes(snapshot_to_bytes(merged)), *writers)
            for written, half in zip(encoded, halves, strict=True):
                for data, value in zip(written, half, strict=True):
                    self.assert_equal(restored.from_bytes(data), value)

    def test_none_is_rejected_or_read_back(self) -> None:
        serializer = self.serializer()
        if not serializer.accepts_none:
            with pytest.raises(SerializationError):
                serializer.to_bytes(None)
            return
        encoded = serializer.to_bytes(None)
        assert serializer.length in (-1, len(encoded))
        assert serializer.from_bytes(encoded) is None
        assert serializer.copy(None) is None

    def test_a_value_that_does_not_fit_leaves_no_bytes(self) -> None:
        serializer = self.serializer()
        for misfit in self.misfits():
            with pytest.raises(SerializationError) as rejected:
                serializer.to_bytes(misfit)
            assert rejected.value.problems
            out = DataOutputView()
            out.write(b"before")
            with pytest.raises(SerializationError):
                serializer.serialize(misfit, out)
            assert out.to_bytes() == b"before"

    @_SETTINGS
    @given(st.data())
    def test_a_value_comes_back_alone_in_sequence_and_as_a_copy(self, data: st.DataObject) -> None:
        serializer = self.serializer()
        values = data.draw(st.lists(self.all_values(), min_size=1, max_size=4))
        out = DataOutputView()
        for value in values:
            encoded = serializer.to_bytes(value)
            self.assert_equal(serializer.from_bytes(encoded), value)
            copied = serializer.copy(value)
            self.assert_equal(copied, value)
            assert serializer.to_bytes(copied) == encoded
            with pytest.raises(StateFormatError):
                serializer.from_bytes(encoded + b"\0")
            serializer.serialize(value, out)
        source = DataInputView(out.to_bytes())
        for value in values:
            self.assert_equal(serializer.deserialize(source), value)
        assert source.remaining == 0

    def test_skipping_a_value_ends_after_its_last_byte(self) -> None:
        serializer = self.serializer()
        written = [serializer.to_bytes(value) for value in self.values()]
        restored = serializer.snapshot_configuration().restore_serializer()
        for skipped in (stepping_over(serializer), stepping_over(restored)):
            for encoded in written:
                end = 5 + len(encoded)
                assert skipped.codec.read(b"front" + encoded + b"behind", 5)[1] == end
                source = DataInputView(b"front" + encoded + b"behind", 5)
                skipped.deserialize(source)
                assert source.position == end
                if encoded:
                    with pytest.raises(StateFormatError):
                        skipped.from_bytes(encoded[:-1])

    @_SETTINGS
    @given(st.data())
    def test_generated_and_view_based_code_agree_on_every_byte(self, data: st.DataObject) -> None:
        serializer, value = self.serializer(), data.draw(self.all_values())
        out = DataOutputView()
        serializer.serialize(value, out)
        encoded = serializer.codec.write(value)
        assert encoded == out.to_bytes()
        read, position = serializer.codec.read(b"front" + encoded + b"behind", 5)
        assert position == 5 + len(encoded)
        source = DataInputView(b"front" + encoded + b"behind", 5)
        self.assert_equal(serializer.deserialize(source), read)
        assert source.position == position

    @_SETTINGS
    @given(st.data())
    def test_truncated_bytes_are_rejected(self, data: st.DataObject) -> None:
        serializer = self.serializer()
        encoded = serializer.to_bytes(data.draw(self.all_values()))
        if not encoded:
            return
        cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
        # No serializer may read a truncated value as a complete one.
        with pytest.raises(StateFormatError):
            serializer.from_bytes(cut)
        with pytest.raises(StateFormatError):
            serializer.deserialize(DataInputView(cut))

    @_SETTINGS
    @given(st.data())
    def test_damaged_and_hostile_bytes_are_a_value_or_rejected_alike_and_within_bounds(
        self, data: st.DataObject
    ) -> None:
        if not self.reads_hostile_bytes:
            return
        serializer = self.serializer()
        sound = serializer.to_bytes(data.draw(self.all_values()))
        hostile = data.draw(damaged(sound))
        # Run once before measuring, because objects that are created once per process do not count.
        self._generated(serializer, sound)
        self._view_based(serializer, sound)

        def outcomes() -> tuple[Any, Any]:
            return self._generated(serializer, hostile), self._view_based(serializer, hostile)

        made: list[tuple[Any, Any]] = []
        peak = peak_memory_of(lambda: made.append(outcomes()))
        assert peak < MEMORY_AT_LEAST + MEMORY_PER_BYTE * len(hostile)
        (generated, view_based) = made[0]
        assert (generated is None) == (view_based is None), f"{hostile!r}: {generated!r} but {view_based!r}"
        # A NaN inside a value makes it unequal to itself.
        if generated is not None and repr(generated[0]) != repr(view_based[0]):
            self.assert_equal(generated[0], view_based[0])

    def _generated(self, serializer: TypeSerializer[Any], data: bytes) -> tuple[Any] | None:
        try:
            return (serializer.from_bytes(data),)
        except StateFormatError:
            return None

    def _view_based(self, serializer: TypeSerializer[Any], data: bytes) -> tuple[Any] | None:
        source = DataInputView(data)
        try:
            value = serializer.deserialize(source)
        except StateFormatError:
            return None
        return None if source.remaining else (value,)
