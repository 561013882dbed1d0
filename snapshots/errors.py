"""The exceptions of everything that turns state into bytes and back.

They stand on the ground floor because snapshots, serializers and migrations all raise them. Each message says
what is wrong, where (a field path or a byte position) and what to do about it.
"""

from __future__ import annotations


class StateFormatError(Exception):
    """The root of the errors about bytes, serializers and their snapshots."""


class EndOfDataError(StateFormatError, EOFError):
    """The bytes ended before the value did."""


class MalformedDataError(StateFormatError, ValueError):
    """The bytes are complete but cannot be what they claim to be."""


class TrailingBytesError(MalformedDataError):
    """A value was read whole and bytes are left over."""


class SerializationError(StateFormatError, ValueError):
    """A value does not fit its serializer; nothing was written.

    ``problems`` holds one line per misfit, each beginning with the path of the field.
    """

    def __init__(self, serializer_name: str, problems: tuple[str, ...]) -> None:
        self.serializer_name = serializer_name
        self.problems = problems
        # A misfit of the value itself has "value" for its path, which the message says already.
        shown = "; ".join(problem.removeprefix("value: ") for problem in problems)
        super().__init__(f"{serializer_name} cannot write this value: {shown}")

    def within(self, place: str) -> SerializationError:
        """The same refusal, with the place that the value was given to in front."""
        return SerializationError(f"{place}: {self.serializer_name}", self.problems)

    def at(self, step: str) -> SerializationError:
        """The same refusal, of a value that is a part of a larger one: ``step`` leads from that to the value."""
        paths = (problem.removeprefix("value: ") for problem in self.problems)
        problems = [f"{step}{path}" if path.startswith((".", "[", "{")) else f"{step}: {path}" for path in paths]
        return SerializationError(self.serializer_name, tuple(problems))

    def __reduce__(self) -> tuple[type[SerializationError], tuple[str, tuple[str, ...]]]:
        return type(self), (self.serializer_name, self.problems)


class SnapshotFormatError(StateFormatError):
    """The bytes of a serializer snapshot are damaged, of an unknown version, or name an unknown class."""


class UnknownSnapshotError(SnapshotFormatError):
    """A serializer snapshot is of a class that this process does not know: it is not registered, or not importable."""


class UnresolvableSerializerError(StateFormatError):
    """A snapshot describes a serializer that cannot be rebuilt in this process."""
