"""The contract of a serializer: values to bytes, bytes to values, and a snapshot of its configuration.

A serializer is written by hand against the views (`serialize`, `deserialize`), or generates source code
(`typeserializers.kernel.compiled`). Hot paths use its `codec`, a pair of plain functions between values and ``bytes``;
for a hand-written serializer, the pair calls the view-based methods.

Invariants of every serializer, checked by the contract suite:

* The encoding is self-delimiting: values can be written one after the other without lengths.
* Equal configuration means equal serializers.
* A failed write leaves nothing behind.
* Reading never needs more than the bytes of the value.

`AdoptingTypeSerializerSnapshot` is the snapshot of a serializer without configuration that restores the state of
certain other serializers, by the rule in `typeserializers.evolution.simple_evolution`.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from attrs import frozen

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import snapshot_to_bytes
from snapshots.errors import (
    EndOfDataError,
    MalformedDataError,
    SerializationError,
    StateFormatError,
    TrailingBytesError,
)
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot, TypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter

if TYPE_CHECKING:
    from typing_extensions import Self


T = TypeVar("T")


class AdoptingTypeSerializerSnapshot(SimpleTypeSerializerSnapshot[T]):
    """A simple snapshot with the names of other snapshots whose values its serializer accepts."""

    adopted_snapshots: ClassVar[tuple[str, ...]] = ()
    """The stable names of the adopted snapshots."""


MAX_PROBLEMS = 20
"""The maximum number of problems of one value in an error."""


@frozen
class Codec(Generic[T]):
    """The hot-path form of a serializer: two plain functions.

    ``write(value)`` returns the bytes; ``read(data, position)`` returns the value and the position after it. Both may
    raise any exception on bad input; `TypeSerializer.to_bytes` and `from_bytes` turn it into one that names the path.
    For truncated data, ``read`` may return a position after the end; the caller must check it.
    """

    write: Callable[[T], bytes]
    read: Callable[[bytes, int], tuple[T, int]]


class TypeSerializer(ABC, Generic[T]):
    """Writes and reads values of one type.

    Instances are cheap and may be shared between threads unless `duplicate` says otherwise.
    """

    _codec: Codec[T] | None = None

    @abstractmethod
    def serialize(self, value: T, out: DataOutputView) -> None:
        """Appends the value to ``out``; raises `SerializationError`, with nothing appended, if it does not fit."""

    @abstractmethod
    def deserialize(self, source: DataInputView) -> T:
        """Reads one value; raises `EndOfDataError` or `MalformedDataError` for invalid bytes."""

    @abstractmethod
    def snapshot_configuration(self) -> TypeSerializerSnapshot[T]:
        """Returns the point-in-time snapshot that is persisted with the state."""

    @abstractmethod
    def create_instance(self) -> T:
        """Returns an empty value of the type, such as 0 or an empty list."""

    @property
    def length(self) -> int:
        """The number of bytes of every value, or -1 if it varies."""
        return -1

    @property
    def minimum_length(self) -> int:
        """The minimum number of bytes of a value; bounds the counts in untrusted bytes."""
        return max(self.length, 1)

    @property
    def python_type(self) -> type:
        """The class of the values; may raise what `create_instance` raises."""
        return type(self.create_instance())

    @property
    def type_name(self) -> str:
        """The type as people write it, such as ``int`` or ``list[str]``, for issues and errors."""
        try:
            return self.python_type.__name__
        except Exception:
            # The constructor may reject an empty value; the serializer still needs a name.
            return type(self).__name__

    @property
    def former_type_names(self) -> Sequence[str]:
        """The former names of the type; a union finds renamed members by them."""
        return ()

    @property
    def is_immutable_type(self) -> bool:
        """Whether values can be shared instead of copied."""
        return False

    @property
    def accepts_none(self) -> bool:
        """Whether None can be written."""
        return False

    @property
    def is_optional_type(self) -> bool:
        """Whether the type is optional; a record rejects None in other fields."""
        return False

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        """Whether ``a == b`` implies equal encodings, so that values can stand for their bytes in a dict."""
        return False

    @property
    def may_reject_what_it_wrote(self) -> bool:
        """Whether reading could reject bytes that were built from parts that were read.

        A migration reads such bytes back once. Return False if reading runs no user code (a constructor, a validator).
        The default is True for classes outside this library. Nested serializers are asked separately.
        """
        return type(self).__module__.partition(".")[0] != __name__.partition(".")[0]

    def copy(self, value: T) -> T:
        """Returns a value that shares no mutable part with the given one."""
        return value if self.is_immutable_type else self.from_bytes(self.to_bytes(value))

    def duplicate(self) -> Self:
        """Returns a serializer that another thread may use; itself if it has no mutable state.

        A serializer that learns while it writes copies what it has learned.
        """
        return self

    def configuration(self) -> Hashable:
        """What distinguishes serializers of the same class; used for equality. The default is the snapshot.

        Equal serializers read each other's bytes without a compatibility check. Override it only if the snapshot
        contains more than the bytes depend on, or to compare faster.
        """
        snapshot = self.snapshot_configuration()
        return () if isinstance(snapshot, SimpleTypeSerializerSnapshot) else snapshot_to_bytes(snapshot)

    @property
    def source_serializers(self) -> Sequence[TypeSerializer[Any]]:
        """Serializers of old values that a converter reads; none by default.

        They are not part of the configuration. They provide the classes to restore old state with.
        """
        return ()

    def problems(self, value: Any, path: str) -> Iterator[str]:
        """Yields ``path: reason`` for each part of the value that does not fit; nothing if unknown."""
        return iter(())

    @property
    def codec(self) -> Codec[T]:
        """The hot-path functions, created once per serializer."""
        codec = self._codec
        if codec is None:
            codec = self._codec = self.create_codec()
        return codec

    def create_codec(self) -> Codec[T]:
        """Wraps the view-based pair; a compiled serializer overrides it."""
        serialize, deserialize = self.serialize, self.deserialize

        def write(value: T) -> bytes:
            out = DataOutputView()
            serialize(value, out)
            return out.to_bytes()

        def read(data: bytes, position: int) -> tuple[T, int]:
            source = DataInputView(data, position)
            value = deserialize(source)
            return value, source.position

        return Codec(write, read)

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        """Emits the code that writes the expression ``value``; by default a call of the codec."""
        emitter.append(f"{emitter.function.bind('write', self.codec.write)}({value})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        """Emits the code that reads one value; the returned expression is valid after the next flush."""
        result = emitter.function.fresh("v")
        emitter.line(f"{result}, pos = {emitter.function.bind('read', self.codec.read)}(data, pos)")
        return result

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        """Returns an expression that is true only if the value fits and is read back unchanged; None if there is none.

        Called by `typeserializers.kernel.value_hooks.exact_condition`, which documents the arguments.
        """
        return None

    def emit_exact_parts(self, emitter: ReadEmitter, value: str) -> str | None:
        """Emits code that makes of a variable what would be read back, part by part; None if there are no parts.

        Called by `typeserializers.kernel.value_hooks.emit_exact` if `emit_is_exact` does not hold. The code raises for
        a value that does not fit.
        """
        return None

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        """Returns an expression of the approximate size of the value as an object, in bytes; None if it is unknown.

        Called by `typeserializers.kernel.value_hooks.size_expression`.
        """
        return None

    def stepping_over(self, part: Callable[[TypeSerializer[Any]], TypeSerializer[Any]]) -> TypeSerializer[Any]:
        """Returns a serializer that skips exactly the bytes of a value and cannot fail on its content.

        By default itself; for a composite, the composite around ``part`` of each nested serializer. Override it if
        reading runs user code, with a class of `typeserializers.kernel.stepping_over`. Callers use the function of
        this name there.
        """
        snapshot = self.snapshot_configuration()
        if not isinstance(snapshot, CompositeTypeSerializerSnapshot):
            return self
        nested = list(snapshot.nested_serializers(self))
        replaced = [part(serializer) for serializer in nested]
        if all(new is old for new, old in zip(replaced, nested, strict=True)):
            return self
        around: TypeSerializer[Any] = snapshot.create_outer_serializer(replaced)
        return around

    def to_bytes(self, value: T) -> bytes:
        """Returns the encoding of one value; raises `SerializationError` with the paths that do not fit."""
        try:
            return self.codec.write(value)
        except Exception as error:
            raise self.serialization_error(value, error) from error

    def from_bytes(self, data: bytes) -> T:
        """Returns the value of exactly these bytes.

        Raises:
            EndOfDataError: The bytes are truncated.
            MalformedDataError: The bytes are invalid.
            TrailingBytesError: Bytes are left over.
        """
        try:
            value, position = self.codec.read(data, 0)
        except Exception as error:
            raise self.deserialization_error(data, error) from error
        if position != len(data):
            if position > len(data):
                raise EndOfDataError(f"{self!r}: {len(data)} bytes are not a whole value: the data is truncated")
            raise TrailingBytesError(
                f"{self!r}: the value ends at byte {position}, but {len(data) - position} bytes follow; "
                f"they were written by another serializer"
            )
        return value

    def serialization_error(self, value: Any, error: Exception) -> SerializationError:
        """Returns the error for a value that could not be written, with all problems."""
        if isinstance(error, SerializationError):
            return error
        found: tuple[str, ...] = ()
        # Finding the problem may fail on the same value.
        with contextlib.suppress(Exception):
            found = tuple(itertools.islice(self.problems(value, ""), MAX_PROBLEMS))
        return SerializationError(repr(self), found or (f"{type(error).__name__}: {error}",))

    def deserialization_error(self, data: bytes, error: Exception) -> StateFormatError:
        """Returns the error for bytes that could not be read."""
        if isinstance(error, StateFormatError):
            return error
        return MalformedDataError(f"{self!r} cannot read these {len(data)} bytes: {type(error).__name__}: {error}")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, TypeSerializer)
        return bool(self.configuration() == other.configuration())

    def __hash__(self) -> int:
        return hash((type(self), self.configuration()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __getstate__(self) -> dict[str, Any]:
        # A compiled codec is a generated function and cannot be pickled; it is recreated on first use.
        state = self.__dict__.copy()
        state.pop("_codec", None)
        return state
