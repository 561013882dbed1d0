"""Shorter schedules of the cluster: with one fault, node, record or subtask less."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from verification.simulation.cluster.plan import ClusterPlan, Edge

__all__ = ["shorter_clusters"]


def shorter_clusters(plan: ClusterPlan) -> Iterator[ClusterPlan]:
    """Yield plans that lack something, the largest reductions first."""
    for index in range(len(plan.faults)):
        yield evolve(plan, faults=plan.faults[:index] + plan.faults[index + 1 :])
    for node in reversed(plan.nodes):
        edges = tuple(plan.without_node(node))
        if edges and all(_is_whole(edges, kept) for kept in plan.nodes if kept != node):
            yield evolve(plan, edges=edges)
    if plan.parallelism > 1:
        yield evolve(plan, parallelism=plan.parallelism - 1)
    for records in sorted({1, plan.records // 2, plan.records - 1}):
        if 1 <= records < plan.records:
            yield evolve(plan, records=records)
    if plan.savepoints:
        yield evolve(plan, savepoints=())
    if plan.slow:
        yield evolve(plan, slow=frozenset())
    if plan.max_concurrent > 1:
        yield evolve(plan, max_concurrent=1)
    for index, fault in enumerate(plan.faults):
        for at in sorted({fault.at // 2, fault.at - 1}):
            if 0 <= at < fault.at:
                yield evolve(plan, faults=(*plan.faults[:index], evolve(fault, at=at), *plan.faults[index + 1 :]))


def _is_whole(edges: tuple[Edge, ...], node: int) -> bool:
    """Return whether a node is still in the graph."""
    return any(node in (edge.sender, edge.reader) for edge in edges)
