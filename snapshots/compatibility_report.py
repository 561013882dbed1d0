"""A compatibility result as a tree of field paths, for people and for tools.

The issues of a compatibility result are a flat list of paths. Here they become a tree: a node for each segment of a
path, which holds the issues at that place and knows the worst that happens at or below it. Example:

    compatible after migration
    ├─ .flights: as is
    ├─ .minutes_late: migrate [field-renamed] was late
    │    migrate [field-widened] int is widened to long
    └─ .legs[]
       └─ .origin: lossy [field-removed] the field is gone, its values are lost
            fix: It looks like a rename to source: declare metadata=former_names("origin")
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from attrs import define, field

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility, TypeSerializerSchemaCompatibility

_SEGMENT: Final = re.compile(r"\.[^.\[{<]*|\[[^\]]*\]|\{[^}]*\}|<[^>]*>")

SEVERITY: Final = (
    FieldCompatibility.AS_IS,
    FieldCompatibility.RECONFIGURE,
    FieldCompatibility.MIGRATE,
    FieldCompatibility.LOSSY,
    FieldCompatibility.REJECT,
)


@define
class CompatibilityNode:
    """One place in a value: its issues, and the places inside it in order of discovery."""

    path: str
    segment: str
    issues: list[CompatibilityIssue] = field(factory=list)
    children: dict[str, CompatibilityNode] = field(factory=dict)

    @property
    def worst(self) -> FieldCompatibility:
        """The worst that happens here or below: *reject* > *lossy* > *migrate* > *reconfigure* > *as is*."""
        compatibilities = [issue.compatibility for issue in self.issues] + [
            child.worst for child in self.children.values()
        ]
        return max(compatibilities, key=SEVERITY.index, default=FieldCompatibility.AS_IS)

    def to_dict(self) -> dict[str, Any]:
        """The node and everything below it as plain data."""
        return {
            "path": self.path,
            "verdict": self.worst.name,
            "findings": [
                {
                    "verdict": issue.compatibility.name,
                    "rule": issue.rule,
                    "reason": issue.reason,
                    "fix": issue.fix,
                }
                for issue in self.issues
            ],
            "children": [child.to_dict() for child in self.children.values()],
        }

    def descend(self, path: str) -> CompatibilityNode:
        """The node of a path below this one, made if there is none."""
        node = self
        for segment in split_path(path):
            known = node.children.get(segment)
            if known is None:
                known = node.children[segment] = CompatibilityNode(node.path + segment, segment)
            node = known
        return node


def split_path(path: str) -> list[str]:
    """The segments of a path, such as ``.legs``, ``[]`` and ``.origin`` of ``.legs[].origin``."""
    segments, position = [], 0
    while position < len(path):
        match = _SEGMENT.match(path, position)
        # What is no segment by the grammar still belongs to the path and is kept whole.
        end = match.end() if match is not None and match.end() > position else len(path)
        segments.append(path[position:end])
        position = end
    return segments


def compatibility_tree(compatibility: TypeSerializerSchemaCompatibility[Any]) -> CompatibilityNode:
    """The root of the tree; fields that did not change are nodes without issues."""
    root = CompatibilityNode("", "")
    for path in compatibility.unchanged:
        root.descend(path)
    for issue in compatibility.issues:
        root.descend(issue.path).issues.append(issue)
    return root


def format_tree(compatibility: TypeSerializerSchemaCompatibility[Any]) -> str:
    """The tree as text: one line per place, with rule ids, reasons and fixes."""
    root = compatibility_tree(compatibility)
    lines = [compatibility.kind.label, *(f"  {line}" for issue in root.issues for line in _told(issue))]
    lines += _format_children(root, "")
    return "\n".join(lines)


def _format_children(node: CompatibilityNode, indent: str) -> Iterator[str]:
    children = list(node.children.values())
    for index, child in enumerate(children):
        is_last = index == len(children) - 1
        name = child.segment
        # A place with nothing to say and one place inside is written in one line with it.
        while not child.issues and len(child.children) == 1:
            child = next(iter(child.children.values()))
            name += child.segment
        told = [line for issue in child.issues for line in _told(issue)]
        head = told[0] if told else ("" if child.children else FieldCompatibility.AS_IS.value)
        yield f"{indent}{'└─' if is_last else '├─'} {name}{': ' + head if head else ''}"
        below = indent + ("   " if is_last else "│  ")
        for line in told[1:]:
            yield f"{below}  {line}"
        yield from _format_children(child, below)


def _told(issue: CompatibilityIssue) -> Iterator[str]:
    yield f"{issue.compatibility.value} [{issue.rule}] {issue.reason}"
    if issue.fix:
        yield f"fix: {issue.fix}"
