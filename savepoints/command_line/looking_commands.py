"""The commands that look into one or two checkpoints or savepoints and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Annotated, Final

import typer

from savepoints.command_line.answers import inspection, schemas
from savepoints.command_line.command_arguments import AsJson, CheckpointId, OperatorUid, Place, StateName, ZooKeeper
from savepoints.command_line.conditions import ConditionError, namespace_condition, parsed_condition
from savepoints.command_line.differences import difference_of_entries, difference_of_schemas
from savepoints.command_line.entries_of import entries_of
from savepoints.command_line.exit_statuses import DIFFERENT
from savepoints.command_line.opening import opened, opened_with_progress
from savepoints.command_line.spooled_answers import spooled_answers
from savepoints.command_line.telling import tell, tell_difference, tell_entries, tell_inspection, tell_schemas
from savepoints.errors import UnknownKeyError
from statebackend.api.clock import wall_clock

__all__ = ["LOOKING_COMMANDS"]


def inspect(
    path: Place,
    checkpoint: CheckpointId = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file and compare it with its checksum.")] = False,
    counts: Annotated[
        bool, typer.Option("--counts/--no-counts", help="Read all keyed state once, to count its entries.")
    ] = True,
    zookeeper: ZooKeeper = None,
    as_json: AsJson = False,
) -> None:
    """What a checkpoint or savepoint is: its job, operators, states, entries, bytes, event time, source and sinks."""
    with opened_with_progress(path, checkpoint, zookeeper) as savepoint:
        verified = sum(1 for _ in savepoint.verify()) if verify else None
        answer = inspection(savepoint, now_ms=wall_clock(), counts=counts)
    if verified is not None:
        answer["verified_files"] = verified
    tell(as_json, answer, tell_inspection)


def show(
    path: Place,
    operator: OperatorUid,
    state: StateName,
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Only this key; once for each column of a key of several.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", help="Only entries like this, as value.n>3 or namespace.start=0.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help='Only this namespace: text, or JSON as {"start": 0} of a window.')
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many entries.")] = None,
    checkpoint: CheckpointId = None,
    zookeeper: ZooKeeper = None,
    as_json: AsJson = False,
) -> None:
    """The entries of a state, decoded: records as objects, without the program's classes."""
    savepoint = opened(path, checkpoint, zookeeper)
    try:
        conditions = [parsed_condition(text) for text in where or ()]
    except ConditionError as error:
        raise typer.BadParameter(str(error)) from error
    if namespace is not None:
        conditions.append(namespace_condition(namespace))
    entries = entries_of(savepoint, operator, state, key)
    try:
        found = islice(entries.printed([one.test for one in conditions]), limit)
    except ConditionError as error:
        raise typer.BadParameter(str(error)) from error
    first = list(islice(found, 1))
    of_key = f" of key {', '.join(key)!r}" if key else ""
    in_namespace = f" in the namespace {namespace}" if namespace is not None else ""
    that_fits = f" that fits --where {' --where '.join(map(repr, where))}" if where else ""
    nothing = f"state {state!r} of operator {operator!r} has no entry{of_key}{in_namespace}{that_fits}"
    if first or as_json or not key:
        tell_entries(as_json, chain(first, found), nothing)
    if key and not first:
        raise UnknownKeyError(nothing)


def schema(path: Place, checkpoint: CheckpointId = None, zookeeper: ZooKeeper = None, as_json: AsJson = False) -> None:
    """The types of all states: records with their fields, former names and defaults."""
    tell(as_json, schemas(opened(path, checkpoint, zookeeper)), tell_schemas)


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD")],
    new: Annotated[str, typer.Argument(metavar="NEW")],
    entries: Annotated[bool, typer.Option("--entries", help="Compare keys and values too.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many differing entries.")] = None,
    zookeeper: ZooKeeper = None,
    as_json: AsJson = False,
) -> None:
    """What changed from one checkpoint or savepoint to another; ends with 1 if anything did."""
    with spooled_answers() as found:
        with opened_with_progress(old, None, zookeeper) as one:
            # Both are read in step: the progress of one is that of the other.
            other = opened(new, None, zookeeper)
            of_schemas = difference_of_schemas(schemas(one), schemas(other))
            for answer in islice(difference_of_entries(one, other), limit) if entries else ():
                found.add(answer)
        tell_difference(as_json, of_schemas, found if entries else None)
        if of_schemas or len(found):
            raise typer.Exit(DIFFERENT)


LOOKING_COMMANDS: Final[Sequence[Callable[..., None]]] = (inspect, show, schema, diff)
