"""How long the entries of one state live, for whoever looks at rows and not through a handle."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from statebackend.api.clock import Clock
from statebackend.api.time_to_live import StateTtlConfig
from statebackend.kinds.state_kind import RowFilter, StateKind
from statebackend.ttl.row_filter import expired_row_filter
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.stepping_over import stepping_over


@frozen(eq=False)
class Expiry:
    """The time-to-live of a registered state; ``serializer`` is that of its timed role, as its handle uses it."""

    kind: StateKind
    serializer: TtlSerializer[object]
    config: StateTtlConfig
    clock: Clock

    def filters(self) -> Callable[[], RowFilter]:
        """Makes filters of what has expired, each as of when it is made. They share nothing with the handle.

        Of the values nothing is made: only where they end is asked for.
        """
        restored = restored_with(self.serializer.snapshot_configuration(), self.serializer)
        assert isinstance(restored, TtlSerializer)
        serializer: TtlSerializer[object] = TtlSerializer(stepping_over(restored.value_serializer))
        kind, ttl_ms, clock = self.kind, self.config.ttl_ms, self.clock
        return lambda: expired_row_filter(kind, serializer, ttl_ms, clock())

    def filter_now(self) -> RowFilter:
        """A filter of what has expired by now."""
        return self.filters()()
