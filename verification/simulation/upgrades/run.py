"""Runs chains of versions on the local runtime, several at once, and compares every stored value with the model.

All chains of a run share one job: each has a few states in one operator, so a restore is paid once.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from attrs import define, evolve, field

from statebackend import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateBackendError,
    StateTtlConfig,
    StreamJobError,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from verification.simulation.upgrades.model import Collision, Convert, Rejected, conversion
from verification.simulation.upgrades.plan import UpgradePlan, Version
from verification.simulation.upgrades.types import Classes, plain, random_value
from verification.simulation.violation import Violation, require_that

__all__ = ["run_upgrades"]

TTL_MS: Final = 1500
STEP_MS: Final = 1000
KEYS: Final = range(3)
_KINDS: Final = ("value", "list", "map", "map")
"""The kind of state of a chain, by its seed."""
_SCHEMA: Final = "key bigint"
_UID: Final = "stored"


@define
class _Entry:
    """A stored value with the time of its last write, which matters for a time-to-live."""

    value: Any
    time_ms: int


Contents = dict[int, list[tuple[Any, _Entry]]]
"""What each key of a chain stores: one value, elements, or entries with their user keys."""


@define(eq=False)
class _Chain:
    """A running chain: the version of its state, and its content by the model."""

    plan: UpgradePlan
    version: Version
    contents: Contents = field(factory=dict)


@define(eq=False)
class _Step:
    """The work of a run's function: read all states of a key, then write."""

    classes: Mapping[int, tuple[Version, Classes]]
    writes: Callable[[int, int], Iterator[tuple[Any, Any]]]
    seen: dict[tuple[int, int], Any] = field(factory=dict)


_STEPS: Final[dict[int, _Step]] = {}
_NUMBERS: Final = itertools.count()


class _Stored(KeyedProcessFunction[Any, Any, Any]):
    """Registers the states of all chains, and carries out its step."""

    def __init__(self, step_number: int) -> None:
        self.step_number = step_number

    def open(self, context: Any) -> None:
        self.states = {}
        for number, (version, classes) in _STEPS[self.step_number].classes.items():
            record, name = classes.hint(version.record), f"{number}"
            ttl = StateTtlConfig(TTL_MS) if version.has_ttl else None
            kind = _KINDS[number % len(_KINDS)]
            if kind == "value":
                self.states[number] = context.get_state(ValueStateDescriptor(name, record, ttl=ttl))
            elif kind == "list":
                self.states[number] = context.get_list_state(ListStateDescriptor(name, record, ttl=ttl))
            else:
                key = classes.hint(version.key)
                self.states[number] = context.get_map_state(MapStateDescriptor(name, key, record, ttl=ttl))

    def process_element(self, value: Any, context: Any) -> None:
        step, stored = _STEPS[self.step_number], context.current_key
        for number, state in self.states.items():
            version, classes = step.classes[number]
            kind = _KINDS[number % len(_KINDS)]
            if kind == "value":
                read = state.value()
                step.seen[number, stored] = None if read is None else plain(read)
            elif kind == "list":
                step.seen[number, stored] = tuple(plain(one) for one in state.get() or ())
            else:
                items = ((plain(key), plain(one)) for key, one in state.items())
                step.seen[number, stored] = tuple(sorted(items, key=repr))
            for key, written in step.writes(number, stored):
                real = classes.real(version.record, written)
                if kind == "value":
                    state.update(real)
                elif kind == "list":
                    state.add(real)
                else:
                    state.put(classes.real(version.key, key), real)


def run_upgrades(plans: Sequence[UpgradePlan]) -> None:
    """Raise `Violation` if a value differs from the model, or a change is wrongly accepted or rejected."""
    chains = {plan.seed: _Chain(plan, plan.versions[0]) for plan in plans}
    with tempfile.TemporaryDirectory() as directory:
        savepoint: Path | None = None
        for number in range(max(len(plan.versions) for plan in plans)):
            _run_step(chains, number, Path(directory), savepoint)
            savepoint = Path(directory) / f"savepoint-{number}"


def _run_step(chains: Mapping[int, _Chain], number: int, directory: Path, savepoint: Path | None) -> None:
    now_ms = number * STEP_MS
    candidates = {seed: one.plan.versions[number] for seed, one in chains.items() if number < len(one.plan.versions)}
    # Creating RocksDB's column families is slow, so only every third group uses RocksDB, for one version.
    backend = RocksDBStateBackend() if number == 2 and min(chains) % 3 == 0 else HeapStateBackend()

    def environment(versions: Mapping[int, Version], step: _Step) -> LocalStreamEnvironment:
        _STEPS.clear()
        step_number = next(_NUMBERS)
        _STEPS[step_number] = step
        made = LocalStreamEnvironment(
            job_dir=directory / f"job-{step_number}",
            backend=backend,
            parallelism=(1, 2, 1, 1, 3)[(number + min(chains)) % 5],
            clock=lambda: now_ms,
        )
        records = made.from_elements([(key,) for key in KEYS], _SCHEMA)
        records.key_by("key").process(_Stored(step_number), uid=_UID, schema=_SCHEMA).sink_to([])
        return made

    classes = Classes()
    if savepoint is not None:
        # The start itself checks the versions that the model accepts.
        doubtful = {seed: one for seed, one in candidates.items() if not _is_accepted(chains[seed], one)}
        rejected: Mapping[int, str] = {}
        if doubtful:
            step = _Step({seed: (version, classes) for seed, version in doubtful.items()}, _no_writes)
            report = environment(doubtful, step).check(from_savepoint=savepoint, allow_non_restored_state=True)[_UID]
            incompatible = [one for one in report.compatibilities if one.kind.name == "INCOMPATIBLE"]
            rejected = {int(one.state_name): str(one) for one in incompatible}
        beside: dict[int, Contents] = {}
        for seed, candidate in candidates.items():
            adopted = _adopted(chains[seed], candidate, now_ms, rejected.get(seed))
            if adopted is None:
                continue
            contents, is_followed = adopted
            if contents is None:
                _restore_beside(environment, {seed: candidate}, classes, savepoint, None)
            elif is_followed:
                chains[seed].version, chains[seed].contents = candidate, contents
            else:
                beside[seed] = contents
        if beside:
            _restore_beside(environment, {seed: candidates[seed] for seed in beside}, classes, savepoint, beside)
    versions = {seed: one.version for seed, one in chains.items()}
    step = _Step({seed: (version, classes) for seed, version in versions.items()}, _writes(chains, number))
    for seed, chain in chains.items():
        if seed not in candidates or chain.version is not candidates[seed]:
            keeps = _keeps(chain.version, chain.version, now_ms)
            chain.contents = _converted(chain.contents, _same, _same, keeps)
    made = environment(versions, step)
    job = made.execute(from_savepoint=savepoint)
    _compare(step, {seed: one.contents for seed, one in chains.items()}, f"version {number}")
    for seed, chain in chains.items():
        for key in KEYS:
            content = chain.contents.setdefault(key, [])
            for name, value in step.writes(seed, key):
                if _KINDS[seed % len(_KINDS)] != "list":
                    content[:] = [one for one in content if one[0] != name]
                content.append((name, _Entry(value, now_ms)))
    job.savepoint(directory / f"savepoint-{number}")
    made.close()


def _no_writes(seed: int, key: int) -> Iterator[tuple[Any, Any]]:
    yield from ()


def _writes(chains: Mapping[int, _Chain], number: int) -> Callable[[int, int], Iterator[tuple[Any, Any]]]:
    def writes(seed: int, key: int) -> Iterator[tuple[Any, Any]]:
        random, version = Random(f"{seed}-{number}-{key}"), chains[seed].version
        is_map = _KINDS[seed % len(_KINDS)] == "map"
        for _ in range(random.choice((0, 1, 2))):
            yield random_value(random, version.key) if is_map else None, random_value(random, version.record)

    return writes


def _converted(
    contents: Contents, record: Convert, key: Convert, keeps: Callable[[_Entry], bool], time_ms: int | None = None
) -> Contents:
    """Return the contents under another version; with ``time_ms`` all entries count as written then."""
    made: Contents = {}
    for stored, content in contents.items():
        kept = [(name, entry) for name, entry in content if keeps(entry)]
        names = [None if name is None else key(name) for name, _ in kept]
        if None not in names and len({repr(name) for name in names}) < len(names):
            raise Collision(f"two of {kept} have one key")
        times = [entry.time_ms if time_ms is None else time_ms for _, entry in kept]
        values = [_Entry(record(entry.value), time) for (_, entry), time in zip(kept, times, strict=True)]
        made[stored] = list(zip(names, values, strict=True))
    return made


def _plain_contents(kind: str, content: list[tuple[Any, _Entry]]) -> Any:
    """Return what a program reads."""
    if kind == "value":
        return plain(content[0][1].value) if content else None
    if kind == "list":
        return tuple(plain(entry.value) for _, entry in content)
    return tuple(sorted(((plain(name), plain(entry.value)) for name, entry in content), key=repr))


def _keeps(old: Version, new: Version, now_ms: int) -> Callable[[_Entry], bool]:
    """Return whether an entry is present: savepoints and states with a time-to-live omit expired ones."""
    if not old.has_ttl:
        return lambda entry: True
    ends_ms = now_ms if new.has_ttl else now_ms - STEP_MS
    return lambda entry: entry.time_ms + TTL_MS > ends_ms


def _same(value: Any) -> Any:
    return value


def _conversions(chain: _Chain, candidate: Version) -> tuple[Convert, Convert]:
    """Return the conversions of the values and of the user keys. Raises `Rejected`."""
    key = _key_conversion(chain, candidate)
    return conversion(chain.version.record, candidate.record), key


def _key_conversion(chain: _Chain, candidate: Version) -> Convert:
    is_map = _KINDS[chain.plan.seed % len(_KINDS)] == "map"
    return conversion(chain.version.key, candidate.key) if is_map else _same


def _is_accepted(chain: _Chain, candidate: Version) -> bool:
    try:
        _conversions(chain, candidate)
    except Rejected:
        return False
    return True


def _adopted(
    chain: _Chain, candidate: Version, now_ms: int, rejection: str | None
) -> tuple[Contents | None, bool] | None:
    """Return what the candidate must read, and whether the chain continues with it; None if it must be rejected.

    Without contents the restore must be rejected when it reads the stored values.
    """
    old, is_clear = chain.version, True
    try:
        record, key = _conversions(chain, candidate)
    except Rejected as error:
        if rejection is not None:
            return None
        if error.may_be_applied is None:
            where = f"chain {chain.plan.seed}: {error}\nfrom {old}\nto {candidate}"
            raise Violation(f"a change that loses values is rejected: {where}") from error
        is_clear, record, key = False, error.may_be_applied, _key_conversion(chain, candidate)
    time_ms = now_ms if candidate.has_ttl and not old.has_ttl else None
    keeps = _keeps(old, candidate, now_ms)
    try:
        # Entries that have expired since the savepoint are still in it, and their keys can collide too.
        _converted(chain.contents, record, key, _keeps(old, evolve(old, has_ttl=False), now_ms))
        contents = _converted(chain.contents, record, key, keeps, time_ms)
    except Collision:
        return None, False
    return contents, is_clear


def _restore_beside(
    environment: Callable[[Mapping[int, Version], _Step], LocalStreamEnvironment],
    versions: Mapping[int, Version],
    classes: Classes,
    savepoint: Path,
    contents: Mapping[int, Contents] | None,
) -> None:
    """Restore versions that their chains do not continue with; without contents the restore must be rejected."""
    step = _Step({seed: (version, classes) for seed, version in versions.items()}, _no_writes)
    with contextlib.closing(environment(versions, step)) as made:
        try:
            made.execute(from_savepoint=savepoint, allow_non_restored_state=True)
        except (StateBackendError, StreamJobError) as error:
            if contents is not None:
                raise Violation(f"a restore that keeps values is accepted: chains {list(versions)}: {error}") from error
            return
        if contents is None:
            raise Violation(f"a restore in which two keys become one is rejected: {versions}")
        _compare(step, contents, "beside its chain")


def _compare(step: _Step, contents: Mapping[int, Contents], what: str) -> None:
    for (seed, key), seen in step.seen.items():
        expected = _plain_contents(_KINDS[seed % len(_KINDS)], contents[seed].get(key, []))
        require_that(
            seen == expected,
            f"every value is that of the model: chain {seed}, {what}, key {key}:\n  read     {seen}\n"
            f"  expected {expected}",
        )
