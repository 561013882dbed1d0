"""Formats a compatibility result as a tree of field paths, for people and for tools.

A result has a flat list of issues. The tree has a node for each path segment, with the issues at that path. Example:

    compatible after migration
    ├─ .flights: compatible as is
    ├─ .minutes_late: renamed [field-renamed] was late
    │    widened [field-widened] int32 is widened to int64
    └─ .legs[]
       └─ .origin: removed (data loss) [field-removed] the field is gone, its values are lost
            fix: It looks like a rename to source: declare source: Annotated[str, former_names("origin")]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from attrs import define, field

from snapshots.compatibility import (
    CompatibilityIssue,
    CompatibilityKind,
    FieldCompatibility,
    TypeSerializerSchemaCompatibility,
)

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
    """One path in a value: its issues, and the paths inside it in order of discovery."""

    path: str
    segment: str
    issues: list[CompatibilityIssue] = field(factory=list)
    children: dict[str, CompatibilityNode] = field(factory=dict)

    @property
    def worst(self) -> FieldCompatibility:
        """The worst compatibility here or below: *reject* > *lossy* > *migrate* > *reconfigure* > *as is*."""
        compatibilities = [issue.compatibility for issue in self.issues] + [
            child.worst for child in self.children.values()
        ]
        return max(compatibilities, key=SEVERITY.index, default=FieldCompatibility.AS_IS)

    def to_dict(self) -> dict[str, Any]:
        """Returns the node and everything below it as plain data."""
        return {
            "path": self.path,
            "compatibility": self.worst.name,
            "issues": [
                {
                    "compatibility": issue.compatibility.name,
                    "rule": issue.rule,
                    "reason": issue.reason,
                    "fix": issue.fix,
                }
                for issue in self.issues
            ],
            "children": [child.to_dict() for child in self.children.values()],
        }

    def descend(self, path: str) -> CompatibilityNode:
        """Returns the node of a path below this one; creates it if it does not exist."""
        node = self
        for segment in split_path(path):
            known = node.children.get(segment)
            if known is None:
                known = node.children[segment] = CompatibilityNode(node.path + segment, segment)
            node = known
        return node


def split_path(path: str) -> list[str]:
    """Splits a path into segments: ``.legs[].origin`` has ``.legs``, ``[]`` and ``.origin``."""
    segments, position = [], 0
    while position < len(path):
        match = _SEGMENT.match(path, position)
        # A rest that does not match the grammar stays one segment.
        end = match.end() if match is not None and match.end() > position else len(path)
        segments.append(path[position:end])
        position = end
    return segments


def compatibility_tree(compatibility: TypeSerializerSchemaCompatibility[Any]) -> CompatibilityNode:
    """Returns the root of the tree; unchanged fields are nodes without issues."""
    root = CompatibilityNode("", "")
    for path in compatibility.unchanged:
        root.descend(path)
    for issue in compatibility.issues:
        root.descend(issue.path).issues.append(issue)
    return root


def format_tree(compatibility: TypeSerializerSchemaCompatibility[Any]) -> str:
    """Returns the tree as text: one line per path, with rule ids, reasons and fixes."""
    root = compatibility_tree(compatibility)
    lines = [compatibility.kind.label, *(f"  {line}" for issue in root.issues for line in _issue_lines(issue))]
    lines += _format_children(root, "")
    return "\n".join(lines)


def _format_children(node: CompatibilityNode, indent: str) -> Iterator[str]:
    children = list(node.children.values())
    for index, child in enumerate(children):
        is_last = index == len(children) - 1
        name = child.segment
        # A path without issues and with one path inside shares its line.
        while not child.issues and len(child.children) == 1:
            child = next(iter(child.children.values()))
            name += child.segment
        issue_lines = [line for issue in child.issues for line in _issue_lines(issue)]
        head = issue_lines[0] if issue_lines else ("" if child.children else CompatibilityKind.AS_IS.label)
        yield f"{indent}{'└─' if is_last else '├─'} {name}{': ' + head if head else ''}"
        below = indent + ("   " if is_last else "│  ")
        for line in issue_lines[1:]:
            yield f"{below}  {line}"
        yield from _format_children(child, below)


def _issue_lines(issue: CompatibilityIssue) -> Iterator[str]:
    yield f"{issue.change} [{issue.rule}] {issue.reason}"
    if issue.fix:
        yield f"fix: {issue.fix}"
