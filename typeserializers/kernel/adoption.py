"""Snapshots of serializers without configuration that take over the state of a few others.

The old snapshot of a simple serializer refuses every other class; the new one may then adopt it, by the rule in
`typeserializers.evolution.adoption_evolution`.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot

T = TypeVar("T")


class AdoptingTypeSerializerSnapshot(SimpleTypeSerializerSnapshot[T]):
    """A simple snapshot with a list of others whose values its serializer accepts."""

    adopted_snapshots: ClassVar[tuple[str, ...]] = ()
    """The stable names of the snapshots that are taken over."""
