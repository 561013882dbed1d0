"""Generated accessors of state with a time-to-live.

A handle around another handle takes twice the time of an access. So the accessors are closures, generated once for each
class of inner handle and each configuration. Such a closure takes the time, continues the clean-up, reads or writes
the entry of the store, and checks its time. An entry is ``stored``: a tuple of the value and its last access.

The methods `emit_read_stored` and `emit_write_stored` of the inner handle provide its lines. A handle without lines of
its own is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from statebackend.state.clock import StoppedClock
from statebackend.state.internal_states import TtlState
from statebackend.state.value_forms import exact_or_none_lines
from typeserializers.kernel.code_generation import GeneratedFunction, indented
from typeserializers.kernel.type_serializer import TypeSerializer


@frozen
class TimedLines:
    """The lines from which the accessors of one class of handle are made. ``self`` is the inner handle.

    Attributes:
        time: Set ``now_ms`` to the time, and ``expired_ms`` to the latest time of an expired entry.
        clean_up: Continue the clean-up.
        read: Set ``stored`` to the entry of the current key, or None.
        kept: Replace ``value`` by the value to keep; without effect on None.
        kept_or_clear: As ``kept``, but None removes the entry and returns.
        write: Store ``stored``.
        handle: The class of handle.
        function: The function under construction.
        renews: Whether a read renews an entry.
        returns_expired: Whether the read that removes an expired entry returns it.
    """

    time: list[str]
    clean_up: list[str]
    read: list[str]
    kept: list[str]
    kept_or_clear: list[str]
    write: list[str]
    handle: Any
    function: GeneratedFunction
    renews: bool
    returns_expired: bool

    @property
    def start(self) -> list[str]:
        """Set the time, and continue the clean-up."""
        return [*self.time, *self.clean_up]

    def visible(self, absent: str, remove: str = "self.clear()") -> list[str]:
        """Set ``value`` to that of a visible entry, removed if it has expired; else return ``absent``."""
        older = [*self.clean_up, "if time_ms <= expired_ms:", f"    {remove}"]
        if not self.returns_expired:
            older.append(f"    return {absent}")
        if self.renews:
            older += ["elif time_ms < now_ms:", "    stored = (value, now_ms)", *indented(self.write)]
        return [
            *self.time,
            *self.read,
            "if stored is None:",
            *indented([*self.clean_up, f"return {absent}"]),
            "value, time_ms = stored",
            # The write of an entry of this epoch continued the clean-up, and the entry is not expired yet.
            "if time_ms is not now_ms:",
            *indented(older),
        ]


Methods = Callable[[TimedLines], Mapping[str, tuple[str, list[str]]]]
"""Returns the parameters and the lines of each accessor by name."""


def set_timed_methods(
    state: TtlState, stored: Any, serializer: TypeSerializer[Any], methods: Methods, **given: Any
) -> None:
    """Set the accessors of a handle over ``stored``; ``serializer`` is that of the value without its time.

    The lines may use ``given`` by name. ``methods`` must be a function of a module: the code is made once for it.
    """
    lifetime, cleanup = state.lifetime, state.cleanup
    handle_class: Any = type(stored)
    make = _compile(
        methods,
        handle_class,
        serializer,
        type(lifetime.clock) is StoppedClock,
        cleanup is not None,
        lifetime.renews_on_read,
        lifetime.returns_expired,
        tuple(given),
    )
    made = make(stored, lifetime.clock, lifetime.ttl_ms, cleanup, *given.values())
    for name, method in made.items():
        setattr(state, name, method)


@functools.lru_cache(maxsize=256)
def _compile(
    methods: Methods,
    handle: Any,
    serializer: TypeSerializer[Any],
    is_stopped: bool,
    has_cleanup: bool,
    renews: bool,
    returns_expired: bool,
    given: tuple[str, ...],
) -> Callable[..., dict[str, Callable[..., Any]]]:
    function = GeneratedFunction("make", ", ".join(["self, clock, ttl_ms, cleanup", *given]))
    made: list[str] = []
    if is_stopped:
        # The clock of a job reports a new time, and no access asks for it. A clean-up that rests rests until then.
        changed = ["now_ms = time_ms", "expired_ms = now_ms - ttl_ms"]
        if has_cleanup:
            changed.append("is_due = cleanup.due_ms <= now_ms")
            cleaned = ["nonlocal is_due", "cleanup()", changed[-1]]
            made += ["def clean_up():", *indented(cleaned)]
        made += ["def set_time(time_ms):", *indented(["nonlocal now_ms, expired_ms, is_due", *changed])]
        made = ["now_ms = expired_ms = is_due = None", *made, "clock.follow(set_time)"]
        time, clean_up = [], "if is_due: clean_up()"
    else:
        time, clean_up = ["now_ms = clock()", "expired_ms = now_ms - ttl_ms"], "if cleanup.due_ms <= now_ms: cleanup()"
    exact, clear = handle.exact_value, "return self.clear()"
    lines = TimedLines(
        time,
        [clean_up] if has_cleanup else [],
        handle.emit_read_stored(function),
        [] if exact is None else exact_or_none_lines(serializer, function, none="pass", exact=exact),
        [f"if value is None: {clear}"] if exact is None else exact_or_none_lines(serializer, function, clear, exact),
        handle.emit_write_stored(function),
        handle,
        function,
        renews,
        returns_expired,
    )
    accessors = methods(lines)
    for name, (parameters, body) in accessors.items():
        made += [f"def {name}({parameters}):", *indented(body)]
    made.append(f"return {{{', '.join(f'{name!r}: {name}' for name in accessors)}}}")
    return function.compile(made)
