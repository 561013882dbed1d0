"""The contract of a serializer: values to bytes, bytes to values, and a snapshot of how.

A serializer is either written by hand against the views (`serialize`, `deserialize`), or knows how to emit source code
for itself (`typeserializers.kernel.compiled`). Callers on a hot path use its `codec`, a pair of plain functions between
values and ``bytes``; for a hand-written serializer the pair merely calls it.

Invariants that every serializer keeps (the contract kit checks them): the encoding is self-delimiting, so that values
can be written one after the other and read back without lengths in between; equal configuration means equal
serializers; a failed write leaves nothing behind; reading never needs more than the bytes of the value.

Snapshots of serializers without configuration that take over the state of a few others.

The old snapshot of a simple serializer rejects every other class; the new one may then adopt it, by the rule in
`typeserializers.evolution.simple_evolution`.
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
    """A simple snapshot with a list of others whose values its serializer accepts."""

    adopted_snapshots: ClassVar[tuple[str, ...]] = ()
    """The stable names of the snapshots that are taken over."""


MAX_PROBLEMS = 20
"""How many misfits of one value an error tells."""


@frozen
class Codec(Generic[T]):
    """The hot-path form of a serializer: two plain functions.

    ``write(value)`` returns the bytes; ``read(data, position)`` returns the value and the position behind it. Both may
    raise any exception on bad input; `TypeSerializer.to_bytes` and `from_bytes` turn it into one that names the path.
    ``read`` may be handed truncated data: it may then return a position behind the end, which the caller must check.
    """

    write: Callable[[T], bytes]
    read: Callable[[bytes, int], tuple[T, int]]


class TypeSerializer(ABC, Generic[T]):
    """Writes and reads values of one type; see the module for the invariants.

    Instances are cheap and may be shared between threads unless `duplicate` says otherwise.
    """

    _codec: Codec[T] | None = None

    @abstractmethod
    def serialize(self, value: T, out: DataOutputView) -> None:
        """Appends the value to ``out``; raises `SerializationError`, with nothing appended, if it does not fit."""

    @abstractmethod
    def deserialize(self, source: DataInputView) -> T:
        """Reads one value; raises `EndOfDataError` or `MalformedDataError` for bytes that hold none."""

    @abstractmethod
    def snapshot_configuration(self) -> TypeSerializerSnapshot[T]:
        """The point-in-time snapshot that is persisted with the state."""

    @abstractmethod
    def create_instance(self) -> T:
        """An empty value of the type, such as 0 or an empty list."""

    @property
    def length(self) -> int:
        """The number of bytes of every value, or -1 when it varies."""
        return -1

    @property
    def minimum_length(self) -> int:
        """The least number of bytes that a value takes; bounds the counts that are read from untrusted bytes."""
        return max(self.length, 1)

    @property
    def python_type(self) -> type:
        """The class of the values; raises what `create_instance` does where that is how it is found out."""
        return type(self.create_instance())

    @property
    def type_name(self) -> str:
        """The type of the values as a person writes it, such as ``int`` or ``list[str]``, for issues and errors."""
        try:
            return self.python_type.__name__
        except Exception:
            # A class whose constructor rejects an empty value still has a serializer that can be named.
            return type(self).__name__

    @property
    def former_type_names(self) -> Sequence[str]:
        """The names that the type declares it had before; a union looks for its renamed members by them."""
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
        """Whether None is one of the intended values; a record rejects None in a field whose type is not optional."""
        return False

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        """Whether ``a == b`` implies equal encodings, so that values can stand for their bytes in a dict."""
        return False

    @property
    def may_reject_what_it_wrote(self) -> bool:
        """Whether reading bytes that were put together from parts, each of which was read, could find a fault.

        A migration reads such new bytes once before they count. False where reading runs nothing of a user's own (a
        constructor, a validator) and says no more than that the bytes are there; True, to be sure, for any class that
        is not of this library, unless it knows better. What is inside is asked for itself.
        """
        return type(self).__module__.partition(".")[0] != __name__.partition(".")[0]

    def copy(self, value: T) -> T:
        """A value that shares no mutable part with the given one."""
        return value if self.is_immutable_type else self.from_bytes(self.to_bytes(value))

    def duplicate(self) -> Self:
        """A serializer that another thread may use; itself when there is no mutable state.

        A serializer that learns while it writes hands on what it has learned so far.
        """
        return self

    def configuration(self) -> Hashable:
        """What tells two serializers of the same class apart; the base of equality. By default their snapshots do.

        Equal serializers read each other's bytes without a compatibility result: override it only where the snapshot
        says more than the bytes depend on, or to compare faster.
        """
        snapshot = self.snapshot_configuration()
        return () if isinstance(snapshot, SimpleTypeSerializerSnapshot) else snapshot_to_bytes(snapshot)

    @property
    def source_serializers(self) -> Sequence[TypeSerializer[Any]]:
        """Serializers of other values, from which a converter makes values of this one; none by default.

        They are not part of the configuration: what they say is which classes old state may be restored with.
        """
        return ()

    def problems(self, value: Any, path: str) -> Iterator[str]:
        """Yields ``path: reason`` for everything about the value that does not fit; yields nothing if unknown."""
        return iter(())

    @property
    def codec(self) -> Codec[T]:
        """The hot-path functions, made once per serializer."""
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
        """Emits the code that writes the value of the expression ``value``: here, a call of the codec."""
        emitter.append(f"{emitter.function.bind('write', self.codec.write)}({value})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        """Emits the code that reads one value, and returns the expression of it, valid after the next flush."""
        result = emitter.function.fresh("v")
        emitter.line(f"{result}, pos = {emitter.function.bind('read', self.codec.read)}(data, pos)")
        return result

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        """An expression that is true only of a value which fits and which its bytes give back unchanged; None, as here,
        if there is none. To be asked by `typeserializers.kernel.value_hooks.exact_condition`, which says what the
        arguments are.
        """
        return None

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        """An expression of about how many bytes the value of the expression takes up as an object; None, as here, if
        only its bytes tell. To be asked by `typeserializers.kernel.value_hooks.size_expression`.
        """
        return None

    def stepping_over(self, part: Callable[[TypeSerializer[Any]], TypeSerializer[Any]]) -> TypeSerializer[Any]:
        """What reads exactly the bytes of a value that nobody needs, and makes nothing of them that could fail.

        By default itself; of a composite, the same around what ``part`` returns for each of its parts. To be overridden
        where reading runs code of a user's own, with one of the classes of `typeserializers.kernel.stepping_over`,
        whose function of this name is the one to ask.
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
        """The encoding of one value; raises `SerializationError` naming the paths that do not fit."""
        try:
            return self.codec.write(value)
        except Exception as error:
            raise self.serialization_error(value, error) from error

    def from_bytes(self, data: bytes) -> T:
        """The value of exactly these bytes; raises `EndOfDataError`, `MalformedDataError`, `TrailingBytesError`."""
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
        """The exception for a value that failed to be written, with the paths of all misfits."""
        if isinstance(error, SerializationError):
            return error
        found: tuple[str, ...] = ()
        # Looking for the misfit may fail on the very value that could not be written.
        with contextlib.suppress(Exception):
            found = tuple(itertools.islice(self.problems(value, ""), MAX_PROBLEMS))
        return SerializationError(repr(self), found or (f"{type(error).__name__}: {error}",))

    def deserialization_error(self, data: bytes, error: Exception) -> StateFormatError:
        """The exception for bytes that failed to be read."""
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
        # A compiled codec is a generated function, which cannot be pickled; it is made again on first use.
        state = self.__dict__.copy()
        state.pop("_codec", None)
        return state
