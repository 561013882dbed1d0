"""HTML that is known to be safe, made of texts that are not.

`Html` is what was put together here. A function that takes `str` escapes it, one that takes `Html` puts it in as it is;
so a name that holds markup is shown and never obeyed. What no page can show (control characters, halves of surrogate
pairs) is shown by its number.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import NewType

__all__ = ["Html", "element", "joined", "text"]

Html = NewType("Html", str)


def text(content: object) -> Html:
    """Any text, escaped."""
    shown = "".join(one if one.isprintable() else _number(one) for one in str(content))
    return Html(html.escape(shown, quote=True))


def joined(parts: Iterable[Html], between: str = "") -> Html:
    """One part behind the other."""
    return Html(between.join(parts))


def element(name: str, content: Html | None = None, attributes: Mapping[str, object] | None = None) -> Html:
    """An element; without content one that has none. Attributes are escaped, and those that are None left out."""
    given = "".join(f' {key}="{text(value)}"' for key, value in (attributes or {}).items() if value is not None)
    return Html(f"<{name}{given}>" if content is None else f"<{name}{given}>{content}</{name}>")


def _number(character: str) -> str:
    return "\\n" if character == "\n" else f"\\x{ord(character):02x}"
