"""Which sources a job reads, so that a source position is not taken for one of another source.

Spark's log counts what was read of each source of the query, by position, and does not say what the sources were. On a
directory that was moved it would read every file again, or fail with the name of one; the position of another kind of
source it cannot parse. So a checkpoint names the sources, as Spark's own plan does: ``FileSource[/data/in]``, ``rate``.

The schema of a source is not part of it: it may evolve, and what of it concerns the state is judged with the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from checkpointing.metadata.checkpoint_sections import SourcePositions
from streamjobs.errors import JobDefinitionError, JobRestoreError
from streamjobs.spark.sources.source_progress import number_of_sources
from streamjobs.user_errors import shown

__all__ = ["check_same_sources", "check_trigger", "named_sources"]

_TRIGGERS: Final = ("processingTime", "availableNow", "once")
_OTHER_SOURCES: Final = (
    "how far it has read says nothing about another source. Give it its former source back; or begin a new job "
    "directory from a savepoint with restore_source_progress=False, which reads the new source from its beginning"
)


def named_sources(frame: DataFrame) -> tuple[str, ...]:
    """The sources of a streaming DataFrame in the order of Spark's offsets."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    names = []
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.isStreaming():
            names.append(str(leaf.sourceName()))
    return tuple(names)


def check_same_sources(sources: tuple[str, ...], positions: SourcePositions | None, where: str) -> None:
    """Raises `JobRestoreError` if a source position, of the state at ``where``, is of other sources.

    ``positions`` are those of the checkpoint or savepoint; older ones do not name their sources, so only their number
    can be compared.
    """
    if positions is None:
        return
    if positions.sources is None:
        number = number_of_sources(positions.offsets)
        if number is not None and number != len(sources):
            raise JobRestoreError(
                f"the job reads {_listed(sources)}, {len(sources)} in number, and the state at {where} has read "
                f"{number} sources, which it does not name: {_OTHER_SOURCES}"
            )
        return
    if positions.sources == sources:
        return
    raise JobRestoreError(
        f"the job reads {_listed(sources)}, and the state at {where} has read {_listed(positions.sources)}: "
        f"{_OTHER_SOURCES}"
    )


def check_trigger(frame: DataFrame, trigger: Mapping[str, Any] | None) -> None:
    """Raises `JobDefinitionError` for a trigger that Spark would refuse, or that has no epochs."""
    examples = 'such as {"processingTime": "1 second"} or {"availableNow": True}'
    if trigger is None:
        return
    if not isinstance(trigger, Mapping):
        raise JobDefinitionError(
            f"trigger is {shown(trigger, 80)}; it takes the arguments of Spark's trigger as a dict, {examples}"
        )
    unknown = [name for name in trigger if name not in _TRIGGERS]
    if unknown:
        raise JobDefinitionError(
            f"trigger has {', '.join(map(repr, unknown))}, and takes one of {', '.join(_TRIGGERS)}, {examples}"
        )
    try:
        if trigger:
            frame.writeStream.trigger(**trigger)
    except (PySparkException, TypeError, ValueError) as error:
        raise JobDefinitionError(
            f"trigger is {shown(dict(trigger), 80)}, which Spark does not take: {str(error).splitlines()[0]}. "
            f"It takes one of {', '.join(_TRIGGERS)}, {examples}"
        ) from error


def _listed(sources: tuple[str, ...]) -> str:
    return ", ".join(sources) or "nothing"
