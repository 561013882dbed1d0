"""Random job graphs as data: nodes, events and cuts, made by a seed.

Subtasks run in no particular order, so a graph must not depend on it. Every stream therefore has an `Order`: the
columns by which its records are ordered, and its sources. An operator that depends on the order of its input only
follows a stream that has one. Two inputs have a defined order between them if no event reaches both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final

from attrs import evolve, field, frozen

__all__ = ["MAIN", "SIDE", "STATELESS", "Event", "GraphPlan", "Node", "Order", "consumed", "orders"]

MAIN: Final = ""
SIDE: Final = "side"

_KEYS: Final[Sequence[tuple[str, ...]]] = (("k",), ("v",), ("k", "v"))
_CUT_IN: Final = 5
"""One plan in this many has cuts, which take most of the time of a plan."""

Stream = tuple[int, str]
"""The number of a node, and the tag of its output."""


@frozen
class Node:
    """A source, a stateless step, a union or an operator, with its input streams and key columns."""

    kind: str
    inputs: tuple[Stream, ...] = ()
    key: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(factory=dict)

    def __getitem__(self, option: str) -> Any:
        return self.options.get(option)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The key columns as the program writes them: any letter case names a column."""
        return tuple(map(str.upper, self.key)) if self["capitals"] else self.key

    @property
    def has_side(self) -> bool:
        """Whether the operator has a side output."""
        return bool(self["side"])


@frozen
class Event:
    """A record of a source (key, value, timestamp), its watermark, the clock, or a cut.

    After a cut the job has another parallelism and backend, and ``seed`` decides the order of its subtasks.
    """

    kind: str
    source: int = 0
    record: tuple[int, int, int] = (0, 0, 0)
    time: int = 0
    parallelism: int = 1
    backend: str = "heap"
    seed: int | None = None


@frozen
class Order:
    """The columns by which the records of a stream are ordered (None: none), and its sources.

    Some streams have no timestamps for timers and windows, others no declared schema.
    """

    columns: frozenset[str] | None
    sources: frozenset[str]
    is_timed: bool = True
    has_schema: bool = True
    has_operator: bool = True
    """Whether an operator is between the stream and its sources."""

    def is_ordered_by(self, key: Sequence[str]) -> bool:
        """Whether the records of each such key come in a defined order."""
        return self.columns is not None and self.columns <= set(key)


_CLOCK: Final = "clock"
_KINDS: Final = (
    *("running", "running", "collect", "window", "window", "window", "multi", "multi", "multi", "interval", "interval"),
    *("cogroup", "cogroup", "union", "union", "broadcast", "broadcast", "broadcast", "map", "async"),
)
"""The kinds of nodes, by how often they are tried; those with several inputs are often not possible."""
STATELESS: Final = ("source", "map", "union")


@frozen
class GraphPlan:
    """A graph and its events.

    ``is_batched`` plans are for environments: records come in batches, each of which advances the watermark at its end.
    The test harness plays other plans event by event.
    """

    seed: int
    nodes: tuple[Node, ...]
    events: tuple[Event, ...]
    is_batched: bool
    parallelism: int
    backend: str

    @classmethod
    def of_seed(cls, seed: int) -> GraphPlan:
        """Return the plan of a seed."""
        random = Random(f"graph-{seed}")
        has_cuts = seed % _CUT_IN == 0
        is_batched = random.random() < 0.3
        nodes = _nodes(random, is_batched)
        # A third of those with cuts alternate the backend, and a few of the others have RocksDB.
        backends = ("heap", "rocksdb") if has_cuts and random.random() < 0.35 else ("heap",)
        if not has_cuts and random.random() < 0.05:
            backends = ("rocksdb",)
        return cls(
            seed=seed,
            nodes=nodes,
            events=_events(random, nodes, is_batched, backends if has_cuts else ()),
            is_batched=is_batched,
            parallelism=random.choice((1, 1, 1, 2, 3)),
            backend=random.choice(backends),
        )

    def description(self) -> str:
        """The plan as text, one line per node and event."""
        lines = [f"batched={self.is_batched} parallelism={self.parallelism} backend={self.backend}"]
        for index, node in enumerate(self.nodes):
            reads = ", ".join(f"{number}{'.' + tag if tag else ''}" for number, tag in node.inputs)
            options = " ".join(f"{name}={value}" for name, value in node.options.items() if value)
            lines.append(f"  node {index}: {node.kind}({reads}) by {','.join(node.key) or '-'} {options}")
        for event in self.events:
            what: object = event.record if event.kind == "record" else event.time
            if event.kind == "cut":
                what = f"parallelism={event.parallelism} backend={event.backend} seed={event.seed}"
            lines.append(f"  {event.kind} {event.source if event.kind in ('record', 'watermark') else ''} {what}")
        return "\n".join(lines)

    def shorter(self) -> Iterator[GraphPlan]:
        """Return plans with a few events or one node less, or with simpler settings; the largest reductions first."""
        size = len(self.events) // 2
        while size:
            for begin in range(0, len(self.events), size):
                yield evolve(self, events=self.events[:begin] + self.events[begin + size :])
            size //= 2
        for index in reversed(range(len(self.nodes))):
            without = _without(self.nodes, index)
            if without is not None:
                nodes, numbers = without
                events = [
                    evolve(one, source=numbers.get(one.source, 0)) for one in self.events if _is_for(one, numbers)
                ]
                yield evolve(self, nodes=nodes, events=tuple(events))
        if self.parallelism > 1:
            yield evolve(self, parallelism=1)
        if self.backend != "heap":
            yield evolve(self, backend="heap")
        for index, event in enumerate(self.events):
            if event.kind == "cut":
                for simpler in (
                    evolve(event, parallelism=1),
                    evolve(event, backend=self.backend),
                    evolve(event, seed=None),
                ):
                    if simpler != event:
                        yield evolve(self, events=(*self.events[:index], simpler, *self.events[index + 1 :]))


def orders(nodes: Sequence[Node], *, is_batched: bool) -> dict[Stream, Order]:
    """Return the order of every stream of a graph."""
    known: dict[Stream, Order] = {}
    for index, node in enumerate(nodes):
        given = [known[stream] for stream in node.inputs]
        sources = frozenset[str]().union(*(one.sources for one in given))
        if node.kind == "source":
            sources |= {f"{index}"}
        if node["clock"]:
            sources |= {_CLOCK}
        for tag in (MAIN, SIDE):
            known[index, tag] = Order(
                columns=_columns(node, tag, given, is_batched),
                sources=sources,
                is_timed=all(one.is_timed for one in given) and node["shape"] != "global" and not _loses_time(node),
                has_schema=node.kind != "map" and (node.kind != "union" or any(one.has_schema for one in given)),
                has_operator=node.kind not in STATELESS or any(one.has_operator for one in given),
            )
    return known


def _loses_time(node: Node) -> bool:
    return node.kind == "collect" and bool(node["clock"])


def consumed(nodes: Sequence[Node]) -> set[Stream]:
    """The streams that a node reads."""
    return {stream for node in nodes for stream in node.inputs}


def are_apart(given: Sequence[Order], *, is_batched: bool) -> bool:
    """Whether no event reaches two of these streams; a batch is for all sources at once."""
    return not is_batched and sum(len(one.sources) for one in given) == len(
        frozenset[str]().union(*(one.sources for one in given))
    )


def _columns(node: Node, tag: str, given: Sequence[Order], is_batched: bool) -> frozenset[str] | None:
    key = frozenset(node.key)
    if node.kind == "source":
        return frozenset()
    if node.kind == "collect" or (
        node.kind == "window" and tag == MAIN and not node["slide"] and not node["continuous"]
    ):
        # Timers of a key fire in the order of their times.
        return key
    columns = [one.columns for one in given]
    if None in columns or (len(given) > 1 and not are_apart(given, is_batched=is_batched)):
        return None
    merged = frozenset[str]().union(*(one for one in columns if one is not None))
    if node.kind in ("map", "union"):
        return merged
    if not merged <= key or node.kind in ("window", "interval", "cogroup") or node["ordered"] is False:
        return None
    is_by_record = node.kind in ("running", "multi") and not node["timer"]
    # Event by event, one record produces one record, so the order of all records is kept. In a batch, only the order of
    # the records of a key is kept.
    return merged if is_by_record and not merged and not is_batched else key


def _without(nodes: Sequence[Node], gone: int) -> tuple[tuple[Node, ...], dict[int, int]] | None:
    """Return the graph without a node and its readers, and the new numbers of the others."""
    removed = {gone}
    for index, node in enumerate(nodes):
        if any(number in removed for number, _ in node.inputs):
            removed.add(index)
    kept = [index for index in range(len(nodes)) if index not in removed]
    numbers = {index: place for place, index in enumerate(kept)}
    left = tuple(
        evolve(nodes[index], inputs=tuple((numbers[number], tag) for number, tag in nodes[index].inputs))
        for index in kept
    )
    return (left, numbers) if any(node.kind not in STATELESS for node in left) else None


def _is_for(event: Event, numbers: Mapping[int, int]) -> bool:
    return event.kind not in ("record", "watermark") or event.source in numbers


def _nodes(random: Random, is_batched: bool) -> tuple[Node, ...]:
    nodes = [Node("source") for _ in range(random.choice((1, 1, 2, 2, 3)))]
    wanted = len(nodes) + random.choice((1, 2, 2, 3, 4))
    while len(nodes) < wanted or all(node.kind in STATELESS for node in nodes):
        node = _node(random, nodes, is_batched)
        if node is not None:
            nodes.append(node)
    return tuple(nodes)


def _node(random: Random, nodes: Sequence[Node], is_batched: bool) -> Node | None:
    known = orders(nodes, is_batched=is_batched)
    streams = [(index, MAIN) for index in range(len(nodes))]
    streams += [(index, SIDE) for index, node in enumerate(nodes) if node.has_side]
    unread = [one for one in streams if one not in consumed(nodes)]
    kind = random.choice(_KINDS)
    several = {"multi": random.choice((2, 2, 3)), "interval": 2, "cogroup": 2, "union": random.choice((2, 2, 3))}
    count = several.get(kind, 2 if kind == "broadcast" else 1)
    # Unread streams come first, or the graph would be a star.
    inputs = [random.choice(unread if unread and random.random() < 0.7 else streams) for _ in range(count)]
    if count > 1 and len(set(inputs)) < count:
        return None
    key = () if kind in ("union", "map") else random.choice(_KEYS)
    given = [known[stream] for stream in inputs]
    options = _OPTIONS[kind](random, is_batched, _is_ordered(given, key, is_batched))
    # Rows without a schema have their columns by exact name.
    options["capitals"] = len(nodes) % 2 == 1 and all(one.has_schema for one in given)
    node = Node(kind, tuple(inputs), key, options)
    return node if _is_allowed(node, nodes, given, is_batched) else None


def _is_ordered(given: Sequence[Order], key: Sequence[str], is_batched: bool) -> bool:
    apart = len(given) == 1 or are_apart(given, is_batched=is_batched)
    return apart and all(one.is_ordered_by(key) for one in given)


def _is_allowed(node: Node, nodes: Sequence[Node], given: Sequence[Order], is_batched: bool) -> bool:
    if node.kind in ("running", "multi") and not _is_ordered(given, node.key, is_batched):
        return False
    if node.kind == "async" and not is_batched:
        # Answers come in any order, and are only complete at a cut.
        return False
    if not all(one.is_timed for one in given) and not _needs_no_time(node):
        return False
    keeps_rows = node.kind in ("interval", "cogroup") or (node.kind == "window" and not _is_folded(node))
    if keeps_rows and not all(one.has_schema for one in given):
        return False
    if node["clock"] and any(_CLOCK in one.sources for one in given):
        return False
    if node.kind == "broadcast":
        # Every subtask must receive the rules in one order, and no event may contain both data and rules.
        rules = nodes[node.inputs[1][0]]
        return rules.kind == "source" and not given[0].sources & given[1].sources
    if len(given) > 1 and not is_batched:
        # Streams with the same sources have the same watermarks. Streams with different sources share no event.
        return are_apart(given, is_batched=False) or len({one.sources for one in given}) == 1
    return True


def _needs_no_time(node: Node) -> bool:
    if node.kind in ("window", "collect"):
        return node["shape"] == "global" or bool(node["clock"])
    return node.kind in ("multi", "map", "union", "broadcast") or (node.kind == "running" and not node["timer"])


def _is_folded(node: Node) -> bool:
    return node["function"] == "aggregate" and not node["evictor"]


def _running(random: Random, is_batched: bool, is_ordered: bool) -> dict[str, Any]:
    return {
        "state": random.choice(("value", "list", "map", "reducing", "aggregating")),
        "timer": random.choice((0, 0, 3, 8)),
        "side": random.random() < 0.3,
        "reuses": random.random() < 0.2,
        "changes": random.random() < 0.2,
    }


def _collect(random: Random, is_batched: bool, is_ordered: bool) -> dict[str, Any]:
    clock = not is_batched and random.random() < 0.3
    return {"width": random.choice((4, 10)), "past": not is_batched, "clock": clock}


def _window(random: Random, is_batched: bool, is_ordered: bool) -> dict[str, Any]:
    size = random.choice((5, 8, 10))
    chosen: dict[str, Any] = {
        "side": random.random() < 0.5,
        "function": random.choice(("process", "aggregate", "reduce")),
    }
    shape = random.choice(
        ("tumbling", "sliding", "session", "global", "clock") if is_ordered else ("tumbling", "sliding")
    )
    if shape == "clock" and is_batched:
        shape = "session"
    if shape == "global":
        trigger = {"count": random.choice((2, 3)), "purging": random.random() < 0.5}
        return chosen | trigger | {"shape": shape, "side": False, "evictor": random.choice((0, 0, 2))}
    if shape == "clock":
        return chosen | {"shape": shape, "size": size, "clock": True, "side": False}
    chosen |= {"shape": shape, "size": size, "offset": random.choice((0, 0, 3))}
    if shape == "sliding":
        chosen["slide"] = random.choice((3, 4, 12))
    if shape == "session":
        chosen |= {"gap": random.choice((3, 6)), "dynamic": random.random() < 0.3, "offset": 0}
    if is_ordered:
        chosen["lateness"] = random.choice((0, 0, 4, 15))
        chosen["purging"] = random.random() < 0.2
        if random.random() < 0.25:
            chosen["count"] = random.choice((2, 3))
        elif shape == "tumbling" and random.random() < 0.3:
            chosen["continuous"] = random.choice((2, 3))
        if shape != "session" and random.random() < 0.2:
            chosen["evictor"] = 2
    return chosen


def _multi(random: Random, is_batched: bool, is_ordered: bool) -> dict[str, Any]:
    return {}


def _interval(random: Random, is_batched: bool, is_ordered: bool) -> dict[str, Any]:
    lower = random.choice((-8, -3, 0, 2))
    return {"lower": lower, "upper": lower + random.choice((0, 4, 10)), "side": random.random() < 0.4}


def _cogroup(random: Random, is_batched: bool, is_ordered: bool) -> dict[str, Any]:
    return {"size": random.choice((5, 10)), "pairs": random.random() < 0.5}


def _async(random: Random, is_batched: bool, is_ordered: bool) -> dict[str, Any]:
    return {"ordered": random.random() < 0.5}


_OPTIONS: Final = {
    "running": _running,
    "collect": _collect,
    "window": _window,
    "multi": _multi,
    "interval": _interval,
    "cogroup": _cogroup,
    "union": _multi,
    "broadcast": _multi,
    "map": lambda random, *_: {"factor": random.choice((1, 2, 3))},
    "async": _async,
}


def _events(random: Random, nodes: Sequence[Node], is_batched: bool, backends: Sequence[str]) -> tuple[Event, ...]:
    """Return the events. Without backends there are no cuts."""
    sources = [index for index, node in enumerate(nodes) if node.kind == "source"]
    return tuple(
        _batches(random, sources, backends) if is_batched else _single_events(random, nodes, sources, backends)
    )


def _record(random: Random, source: int, time: int) -> Event:
    return Event("record", source, (random.randrange(4), random.randrange(7), time))


def _cut(random: Random, backends: Sequence[str]) -> Event:
    seed = random.choice((None, random.randrange(100)))
    return Event("cut", parallelism=random.choice((1, 1, 2, 3)), backend=random.choice(backends), seed=seed)


def _single_events(
    random: Random, nodes: Sequence[Node], sources: Sequence[int], backends: Sequence[str]
) -> Iterator[Event]:
    count = random.choice((10, 20, 40))
    cuts = set(random.sample(range(count), random.choice((1, 1, 2)) if backends else 0))
    now, clock = 0, 0
    has_clock = any(node["clock"] for node in nodes)
    for place in range(count):
        now += random.choice((0, 0, 1, 2))
        if place in cuts:
            yield _cut(random, backends)
        kind = random.random()
        if kind < 0.2:
            yield Event("watermark", random.choice(sources), time=now + random.choice((-6, -3, 0, 2)))
        elif kind < 0.3 and has_clock:
            clock += random.choice((1, 4, 20))
            yield Event("clock", time=clock)
        else:
            yield _record(random, random.choice(sources), now + random.choice((-20, -9, -4, 0, 0, 1, 3, 8)))


def _batches(random: Random, sources: Sequence[int], backends: Sequence[str]) -> Iterator[Event]:
    """Batches are separated by cuts."""
    now = 0
    for batch in range(random.choice((2, 2, 3)) if backends else 1):
        if batch:
            yield _cut(random, backends)
        for _ in range(random.choice((3, 8, 16))):
            now += random.choice((0, 1, 2))
            yield _record(random, random.choice(sources), now + random.choice((-20, -9, -4, 0, 0, 1, 3)))
