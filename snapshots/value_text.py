"""How a value is shown in an error message: short, and without ever raising.

The ``repr`` of a foreign object may fail, and that of an int beyond a few thousand digits does; neither may hide the
error that was about to be told.
"""

from __future__ import annotations

from typing import Any, Final

MAX_SHOWN_CHARACTERS: Final = 80


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
