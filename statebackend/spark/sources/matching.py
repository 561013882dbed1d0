"""Whose each line of Spark's source log is: what the job reads, the log has, and the state has read, matched by uid.

Pure. A source of the program has a uid, and may read several of Spark's, which count up in their order; so a line is
known by uid and place within it. Sources that were given no uid, and those of checkpoints that know none, are known by
their order alone:

    the state has               the job has                     they are
    ------------------------    ----------------------------    ----------------------------------------------------
    no uids                     as many, of the same names      the same, in their order; whatever uids they have now
    no uids                     anything else                   what `uid_of_place` calls those of the state
    uids                        the uid                         the same, if they read the same
    uids                        not the uid                     dropped: rejected, unless the program says so
    not the uid                 the uid                         new, and read from the beginning

Among sources without a uid none comes or goes: it could not be told which.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from attrs import evolve

from statebackend.checkpoint.metadata import ReadSource, SourcePositions
from statebackend.spark.sources.progress import number_of_offsets
from statebackend.streaming.errors import JobRestoreError
from statebackend.streaming.output_tag import is_uid_of_place, uid_of_place

__all__ = ["check_kept", "check_one_log_each", "former_sources", "lines_of", "with_uids"]

_OTHER_SOURCES = (
    "how far it has read says nothing about another source. Give it its former source back; or begin a new job "
    "directory from a savepoint with restore_source_progress="
)


def former_sources(
    positions: SourcePositions | None, of_log: Sequence[ReadSource] | None, now: Sequence[ReadSource], where: str
) -> tuple[ReadSource, ...] | None:
    """What the positions of a checkpoint, at ``where``, are of, under the uids that the job's own sources have.

    ``of_log`` are the sources of the log, if it says so: they may have uids since the checkpoint. None if there are no
    positions, or they do not say of how many sources they are. Raises `JobRestoreError` if they do not name their
    sources, and are of more or fewer than the job's.
    """
    if positions is None:
        return None
    if positions.sources is not None:
        return with_uids(with_uids(positions.sources, of_log or ()), now)
    number = number_of_offsets(positions.offsets)
    if number is None:
        return None
    if number != len(now):
        raise JobRestoreError(
            f"the job reads {_listed(now)}, {len(now)} in number, and the state at {where} has read {number} sources, "
            f"which it does not name: {_OTHER_SOURCES}False, which reads the new sources from their beginning"
        )
    return tuple(now)


def lines_of(former: Sequence[ReadSource], now: Sequence[ReadSource]) -> tuple[int | None, ...]:
    """For each of Spark's sources now the line of the former ones that is its own; None for one that begins again."""
    lines = {key: line for line, key in enumerate(_keys(former))}
    return tuple(lines.get(key) for key in _keys(now))


def check_kept(
    former: Sequence[ReadSource], now: Sequence[ReadSource], where: str, allowed_dropped: Collection[str] = ()
) -> None:
    """Raises `JobRestoreError` unless the job has the sources of the state at ``where``, and each reads the same.

    ``allowed_dropped`` are the uids of sources that the program gives up.
    """
    was, reads = _names_by_uid(former), _names_by_uid(now)
    before, after = (sorted(filter(is_uid_of_place, names)) for names in (was, reads))
    if before and after and before != after:
        raise JobRestoreError(
            f"the job has {len(after)} sources without a uid ({_listed_names(reads, after)}), and the state at {where} "
            f"has read {len(before)} ({_listed_names(was, before)}): they are known by their order only, so it cannot "
            f"be told which came or went. Give every source a uid, from_dataframe(..., uid=...); those of the state "
            f"are called {', '.join(map(repr, before))}, in their order"
        )
    for uid, names in was.items():
        if uid not in reads and uid not in allowed_dropped:
            raise JobRestoreError(
                f"the state at {where} has read the source {uid!r} ({', '.join(names)}), which the job no longer has: "
                f"what it would still bring would be lost. Give the source that goes on from it this uid, with "
                f"from_dataframe(..., uid={uid!r}); or pass allow_dropped_sources=[{uid!r}] to go on without it"
            )
        if uid in reads and reads[uid] != names:
            anew = "False" if len(reads) == 1 else f"{{{uid!r}: False}}"
            raise JobRestoreError(
                f"the source {uid!r} of the job reads {', '.join(reads[uid])}, and the state at {where} has read "
                f"{', '.join(names)}: {_OTHER_SOURCES}{anew}, which reads the new source from its beginning"
            )


def check_one_log_each(now: Sequence[ReadSource], offsets: Sequence[str]) -> None:
    """Raises `JobRestoreError` if two of Spark's sources have one log, and ``offsets`` that are not the same.

    A DataFrame that is used in two sources of the program is read once by Spark, and has two lines.
    """
    first: dict[str | None, int] = {}
    for position, source in enumerate(now):
        other = position if source.log is None else first.setdefault(source.log, position)
        if offsets[position] != offsets[other]:
            raise JobRestoreError(
                f"the sources {now[other].uid!r} and {source.uid!r} are made of one streaming DataFrame, which Spark "
                f"reads once for both, and they are not read equally far: {offsets[other]} and {offsets[position]}. "
                f"Make a DataFrame of its own for each, with spark.readStream"
            )


def with_uids(former: Sequence[ReadSource], now: Sequence[ReadSource]) -> tuple[ReadSource, ...]:
    """The former sources under the uids that they have now, if only their order says which they are."""
    is_by_order = all(one.uid is None or is_uid_of_place(one.uid) for one in former)
    if is_by_order and [one.name for one in former] == [one.name for one in now]:
        return tuple(
            evolve(one, uid=other.uid, log=one.log or other.log) for one, other in zip(former, now, strict=True)
        )
    return tuple(evolve(one, uid=uid_of_place(place)) if one.uid is None else one for place, one in enumerate(former))


def _keys(sources: Sequence[ReadSource]) -> list[tuple[str | None, int]]:
    uids = [one.uid for one in sources]
    return [(uid, uids[:place].count(uid)) for place, uid in enumerate(uids)]


def _names_by_uid(sources: Sequence[ReadSource]) -> Mapping[str, list[str]]:
    names: dict[str, list[str]] = {}
    for one in sources:
        names.setdefault(one.uid or "", []).append(one.name)
    return names


def _listed(sources: Sequence[ReadSource]) -> str:
    return ", ".join(one.name for one in sources) or "nothing"


def _listed_names(names: Mapping[str, Sequence[str]], uids: Sequence[str]) -> str:
    return ", ".join(name for uid in uids for name in names[uid])
