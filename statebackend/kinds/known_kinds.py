"""The one table of the kinds of keyed state, by the name that is written to disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from statebackend.kinds.aggregating_kind import AGGREGATING
from statebackend.kinds.list_kind import LIST
from statebackend.kinds.map_kind import MAP
from statebackend.kinds.reducing_kind import REDUCING
from statebackend.kinds.state_kind import StateKind
from statebackend.kinds.value_kind import VALUE

STATE_KINDS: Final[Mapping[str, StateKind]] = {kind.name: kind for kind in (VALUE, LIST, MAP, REDUCING, AGGREGATING)}
