"""The positions of sources in the forms of both runtimes, so that a job may change its runtime over a savepoint.

The local runtime stores the positions of a replayable source as operator state, and Spark in its record of offsets:

    local runtime    operator state of the uid: the split list ("payments-0", 17), ("payments-1", 4)
    Spark            a line of the offsets of a batch: {"payments-0": 17, "payments-1": 4}

Each runtime reads the form of the other one. If the source identifies its splits, there is also:

    local runtime    the split list "identities": ("payments-0", "Vd0..."), ("payments-1", "Vd0...")
    Spark            a key of the line: "identities": {"payments-0": "Vd0...", "payments-1": "Vd0..."}
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, field, frozen

from snapshots.errors import format_value
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import ReadSource, SourcePositions
from statebackend.savepoint.restored_state import SOURCE_POSITIONS, SPLIT_IDENTITIES, RestoredState
from statebackend.state.operator_state_backend import OperatorStateBackend, OperatorStateBackendParameters
from statebackend.state.operator_state_descriptors import SplitListStateDescriptor
from statebackend.state.operator_state_redistribution import restored_operator_state
from statebackend.streaming.errors import StreamJobError
from statebackend.streaming.stream_graph import ReplayableSource

SOURCE_FORMAT: Final = "statebackend-source"
"""Spark's name of a source that is read by its splits."""

SPLITS: Final = SplitListStateDescriptor(SOURCE_POSITIONS, tuple[str, int])

IDENTITIES: Final = SplitListStateDescriptor(SPLIT_IDENTITIES, tuple[str, str])

_BATCH: Final = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
"""What Spark stores of a batch before its offsets."""

NO_OFFSET: Final = "-"
"""The line of a source that has no offset yet."""


@frozen
class SplitOffset:
    """The positions of the splits of a source, and the identities of those that have one."""

    positions: Mapping[str, int] = field(factory=dict)
    identities: Mapping[str, str] = field(factory=dict)

    @classmethod
    def of_json(cls, offset: Mapping[str, Any]) -> SplitOffset:
        """Parse the offset of Spark."""
        identities = offset.get(SPLIT_IDENTITIES)
        return cls(
            {split: position for split, position in offset.items() if type(position) is int},
            identities if isinstance(identities, dict) else {},
        )

    @classmethod
    def of_state(cls, backend: OperatorStateBackend) -> SplitOffset:
        """Read the state of the local runtime. Sources without identities do not have that state."""
        has_identities = SPLIT_IDENTITIES in backend.state_names()
        return cls(
            dict(backend.get_state(SPLITS).get() or ()),
            dict(backend.get_state(IDENTITIES).get() or ()) if has_identities else {},
        )

    def to_json(self) -> dict[str, Any]:
        """The offset of Spark."""
        return {**self.positions, **({SPLIT_IDENTITIES: dict(self.identities)} if self.identities else {})}

    def identified_by(self, source: ReplayableSource, where: str, option: str) -> SplitOffset:
        """Return the offset with the present identities. Raises `StreamJobError` if a split was created again.

        ``option`` is that of the program for a source whose uid has changed.
        """
        identify = getattr(source, "split_identities", None)
        found: Mapping[str, str] = {} if identify is None else identify()
        for split, position in sorted(self.positions.items()):
            if split in found and self.identities.get(split, found[split]) != found[split]:
                raise StreamJobError(
                    f"{where}: split {split!r}, which was read up to position {position}, was deleted and created "
                    f"again, so the position is not valid. Give the source another uid, and pass {option}"
                )
        known = {split: found[split] for split in self.positions if split in found}
        return evolve(self, identities={**self.identities, **known})


@frozen
class OffsetLines:
    """The lines of a file of offsets. ``version`` is its first line, ``batch`` the second, about the batch itself."""

    version: str
    batch: str
    lines: tuple[str, ...]

    @property
    def damage(self) -> str | None:
        """Why Spark cannot read the file, None if it can or if the format is unknown."""
        if not self.version:
            return "it is empty"
        if not re.fullmatch("v[0-9]+", self.version):
            return f"its first line is {format_value(self.version, 20)} and no version"
        if self.version not in ("v1", "v2"):
            return None
        if not is_json_object(self.batch):
            return "its second line is not a whole JSON object"
        if self.version == "v1" and not self.lines:
            return "it has no offsets"
        offsets = self.lines if self.version == "v1" else [line.partition(":")[2] for line in self.lines]
        is_cut = any(one.startswith("{") and not is_json_object(one) for one in offsets)
        return "one of its offsets is not whole" if is_cut else None

    @classmethod
    def of(cls, content: bytes) -> OffsetLines:
        """Parse a file, damaged or not."""
        version, _, rest = content.decode("utf-8", "surrogateescape").partition("\n")
        batch, *lines = rest.split("\n")
        return cls(version, batch, tuple(lines))

    def by_log(self, logs: Sequence[str]) -> tuple[str, ...]:
        """The offset of each source; ``logs`` are the names of their logs by position."""
        if self.version == "v1":
            return self.lines
        named = dict(line.split(":", 1) for line in self.lines if ":" in line)
        return tuple(named.get(log, NO_OFFSET) for log in logs)

    def with_offsets(self, offsets: Sequence[str], logs: Sequence[str]) -> bytes:
        """The content of the file with these offsets; ``logs`` are the names of the sources' logs."""
        lines: Sequence[str] = offsets
        if self.version != "v1":
            named = {log: offset for log, offset in zip(logs, offsets, strict=True) if offset != NO_OFFSET}
            lines = [f"{log}:{offset}" for log, offset in named.items()]
        return "\n".join((self.version, self.batch, *lines)).encode("utf-8", "surrogateescape")


def is_json_object(text: str) -> bool:
    """Whether a line is one complete JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def positions_backend(
    uid: str, restored: RestoredState | None, own: CheckpointFileSystem, file_prefix: str
) -> OperatorStateBackend:
    """Return a backend with the positions of a source, the state `SPLITS`."""
    former = None if restored is None else restored.operator(uid)
    files = own if restored is None else restored.file_system
    whole = None
    if former is not None:
        [whole] = restored_operator_state([subtask.operator for subtask in former.subtasks], files, 1)
    parameters = OperatorStateBackendParameters(
        operator_uid=uid,
        file_system=own,
        file_prefix=file_prefix,
        restore=whole if whole is not None and whole.states else None,
    )
    return OperatorStateBackend(parameters)


def offset_of_splits(metadata_positions: SourcePositions | None, uid: str) -> SplitOffset:
    """Return the positions of a source by split, from Spark's offsets; empty without them."""
    if metadata_positions is None:
        return SplitOffset()
    for source, line in _lines_of(metadata_positions):
        if source.uid == uid and source.name == SOURCE_FORMAT and is_json_object(line):
            return SplitOffset.of_json(json.loads(line))
    return SplitOffset()


def sources_with_offsets(positions: SourcePositions) -> Sequence[ReadSource]:
    """Return Spark's sources that have read something."""
    return [source for source, line in _lines_of(positions) if line != NO_OFFSET]


def _lines_of(positions: SourcePositions) -> Iterable[tuple[ReadSource, str]]:
    """Each source with its offset, which is empty if the offsets are damaged."""
    sources = positions.sources or ()
    logs = [str(place) if one.log is None else one.log for place, one in enumerate(sources)]
    lines = OffsetLines.of(positions.offsets).by_log(logs)
    return zip(sources, [*lines, *("" for _ in sources)], strict=False)


def are_of_splits(positions: SourcePositions | None) -> bool:
    """Whether all positions are those of splits, so that nothing else is needed to continue."""
    sources = None if positions is None else positions.sources
    return bool(sources) and all(one.name == SOURCE_FORMAT for one in sources or ())


def with_source_positions(state: RestoredState, uids: Collection[str]) -> RestoredState:
    """Return the state of a local job with the positions of these sources in the form of Spark, if it has any."""
    if state.metadata.source_positions is not None:
        return state
    found: dict[str, SplitOffset] = {}
    for uid in sorted(uids):
        with positions_backend(uid, state, state.file_system, "unused") as backend:
            splits = SplitOffset.of_state(backend)
        if splits.positions:
            found[uid] = splits
    if not found:
        return state
    lines = [json.dumps(splits.to_json(), sort_keys=True, separators=(",", ":")) for splits in found.values()]
    positions = SourcePositions(
        batch_id=0,
        offsets="\n".join(("v1", _BATCH, *lines)).encode(),
        sources=tuple(ReadSource(SOURCE_FORMAT, uid, str(place)) for place, uid in enumerate(found)),
    )
    return RestoredState(evolve(state.metadata, source_positions=positions), state.file_system)
