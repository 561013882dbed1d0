"""Drafts of the new savepoint: its operators, their states, and the inputs of each state.

A draft refers to stored state by operator and name, without reading it. An operator without changes is not opened: its
files are copied. The first change of an operator creates drafts of all its states from the metadata of its subtasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from attrs import define, evolve, field, frozen

from snapshots.errors import StateFormatError, format_value
from statebackend.checkpoint.invariants import check_identifier
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.rewrite.planned_entries import PlannedEntries
from statebackend.savepoint.rewrite.staged_entries import StagedEntries
from statebackend.savepoint.rewrite.steps import KeepKeys, Step
from statebackend.state.backend_parameters import merge_handles
from statebackend.state.descriptors import Descriptor, check_state_name
from statebackend.state.errors import StateRestoreError
from statebackend.state.key_columns import columns_of_key
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor, OperatorStateMode, uid_problem
from statebackend.state.priority_queue import TIMER_STATES, timer_state_name
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["Drafts", "OperatorDraft", "OperatorStateDraft", "PlannedElements", "StateDraft", "StoredInput"]

T = TypeVar("T")

Merge = Callable[[Any, Any], Any]

_NAMES_OF_TIMERS: Final = (timer_state_name("event", ""), timer_state_name("processing", ""))


@frozen
class StoredInput:
    """A stored state that is input of a draft, with the steps that transform its entries."""

    operator_uid: str
    state_name: str
    schema: EntrySchema
    steps: tuple[Step, ...] = ()
    uncounted_steps: int = 0
    """The number of leading steps with removed entries that are counted elsewhere."""

    def with_step(self, step: Step) -> StoredInput:
        """Return the input with one more step."""
        return evolve(self, steps=(*self.steps, step))

    def uncounted(self) -> StoredInput:
        """Return the input with the removed entries of its steps not counted."""
        return evolve(self, uncounted_steps=len(self.steps))


@define
class StateDraft:
    """A keyed state: its schema and its inputs. ``merge`` merges two values of one key, after all steps."""

    schema: EntrySchema
    stored: list[StoredInput] = field(factory=list)
    given: list[PlannedEntries | StagedEntries] = field(factory=list)
    merge: Merge | None = None
    may_collide: bool = False
    """Whether two entries of different inputs may have the same address."""

    def check_has_keys(self) -> None:
        """Raise `PlanError` for a queue with elements other than timers, because their keys are unknown."""
        if self.schema.is_queue and not self.schema.is_timers:
            raise PlanError(
                f"the elements of the queue {self.schema.name!r} are not timers, so their keys are unknown; "
                f"remove it, or leave its operator as it is"
            )

    def check_not_merged(self) -> None:
        """Raise `PlanError` if an earlier change merges values."""
        if self.merge is not None:
            raise PlanError(
                f"an earlier change merges the values of {self.schema.name!r}, and values are merged at the end of a "
                f"plan; put this change before it, or into another plan"
            )

    def add_step(self, step: Step) -> None:
        """Add a step for all stored entries.

        Raises:
            PlanError: The state has entries from the plan, or an earlier change merges its values.
        """
        self.check_has_keys()
        if self.given:
            raise _change_of_given(self.schema.name)
        if not isinstance(step, KeepKeys):
            self.check_not_merged()
        self.stored = [one.with_step(step) for one in self.stored]


@frozen
class PlannedElements:
    """Elements of list operator state, or entries of broadcast state, from the plan."""

    descriptor: OperatorStateDescriptor
    elements: Iterable[Any] | Mapping[Any, Any]


@define
class OperatorStateDraft:
    """An operator state: stored inputs by operator and name, and predicates that its elements must satisfy."""

    name: str
    mode: OperatorStateMode
    stored: list[tuple[str, str]] = field(factory=list)
    schemas: tuple[Mapping[str, bytes], ...] = ()
    """The snapshot envelopes of the stored elements, by role."""
    given: PlannedElements | None = None
    predicates: list[tuple[Callable[[Any], bool], int]] = field(factory=list)
    """The predicates, each with the number of its change."""

    def add_predicate(self, predicate: Callable[[Any], bool], number: int) -> None:
        """Add a predicate for all stored elements. Raises `PlanError` if the state comes from the plan."""
        if self.given is not None:
            raise _change_of_given(self.name)
        self.predicates.append((predicate, number))


def _change_of_given(name: str) -> PlanError:
    return PlanError(
        f"the entries of {name!r} come from the plan itself; pass them in their final form, and after the changes of "
        f"stored entries"
    )


@define
class OperatorDraft:
    """An operator. ``origins`` are the stored operators with its state. A single origin determines its parts."""

    uid: str
    name: str
    origins: tuple[str, ...] = ()
    key_serializer: TypeSerializer[Any] | None = None
    states: dict[str, StateDraft] = field(factory=dict)
    operator_states: dict[str, OperatorStateDraft] = field(factory=dict)
    registered: tuple[tuple[Descriptor, TypeSerializer[Any]], ...] = ()
    """The descriptors to which its state is migrated, with their namespace serializers."""
    is_opened: bool = False
    has_new_key_groups: bool = False
    """Whether its keys have other key groups or come from several operators."""

    @property
    def is_copied(self) -> bool:
        """Whether its state is copied unchanged."""
        return not self.is_opened and not self.registered

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The types of its key columns. Raises `PlanError` if it has no key."""
        columns = () if self.key_serializer is None else columns_of_key(self.key_serializer)
        if not columns:
            raise PlanError(f"operator {self.uid!r} has no key, and so no keyed state")
        return columns

    def state(self, name: str) -> StateDraft:
        """Return a keyed state. Raises `PlanError` that lists the existing states."""
        state = _found(self.states, name)
        if state is None:
            raise PlanError(
                f"operator {self.uid!r} has no keyed state {format_value(name)}; it has {_listed(self.states)}"
            )
        return state

    def operator_state(self, name: str) -> OperatorStateDraft | None:
        return _found(self.operator_states, name)

    def check_mergeable(self, names: Iterable[str]) -> None:
        """Raise `PlanError` for an unknown state, `UnresolvableSerializerError` if its values cannot be read."""
        for name in names:
            self.state(name).schema.check_known()

    def check_free(self, name: str, *, is_timers: bool = False) -> None:
        """Check that a new state may have this name.

        Raises:
            PlanError: The name exists already, or a job could not register it.
            StateRegistrationError: The name is invalid.
        """
        check_state_name("a state", name)
        if name.startswith(_NAMES_OF_TIMERS if is_timers else TIMER_STATES) is not is_timers:
            raise PlanError(
                f"operator {self.uid!r}: {name!r} is not a name of its timers, which are found as "
                f"{' or '.join(_NAMES_OF_TIMERS)}<service>"
                if is_timers
                else f"operator {self.uid!r}: names such as {name!r} are those of timers; give the state another one"
            )
        if name in self.states or name in self.operator_states:
            raise PlanError(f"operator {self.uid!r} has a state {name!r} already; remove it first, or replace it")


class Drafts:
    """The operators of the new savepoint by uid, in order. Methods raise `PlanError`."""

    def __init__(self, source: RestoredState | None, known: Sequence[TypeSerializer[Any]] = ()) -> None:
        self._source = source
        self._known = tuple(known)
        stored = () if source is None else source.metadata.operators
        self.operators = {one.uid: OperatorDraft(one.uid, one.name, (one.uid,)) for one in stored}
        self.max_parallelism = None if source is None else source.metadata.max_parallelism
        self.parallelism: int | None = None
        self.keeping: dict[int, str] = {}
        """The changes that remove entries, by their numbers."""
        self.dropped: set[str] = set()
        """Metadata sections that are dropped."""
        self.successors: dict[str, list[str]] = {uid: [uid] for uid in self.operators}
        """The uids that continue each stored operator."""

    def operator(self, uid: str) -> OperatorDraft:
        """Return an operator without opening its states. Raises `PlanError` that lists the existing operators."""
        draft = _found(self.operators, uid)
        if draft is None:
            raise PlanError(f"there is no operator {format_value(uid)}; there are {_listed(self.operators)}")
        return draft

    def opened(self, uid: str) -> OperatorDraft:
        """Return an operator with opened states, for a change of them. Raises if its metadata is damaged."""
        draft = self.operator(uid)
        if draft.registered:
            raise PlanError(
                f"operator {uid!r} is migrated by this plan; change it with another plan, before or after this one"
            )
        if not draft.is_opened:
            draft.is_opened = True
            for origin in draft.origins:
                self._open(draft, origin)
        return draft

    def place_all_keys(self) -> list[str]:
        """Assign new key groups to the keys of all operators. Returns the problems of operators."""
        problems = []
        for draft in self.operators.values():
            problem = self._placing_problem(draft)
            if problem is not None:
                problems.append(f"operator {draft.uid!r}: {problem}")
        return problems

    def _placing_problem(self, draft: OperatorDraft) -> Exception | None:
        try:
            self.opened(draft.uid).has_new_key_groups = True
            if draft.key_serializer is not None and draft.states:
                columns_of_key(draft.key_serializer)
            for state in draft.states.values():
                state.check_has_keys()
                state.schema.check_known()
        except (PlanError, StateRestoreError, StateFormatError) as error:
            return error
        return None

    def add(self, draft: OperatorDraft) -> None:
        """Add an operator. Raises `PlanError` if the uid exists already or is invalid."""
        self.check_free(draft.uid)
        self.operators[draft.uid] = draft

    def check_free(self, uid: str) -> None:
        """Raise `PlanError` if the uid exists already or is invalid, `InvariantViolationError` if not a string."""
        check_identifier("operator uid", uid)
        problem = uid_problem(uid)
        if problem is not None:
            raise PlanError(f"the uid {problem}")
        if uid in self.operators:
            raise PlanError(f"there is an operator {uid!r} already; remove or rename it first")

    def set_successors(self, former: Collection[str], successors: Sequence[str]) -> None:
        """Record the operators that continue earlier operators. There are none if these are removed."""
        for origin, own in self.successors.items():
            passed_on = [successor for uid in own for successor in (successors if uid in former else (uid,))]
            self.successors[origin] = list(dict.fromkeys(passed_on))

    def _open(self, draft: OperatorDraft, origin: str) -> None:
        assert self._source is not None
        merged = merge_handles(self._source.keyed_handles(origin))
        if merged is not None:
            draft.key_serializer = merged.key_snapshot.restore_serializer()
            for meta in merged.states:
                schema = EntrySchema.of_stored(meta, draft.key_serializer, self._known)
                draft.states[meta.name] = StateDraft(schema, [StoredInput(origin, meta.name, schema)])
        for one in self._source.operator_state_metas_of(origin):
            draft.operator_states[one.name] = OperatorStateDraft(
                one.name, one.mode, [(origin, one.name)], tuple(part.envelopes for part in one.parts)
            )


def _found(drafts: Mapping[str, T], name: object) -> T | None:
    # A plan comes from a user's program, so a name may be any object, even an unhashable one.
    return drafts.get(name) if isinstance(name, str) else None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
