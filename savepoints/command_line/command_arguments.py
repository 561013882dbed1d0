"""The arguments and options that many commands have, so that they are called and explained alike."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from checkpointing.storage.job_services import JobServices
from checkpointing.storage.zookeeper_high_availability import ZooKeeperHighAvailability

__all__ = ["AsJson", "CheckpointId", "OperatorUid", "Overwrite", "Place", "StateName", "ZooKeeper", "services_of"]

Place: TypeAlias = Annotated[
    str, typer.Argument(metavar="PATH", help="A savepoint, a checkpoint, or the directory of a job (its newest one).")
]
OperatorUid: TypeAlias = Annotated[str, typer.Argument(metavar="OPERATOR", help="The uid of the operator.")]
StateName: TypeAlias = Annotated[str, typer.Argument(metavar="STATE", help="The name of the state.")]
CheckpointId: TypeAlias = Annotated[
    int | None, typer.Option("--checkpoint", help="Which checkpoint of a job directory, by its id.")
]
Overwrite: TypeAlias = Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
ZooKeeper: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--zookeeper", metavar="HOSTS[/ROOT]", help="The ZooKeeper that the job is led by: host:port,host:port/root."
    ),
]


def services_of(zookeeper: str | None, *, stands_by: bool = True) -> JobServices | None:
    """How a job is led, by the option; None is as a job is that was told nothing.

    One that does not stand by is refused at once where another leads.
    """
    if zookeeper is None:
        return None
    return ZooKeeperHighAvailability.at(zookeeper, stand_by_timeout_s=None if stands_by else 0.0)
