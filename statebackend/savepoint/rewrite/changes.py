"""The changes of a plan. Each change is data with a method that applies it to the drafts.

A change that raises may leave the drafts incomplete. The writer then discards them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from snapshots.errors import format_value
from statebackend.checkpoint.invariants import check_identifier
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.rewrite.drafts import (
    Drafts,
    Merge,
    OperatorDraft,
    OperatorStateDraft,
    PlannedElements,
    StateDraft,
)
from statebackend.savepoint.rewrite.planned_entries import PlannedEntries
from statebackend.savepoint.rewrite.staged_entries import StagedEntries
from statebackend.savepoint.rewrite.steps import ChangeEntries, ChangeKeys, ChangeValues, KeepEntries, KeepKeys, Step
from statebackend.state.descriptors import Descriptor
from statebackend.state.key_columns import KEY_COLUMNS, serializer_of_key
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VoidSerializer

__all__ = ["Change"]


class Change(Protocol):
    """One change of a plan. Its class name identifies it in errors."""

    def apply(self, drafts: Drafts) -> None:
        """Apply the change to the drafts. Raises `PlanError`, or an error for damaged metadata."""


@frozen
class AddOperator:
    uid: str
    key: tuple[str, ...]
    name: str

    def apply(self, drafts: Drafts) -> None:
        serializer = _key_serializer(self.key) if self.key else None
        drafts.add(OperatorDraft(self.uid, self.name, key_serializer=serializer, is_opened=True))
        check_identifier("the name of an operator", self.name)


@frozen
class RemoveOperator:
    uid: str

    def apply(self, drafts: Drafts) -> None:
        drafts.operator(self.uid)
        del drafts.operators[self.uid]
        drafts.set_successors((self.uid,), ())


@frozen
class RenameOperator:
    uid: str
    to: str

    def apply(self, drafts: Drafts) -> None:
        draft = drafts.operator(self.uid)
        drafts.check_free(self.to)
        draft.uid = self.to
        draft.name = self.to if draft.name == self.uid else draft.name
        drafts.operators = {draft.uid: draft for draft in drafts.operators.values()}
        drafts.set_successors((self.uid,), (self.to,))


@frozen
class AddState:
    uid: str
    state: StateDescriptor | EntrySchema
    entries: PlannedEntries | StagedEntries
    namespace: TypeSerializer[Any] | None
    merge: Merge | None
    replaces: bool

    def apply(self, drafts: Drafts) -> None:
        if not isinstance(self.state, EntrySchema):
            _check_descriptor(self.state, StateDescriptor, "keyed state")
        elif self.state.is_queue:
            raise PlanError(f"{self.state.name!r} is a queue, not a state of entries; pass timers to add_timers")
        draft = drafts.opened(self.uid)
        # Check first that the operator has a key.
        assert draft.key_columns
        if self.replaces:
            if draft.state(self.state.name).schema.is_timers:
                raise PlanError(
                    f"operator {self.uid!r}: {self.state.name!r} are timers, not a state of entries; remove them, and "
                    f"pass new ones to add_timers"
                )
        else:
            draft.check_free(self.state.name)
        assert draft.key_serializer is not None
        schema = EntrySchema.of(self.state, draft.key_serializer, self.namespace)
        draft.states[self.state.name] = StateDraft(schema, given=[self.entries], merge=self.merge, may_collide=True)


@frozen
class AddTimers:
    uid: str
    state_name: str
    entries: PlannedEntries
    namespace: TypeSerializer[Any] | None

    def apply(self, drafts: Drafts) -> None:
        draft = drafts.opened(self.uid)
        assert draft.key_columns
        assert draft.key_serializer is not None
        schema = EntrySchema.of_timers(self.state_name, draft.key_serializer, self.namespace)
        known = draft.states.get(self.state_name)
        if known is None:
            draft.check_free(self.state_name, is_timers=True)
            draft.states[self.state_name] = StateDraft(schema, given=[self.entries], may_collide=True)
            return
        if not known.schema.is_like(schema):
            raise PlanError(f"operator {self.uid!r}: the timers of {self.state_name!r} have other keys or namespaces")
        known.given.append(self.entries)
        known.may_collide = True


@frozen
class AddOperatorState:
    uid: str
    elements: PlannedElements

    def apply(self, drafts: Drafts) -> None:
        descriptor = self.elements.descriptor
        _check_descriptor(descriptor, OperatorStateDescriptor, "state without keys")
        draft = drafts.opened(self.uid)
        draft.check_free(descriptor.name)
        draft.operator_states[descriptor.name] = OperatorStateDraft(
            descriptor.name, descriptor.mode, given=self.elements
        )


@frozen
class RemoveState:
    uid: str
    name: str

    def apply(self, drafts: Drafts) -> None:
        draft = drafts.opened(self.uid)
        has_no_keys = draft.operator_state(self.name) is not None
        if has_no_keys:
            del draft.operator_states[self.name]
        # A keyed and an operator state may have the same name: remove both.
        if not has_no_keys or self.name in draft.states:
            draft.state(self.name)
            del draft.states[self.name]


@frozen
class RenameState:
    uid: str
    name: str
    to: str

    def apply(self, drafts: Drafts) -> None:
        draft = drafts.opened(self.uid)
        operator_state = draft.operator_state(self.name)
        if operator_state is not None and self.name in draft.states:
            raise PlanError(
                f"operator {self.uid!r} has a state {self.name!r} with keys and one without, so it is unclear which "
                f"one is to be renamed"
            )
        if operator_state is not None:
            draft.check_free(self.to)
            operator_state.name = self.to
            draft.operator_states = {one.name: one for one in draft.operator_states.values()}
            return
        state = draft.state(self.name)
        draft.check_free(self.to, is_timers=state.schema.is_timers)
        state.schema = state.schema.renamed(self.to)
        draft.states = {one.schema.name: one for one in draft.states.values()}


@frozen
class ChangeState:
    uid: str
    name: str
    descriptor: StateDescriptor
    function: Callable[[Any], Any]
    has_planned_entries: bool

    def apply(self, drafts: Drafts) -> None:
        _check_descriptor(self.descriptor, StateDescriptor, "keyed state")
        draft = drafts.opened(self.uid)
        state = draft.state(self.name)
        state.schema.check_known()
        if state.schema.is_queue:
            raise PlanError(f"operator {self.uid!r}: {self.name!r} is a queue; its elements have no values to change")
        if self.descriptor.name != self.name:
            draft.check_free(self.descriptor.name)
        assert draft.key_serializer is not None
        schema = EntrySchema.of_descriptor(self.descriptor, draft.key_serializer, state.schema.namespace_serializer)
        if (schema.is_map, schema.is_timed) != (state.schema.is_map, state.schema.is_timed):
            raise PlanError(
                f"operator {self.uid!r}: the entries of {self.name!r} cannot become those of this descriptor: a map "
                f"stays a map, and state with a time-to-live keeps one. Read them, and add them to a new state"
            )
        step: Step = ChangeEntries(self.function) if self.has_planned_entries else ChangeValues(self.function)
        state.add_step(step)
        # Other bytes sort differently, and two user keys may be equal in the new type.
        state.may_collide |= not schema.has_user_keys_of(state.schema)
        state.schema = schema
        draft.states = {one.schema.name: one for one in draft.states.values()}


@frozen
class Keep:
    uid: str
    step: KeepKeys | KeepEntries
    states: tuple[str, ...] | None

    def apply(self, drafts: Drafts) -> None:
        draft = drafts.opened(self.uid)
        assert self.step.change_number is not None
        kept = "keep_entries" if self.step.reads_values else "keep_keys"
        drafts.keeping[self.step.change_number] = f"{kept} of operator {self.uid!r}"
        for name in tuple(draft.states) if self.states is None else self.states:
            state = draft.state(name)
            if self.step.reads_values:
                state.schema.check_known()
            state.add_step(self.step)


@frozen
class KeepElements:
    uid: str
    name: str
    predicate: Callable[[Any], bool]
    number: int

    def apply(self, drafts: Drafts) -> None:
        draft = drafts.opened(self.uid)
        drafts.keeping[self.number] = f"keep_elements of state {self.name!r} of operator {self.uid!r}"
        state = draft.operator_state(self.name)
        if state is None:
            known = ", ".join(draft.operator_states) or "none"
            raise PlanError(f"operator {self.uid!r} has no operator state {format_value(self.name)}; it has {known}")
        state.add_predicate(self.predicate, self.number)


@frozen
class ChangeKeysOf:
    uid: str
    function: Callable[[Any], Any]
    key: tuple[str, ...]
    merge: Mapping[str, Merge]

    def apply(self, drafts: Drafts) -> None:
        draft = drafts.opened(self.uid)
        if draft.key_serializer is None or isinstance(draft.key_serializer, VoidSerializer):
            raise PlanError(f"operator {self.uid!r} has no key, and so no keyed state")
        serializer = _key_serializer(self.key)
        draft.check_mergeable(self.merge)
        for name, state in draft.states.items():
            state.add_step(ChangeKeys(self.function))
            state.schema = state.schema.with_key(serializer)
            state.merge = self.merge.get(name)
            state.may_collide = True
        draft.key_serializer = serializer
        draft.has_new_key_groups = True


@frozen
class MigrateOperator:
    uid: str
    registered: tuple[tuple[Descriptor, TypeSerializer[Any]], ...]

    def apply(self, drafts: Drafts) -> None:
        draft = drafts.operator(self.uid)
        if draft.is_opened:
            raise PlanError(
                f"operator {self.uid!r} is changed by this plan; migrate it with another plan, before or after this one"
            )
        draft.registered = self.registered


@frozen
class ChangeMaxParallelism:
    max_parallelism: int

    def apply(self, drafts: Drafts) -> None:
        _check_whole_number("max_parallelism", self.max_parallelism)
        if drafts.max_parallelism == self.max_parallelism:
            return
        drafts.max_parallelism = self.max_parallelism
        for uid in tuple(drafts.operators):
            draft = drafts.opened(uid)
            draft.has_new_key_groups = True
            for state in draft.states.values():
                state.check_has_keys()


@frozen
class ChangeParallelism:
    parallelism: int

    def apply(self, drafts: Drafts) -> None:
        _check_whole_number("parallelism", self.parallelism)
        drafts.parallelism = self.parallelism


@frozen
class Drop:
    section: str

    def apply(self, drafts: Drafts) -> None:
        drafts.dropped.add(self.section)


def _check_descriptor(given: object, wanted: type, what: str) -> None:
    if not isinstance(given, wanted):
        raise PlanError(f"{format_value(given)} is not a descriptor of {what}; pass the one that the job registers")


def _check_whole_number(what: str, given: object) -> None:
    # bool is a subclass of int.
    if type(given) is not int:
        raise PlanError(f"{what} is a whole number, not {format_value(given)}")


def _key_serializer(columns: Sequence[str]) -> TypeSerializer[Any]:
    unknown = [repr(column) for column in columns if column not in KEY_COLUMNS]
    if unknown or not columns:
        raise PlanError(
            f"{', '.join(unknown) or 'nothing'} is not a type of key columns; the types are {', '.join(KEY_COLUMNS)}"
        )
    return serializer_of_key(columns)
