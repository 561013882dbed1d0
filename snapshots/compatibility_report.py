"""A verdict as a tree of field paths, for people and for tools.

The findings of a verdict are a flat list of paths. Here they become a tree: a node for each segment of a path, which
holds the findings at that place and knows the worst that happens at or below it. Example:

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

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility

_SEGMENT: Final = re.compile(r"\.[^.\[{<]*|\[[^\]]*\]|\{[^}]*\}|<[^>]*>")

SEVERITY: Final = (
    FieldVerdict.AS_IS,
    FieldVerdict.RECONFIGURE,
    FieldVerdict.MIGRATE,
    FieldVerdict.LOSSY,
    FieldVerdict.REFUSE,
)


@define
class VerdictNode:
    """One place in a value: its findings, and the places inside it in order of discovery."""

    path: str
    segment: str
    findings: list[Finding] = field(factory=list)
    children: dict[str, VerdictNode] = field(factory=dict)

    @property
    def worst(self) -> FieldVerdict:
        """The worst that happens here or below: *refuse* > *lossy* > *migrate* > *reconfigure* > *as is*."""
        verdicts = [finding.verdict for finding in self.findings] + [child.worst for child in self.children.values()]
        return max(verdicts, key=SEVERITY.index, default=FieldVerdict.AS_IS)

    def to_dict(self) -> dict[str, Any]:
        """The node and everything below it as plain data."""
        return {
            "path": self.path,
            "verdict": self.worst.name,
            "findings": [
                {
                    "verdict": finding.verdict.name,
                    "rule": finding.rule,
                    "reason": finding.reason,
                    "fix": finding.fix,
                }
                for finding in self.findings
            ],
            "children": [child.to_dict() for child in self.children.values()],
        }

    def descend(self, path: str) -> VerdictNode:
        """The node of a path below this one, made if there is none."""
        node = self
        for segment in split_path(path):
            known = node.children.get(segment)
            if known is None:
                known = node.children[segment] = VerdictNode(node.path + segment, segment)
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


def verdict_tree(verdict: TypeSerializerSchemaCompatibility[Any]) -> VerdictNode:
    """The root of the tree; fields that did not change are nodes without findings."""
    root = VerdictNode("", "")
    for path in verdict.unchanged:
        root.descend(path)
    for finding in verdict.findings:
        root.descend(finding.path).findings.append(finding)
    return root


def format_tree(verdict: TypeSerializerSchemaCompatibility[Any]) -> str:
    """The tree as text: one line per place, with rule ids, reasons and fixes."""
    root = verdict_tree(verdict)
    lines = [verdict.kind.label, *(f"  {line}" for finding in root.findings for line in _told(finding))]
    lines += _format_children(root, "")
    return "\n".join(lines)


def _format_children(node: VerdictNode, indent: str) -> Iterator[str]:
    children = list(node.children.values())
    for index, child in enumerate(children):
        is_last = index == len(children) - 1
        name = child.segment
        # A place with nothing to say and one place inside is written in one line with it.
        while not child.findings and len(child.children) == 1:
            child = next(iter(child.children.values()))
            name += child.segment
        told = [line for finding in child.findings for line in _told(finding)]
        head = told[0] if told else ("" if child.children else FieldVerdict.AS_IS.value)
        yield f"{indent}{'└─' if is_last else '├─'} {name}{': ' + head if head else ''}"
        below = indent + ("   " if is_last else "│  ")
        for line in told[1:]:
            yield f"{below}  {line}"
        yield from _format_children(child, below)


def _told(finding: Finding) -> Iterator[str]:
    yield f"{finding.verdict.value} [{finding.rule}] {finding.reason}"
    if finding.fix:
        yield f"fix: {finding.fix}"
