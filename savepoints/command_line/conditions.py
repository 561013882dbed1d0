"""Conditions on entries as they are shown: ``value.sales>3``, ``key=shop 7``, ``value.note!=null``.

    condition := path operator text        path := name ("." name)*        operator := = | != | < | <= | > | >=

A path leads into the entry as `show --json` prints it. The text is read as JSON where it is JSON, and as it stands
otherwise, so ``key=7`` is a number, ``key="7"`` a text, and ``value=true`` neither. Where the path leads nowhere, or
the two sides cannot be compared, the condition does not hold.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["Condition", "namespace_condition", "parsed_condition"]

Condition = Callable[[Mapping[str, Any]], bool]

_CONDITION: Final = re.compile(r"\s*([^\s=!<>]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def parsed_condition(text: str) -> Condition:
    """The condition; raises `ValueError`, with an example, for what is none."""
    matched = _CONDITION.fullmatch(text)
    if matched is None:
        raise ValueError(
            f"{text!r} is no condition; write a path, one of {' '.join(_OPERATORS)}, and a value: value.n>3"
        )
    path, compare, wanted = matched[1].split("."), _OPERATORS[matched[2]], _value(matched[3])

    def holds(found: Mapping[str, Any]) -> bool:
        value: Any = found
        for name in path:
            if not isinstance(value, Mapping) or name not in value:
                return False
            value = value[name]
        if isinstance(value, bool) is not isinstance(wanted, bool):
            # To Python true is 1, and in JSON it is no number.
            return compare is operator.ne
        try:
            return bool(compare(value, wanted))
        except TypeError:
            return False

    return holds


def namespace_condition(text: str) -> Condition:
    """Whether an entry is in a namespace: text, or JSON; of an object the fields that are given: ``{"start": 0}``."""
    wanted = _value(text)

    def holds(found: Mapping[str, Any]) -> bool:
        namespace = found.get("namespace")
        if isinstance(wanted, Mapping) and isinstance(namespace, Mapping):
            return all(name in namespace and namespace[name] == value for name, value in wanted.items())
        return "namespace" in found and bool(namespace == wanted)

    return holds


def _value(text: str) -> Any:
    try:
        # Numbers that JSON does not know are shown as Python's texts for them.
        return json.loads(text, parse_constant=lambda constant: str(float(constant)))
    except ValueError:
        return text
