"""The changes that make several operators of one, and one of several; see `savepoints.writing.changes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, frozen

from savepoints.writing.drafts import Drafts, Merge, OperatorDraft, OperatorStateDraft, StateDraft
from savepoints.writing.errors import PlanError
from savepoints.writing.steps import KeepKeys
from snapshots.envelope import snapshot_from_bytes
from snapshots.merging import merge_snapshots
from statebackend.api.operator_state_descriptors import OperatorStateMode

__all__ = ["MergeOperators", "SplitOperator"]


@frozen
class SplitOperator:
    uid: str
    into: tuple[str, ...]
    route: Callable[[Any], str]
    operator_state: str | None

    def apply(self, drafts: Drafts) -> None:
        if not self.into:
            raise PlanError(f"operator {self.uid!r} is split into none; to leave it out, remove it (remove_operator)")
        draft = drafts.opened(self.uid)
        assert draft.key_columns
        if draft.operator_states and self.operator_state not in self.into:
            raise PlanError(
                f"operator {self.uid!r} has operator state ({', '.join(draft.operator_states)}), which has no key to "
                f"go by: pass operator_state=<which of the operators it is for>"
            )
        del drafts.operators[self.uid]
        for place, uid in enumerate(self.into):
            part = OperatorDraft(
                uid, uid, draft.origins, draft.key_serializer, is_opened=True, is_placed_anew=draft.is_placed_anew
            )
            drafts.add(part)
            step = KeepKeys(_Routed(self.route, self.into, uid))
            # What was left out of the whole is told of the first part, and counts once.
            part.states = {
                name: evolve(state, stored=[one if place == 0 else one.uncounted() for one in state.stored])
                for name, state in draft.states.items()
            }
            for state in part.states.values():
                state.put_behind(step)
            if uid == self.operator_state:
                part.operator_states = draft.operator_states
        drafts.inherit((self.uid,), self.into)


@frozen
class _Routed:
    """Whether a key is routed to one of several operators; raises for one that is routed to none."""

    route: Callable[[Any], str]
    into: tuple[str, ...]
    uid: str

    def __call__(self, key: Any) -> bool:
        routed = self.route(key)
        if routed not in self.into:
            raise ValueError(f"the key is routed to {routed!r}, which is none of {', '.join(self.into)}")
        return routed == self.uid


@frozen
class MergeOperators:
    uids: tuple[str, ...]
    into: str
    merge: Mapping[str, Merge]

    def apply(self, drafts: Drafts) -> None:
        if not self.uids or len(set(self.uids)) < len(self.uids):
            raise PlanError(
                f"{', '.join(self.uids) or 'nothing'}: operators to merge are one or more, each of them once"
            )
        parts = [drafts.opened(uid) for uid in self.uids]
        merged = OperatorDraft(self.into, self.into, is_opened=True, is_placed_anew=True)
        merged.key_serializer = parts[0].key_serializer
        for part in parts:
            if not _are_keyed_alike(part, merged):
                raise PlanError(
                    f"operators {parts[0].uid!r} and {part.uid!r} have keys of two types; change those of one first"
                )
            merged.origins += tuple(origin for origin in part.origins if origin not in merged.origins)
            for name, state in part.states.items():
                _merge_state(merged, name, state, part.uid)
            for name, operator_state in part.operator_states.items():
                _merge_operator_state(merged, name, operator_state, part.uid)
        merged.check_mergeable(self.merge)
        for name, function in self.merge.items():
            merged.states[name].merge = function
        for uid in self.uids:
            del drafts.operators[uid]
        drafts.add(merged)
        drafts.inherit(self.uids, (self.into,))


def _merge_state(merged: OperatorDraft, name: str, state: StateDraft, uid: str) -> None:
    known = merged.states.get(name)
    if known is None:
        merged.states[name] = evolve(state, stored=list(state.stored), given=list(state.given))
        return
    if not known.schema.is_like(state.schema):
        raise PlanError(
            f"state {name!r} of operator {uid!r} has another schema than that of the same name in one merged before; "
            f"rename one of them, or change its values first"
        )
    known.stored += state.stored
    known.given += state.given
    known.may_collide = True


def _are_keyed_alike(one: OperatorDraft, other: OperatorDraft) -> bool:
    return (None if one.key_serializer is None else one.key_columns) == (
        None if other.key_serializer is None else other.key_columns
    )


def _merge_operator_state(merged: OperatorDraft, name: str, state: OperatorStateDraft, uid: str) -> None:
    known = merged.operator_states.get(name)
    if known is None:
        merged.operator_states[name] = state
        return
    both = (known, state)
    if OperatorStateMode.BROADCAST in (known.mode, state.mode) or known.mode is not state.mode:
        raise PlanError(
            f"operator state {name!r} is there twice, the second time in operator {uid!r}, and is no list that the "
            f"other could be appended to; remove or rename one of them"
        )
    if any(one.given is not None or one.predicates for one in both):
        raise PlanError(f"operator state {name!r}: merge the operators before its elements are changed")
    if not all(any(_are_alike(one, other) for other in known.schemas) for one in state.schemas):
        raise PlanError(
            f"the elements of operator state {name!r} of operator {uid!r} are of another type than those of the same "
            f"name in one merged before; rename one of them"
        )
    known.stored += state.stored


def _are_alike(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> bool:
    # Serializers that learn while they write may have learned other things.
    return all(
        envelope == other[role]
        or merge_snapshots(snapshot_from_bytes(envelope), snapshot_from_bytes(other[role])) is not None
        for role, envelope in one.items()
    )
