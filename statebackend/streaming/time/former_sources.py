"""The watermarks of a checkpoint for a program that has other sources, or calls them otherwise (pure).

A source is known by its uid: as the source of channels, as a node, and as the channel of whoever reads it. One that was
given no uid is called by its place; it keeps what is known of it when it is given one, as long as no source without a
uid comes or goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from attrs import evolve

from statebackend.checkpoint.metadata import InputWatermark, WatermarkState

__all__ = ["under_present_uids", "without_sources"]


def under_present_uids(
    state: WatermarkState, uids: Sequence[str], is_by_place: Callable[[str], bool]
) -> WatermarkState:
    """The state under the uids that the sources of the job have now, in their order.

    ``is_by_place`` says of the name of a source whether it is that of a source without a uid.
    """
    former = [one.node for one in state.nodes if not one.inputs]
    if len(former) != len(uids) or not all(map(is_by_place, former)):
        return state
    names = dict(zip(former, uids, strict=True))
    return evolve(
        state,
        channels=tuple(evolve(one, source=names.get(one.source, one.source)) for one in state.channels),
        nodes=tuple(
            evolve(one, node=names.get(one.node, one.node), inputs=_with_channels(one.inputs, names))
            for one in state.nodes
        ),
    )


def without_sources(state: WatermarkState, uids: Collection[str]) -> WatermarkState:
    """The state without what is known of these sources, which then begin as new ones do."""
    kept = [one for one in state.nodes if one.inputs or one.node not in uids]
    # An input has channels; one of a name that nobody has is not waited for.
    others = {one.node for one in state.nodes}
    nobodys = {uid: next(name for name in _primed(uid) if name not in others) for uid in uids}
    return evolve(
        state,
        channels=tuple(one for one in state.channels if one.source not in uids),
        nodes=tuple(evolve(one, inputs=_with_channels(one.inputs, nobodys)) for one in kept),
    )


def _primed(name: str) -> Iterator[str]:
    while True:
        name += "'"
        yield name


def _with_channels(inputs: Iterable[InputWatermark], names: Mapping[str, str]) -> tuple[InputWatermark, ...]:
    """The inputs with these names for their channels; the others keep theirs."""
    return tuple(
        evolve(
            valve, channels=tuple(evolve(one, channel=names.get(one.channel, one.channel)) for one in valve.channels)
        )
        for valve in inputs
    )
