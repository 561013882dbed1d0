"""How a value is shown in an error message: short, and without ever raising.

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
