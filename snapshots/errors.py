"""The exceptions of snapshots, serializers and migrations, and how their messages format values.

Each message says what is wrong, where (a field path or a byte position) and how to fix it. Values are formatted short
and without raising: the ``repr`` of a foreign object may fail, and so does that of an int with thousands of digits.
"""

from __future__ import annotations

from typing import Any, Final

MAX_SHOWN_CHARACTERS: Final = 80

_SHORT_ESCAPES: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def format_value(value: Any, characters: int = MAX_SHOWN_CHARACTERS) -> str:
    """Formats the ``repr`` of the value in one line; a longer text is cut and marked as such."""
    try:
        text = one_line(repr(value))
    except Exception as error:
        return f"a {type(value).__name__} (which cannot be shown: {type(error).__name__})"
    return cut(text, characters)


def one_line(text: str) -> str:
    """Joins the non-empty lines of a text with bars, and escapes characters that are not printable."""
    return printable(" | ".join(line.strip() for line in text.splitlines() if line.strip()))


def cut(text: str, characters: int = MAX_SHOWN_CHARACTERS) -> str:
    """Cuts the text to that many characters and adds an ellipsis and the original length."""
    return text if len(text) <= characters else f"{text[:characters]}... ({len(text)} characters)"


def misfit(path: str, value: Any, reason: object) -> str:
    """Formats one line for `TypeSerializer.problems`: path, value and reason."""
    return f"{path or 'value'}: {format_value(value)} {reason}"


def printable(text: str) -> str:
    """Escapes line ends and control, bidirectional and invisible characters, so that the text is one line."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class StateFormatError(Exception):
    """The base class of all errors about bytes, serializers and snapshots."""


class EndOfDataError(StateFormatError, EOFError):
    """The bytes ended before the value did."""


class MalformedDataError(StateFormatError, ValueError):
    """The bytes are complete but invalid."""


class UnknownSubclassError(MalformedDataError):
    """A value is of a subclass whose fields are unknown, so its end cannot be found."""


class TrailingBytesError(MalformedDataError):
    """Bytes are left over after the value."""


class SerializationError(StateFormatError, ValueError):
    """A value does not fit its serializer; nothing was written.

    Attributes:
        serializer_name: The serializer that rejected the value.
        problems: One line per problem, each with the path of the field first.
    """

    def __init__(self, serializer_name: str, problems: tuple[str, ...]) -> None:
        self.serializer_name = serializer_name
        self.problems = problems
        # The message already says "value".
        shown = "; ".join(problem.removeprefix("value: ") for problem in problems)
        super().__init__(f"{serializer_name} cannot write this value: {shown}")

    def within(self, place: str) -> SerializationError:
        """Returns the error with the place that received the value in front of the serializer."""
        return SerializationError(f"{place}: {self.serializer_name}", self.problems)

    def at(self, step: str) -> SerializationError:
        """Returns the error for the enclosing value; ``step`` is the path segment from it to this value."""
        paths = (problem.removeprefix("value: ") for problem in self.problems)
        problems = [f"{step}{path}" if path.startswith((".", "[", "{")) else f"{step}: {path}" for path in paths]
        return SerializationError(self.serializer_name, tuple(problems))

    def __reduce__(self) -> tuple[type[SerializationError], tuple[str, tuple[str, ...]]]:
        return type(self), (self.serializer_name, self.problems)


class SnapshotFormatError(StateFormatError):
    """The bytes of a serializer snapshot are damaged, of an unknown version, or name an unknown class."""


class UnknownSnapshotError(SnapshotFormatError):
    """The class of a serializer snapshot is unknown in this process: not registered, or not importable."""


class UnresolvableSerializerError(StateFormatError):
    """A snapshot describes a serializer that this process cannot restore."""
