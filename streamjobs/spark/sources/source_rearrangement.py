"""A source log of Spark for other sources, or the same in another order: its lines and files by new position (pure).

    former log, of a and b          the log of b, c and a, where c is new
    offsets/7  {"logOffset":4}      offsets/7  {"logOffset":2}
               {"logOffset":2}                 -
                                               {"logOffset":4}
    sources/0/...  of a             sources/0/...  of b
    sources/1/...  of b             sources/2/...  of a

Nothing else of the log says which source it is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from attrs import frozen

from checkpointing.metadata.checkpoint_sections import ReadSource
from streamjobs.errors import SourceProgressMismatchError
from streamjobs.spark.sources.source_matching import check_one_log_each, lines_of
from streamjobs.spark.sources.source_offsets import NO_OFFSET, OffsetLines
from streamjobs.spark.sources.source_order_file import SOURCE_ORDER_FILE_NAME, Schema, source_order

__all__ = ["RearrangedLog", "Rearrangement"]

_OFFSETS: Final = re.compile("offsets/[0-9]+")
_SOURCES: Final = "sources/"


@frozen(slots=False)
class Rearrangement:
    """From the sources that a log is of to those that it is to be of.

    ``begun_anew`` are the uids of sources whose lines are not taken over.
    """

    former: tuple[ReadSource, ...]
    now: tuple[ReadSource, ...]
    begun_anew: frozenset[str] = frozenset()

    @cached_property
    def lines(self) -> tuple[int | None, ...]:
        """For each of the sources now the line of the former ones that is its own; None for one that begins anew."""
        lines = lines_of(self.former, self.now)
        return tuple(None if one.uid in self.begun_anew else line for one, line in zip(self.now, lines, strict=True))

    @property
    def changes_nothing(self) -> bool:
        """Whether the log is in this order already."""
        return self.lines == tuple(range(len(self.former))) and self.former_logs == self.logs

    @property
    def former_logs(self) -> tuple[str, ...]:
        """The names of the former sources' own logs, by line."""
        return tuple(str(line) if one.log is None else one.log for line, one in enumerate(self.former))

    @property
    def logs(self) -> tuple[str, ...]:
        """Those of the sources now."""
        return tuple(str(line) if one.log is None else one.log for line, one in enumerate(self.now))

    def offsets(self, content: bytes) -> bytes:
        """The content of a file of offsets.

        Raises `JobRestoreError` as `check_one_log_each` does, and `SourceProgressMismatchError` if the file is not of
        the former sources.
        """
        if self.changes_nothing:
            return content
        found = OffsetLines.of(content)
        former = found.by_log(self.former_logs)
        if len(former) != len(self.former):
            raise SourceProgressMismatchError(
                f"Spark's source log has {len(former)} offsets for {len(self.former)} sources: its files do not belong "
                f"together. Bring them back from a backup, or start from a savepoint in a new job directory"
            )
        offsets = [NO_OFFSET if line is None else former[line] for line in self.lines]
        check_one_log_each(self.now, offsets)
        return found.with_offsets(offsets, self.logs)


class RearrangedLog(Mapping[str, bytes]):
    """The files of a log after a rearrangement: relative name to content, which is read when it is asked for.

    ``schemas`` are those of the sources now; none if they are not known.
    """

    def __init__(
        self, files: Mapping[str, bytes], rearrangement: Rearrangement, schemas: Sequence[Schema] = ()
    ) -> None:
        self._files = files
        self._rearrangement = rearrangement
        self._schemas = tuple(schemas)
        self._names = {name: name for name in files if not name.startswith(_SOURCES)}
        self._names[SOURCE_ORDER_FILE_NAME] = SOURCE_ORDER_FILE_NAME
        by_log: dict[str, list[str]] = {}
        for name in files:
            if name.startswith(_SOURCES):
                log, _, rest = name.removeprefix(_SOURCES).partition("/")
                by_log.setdefault(log, []).append(rest)
        for log, line in zip(rearrangement.logs, rearrangement.lines, strict=True):
            former = None if line is None else rearrangement.former_logs[line]
            for rest in () if former is None else by_log.get(former, ()):
                self._names[f"{_SOURCES}{log}/{rest}"] = f"{_SOURCES}{former}/{rest}"

    def __getitem__(self, name: str) -> bytes:
        if name == SOURCE_ORDER_FILE_NAME:
            return source_order(self._rearrangement.now, self._schemas)
        content = self._files[self._names[name]]
        return self._rearrangement.offsets(content) if _OFFSETS.fullmatch(name) else content

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
