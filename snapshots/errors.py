"""The exceptions of everything that turns state into bytes and back.

They stand on the ground floor because snapshots, serializers and migrations all raise them. Each message says
what is wrong, where (a field path or a byte position) and what to do about it.

How a value is shown in an error message: short, and without ever raising.

The ``repr`` of a foreign object may fail, and that of an int beyond a few thousand digits does; neither may hide the
error that was about to be told.
"""

from __future__ import annotations

from typing import Any, Final

MAX_SHOWN_CHARACTERS: Final = 80

_SHORT_ESCAPES: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def shown(value: Any) -> str:
    """The value as text; what is longer than 80 characters is cut, and says so."""
    try:
        return cut(repr(value))
    except Exception as error:
        return f"a {type(value).__name__} (which cannot be shown: {type(error).__name__})"


def cut(text: str, characters: int = MAX_SHOWN_CHARACTERS) -> str:
    """The text, or so many characters of it with an ellipsis and how many there were."""
    return text if len(text) <= characters else f"{text[:characters]}... ({len(text)} characters)"


def misfit(path: str, value: Any, reason: object) -> str:
    """One line for `TypeSerializer.problems`: the path, the value and why it does not fit."""
    return f"{path or 'value'}: {shown(value)} {reason}"


def printable(text: str) -> str:
    """The text in one line: escapes instead of line ends and of control, bidirectional and invisible characters."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


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
        """The same rejection, with the place that the value was given to in front."""
        return SerializationError(f"{place}: {self.serializer_name}", self.problems)

    def at(self, step: str) -> SerializationError:
        """The same rejection, of a value that is a part of a larger one: ``step`` leads from that to the value."""
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
