"""High availability of a job through ZooKeeper: ids, pointers and leadership there, files in the file system.

What happens when a driver comes to lead (`take_over`), each step either done or not:

1. The node `job` and `job.json` of the directory must be of one job. A directory that is led so for the first time is
   taken into ZooKeeper with the checkpoints that it has, while its lock file keeps other drivers away; from then on the
   directory says where its checkpoints are (`high_availability_file`).
2. The driver files of the leader before are copied to a directory of this driver (`driver_files`).
3. One transaction notes that directory. From here on nobody reads what the former leader writes to its own; it goes.

A crash in between leaves a directory `drivers/<32 hex>` that nobody has noted, which goes at the next take-over.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, field, frozen

from checkpointing.errors import (
    InvariantViolationError,
    JobDirectoryMismatchError,
    StorageError,
)
from checkpointing.handles.checksum import checksum_of_bytes
from checkpointing.handles.state_handles import FileHandle
from checkpointing.storage.checkpoint_directories import DirectoryPointers, checkpoint_directory
from checkpointing.storage.driver_files import (
    DRIVERS_DIRECTORY,
    copy_driver_files,
    delete_driver_files,
    driver_files_of,
    driver_root,
)
from checkpointing.storage.driver_lock import DriverLockFile
from checkpointing.storage.fall_back_file import read_fall_back
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.high_availability_file import read_kept_in, write_kept_in
from checkpointing.storage.job_directory import JobDirectory, JobIdentity
from checkpointing.storage.job_services import DirectoryServices, JobRecords
from checkpointing.storage.metadata_file import metadata_path
from checkpointing.storage.pointed_metadata import CheckpointPointer
from checkpointing.storage.steady_clock import steady_s
from checkpointing.storage.zookeeper_leadership import ZooKeeperLeadership
from checkpointing.storage.zookeeper_nodes import (
    JobNode,
    JobNodes,
    checked_root,
    decode_text,
    encode_pointer,
    encode_text,
)
from checkpointing.storage.zookeeper_pointers import ZooKeeperPointers
from checkpointing.storage.zookeeper_session import ZooKeeperSession, ZooKeeperSettings

if TYPE_CHECKING:
    from kazoo.client import TransactionRequest

__all__ = ["ZooKeeperHighAvailability"]

_USUAL_ROOT: Final = "/statebackend"
_COUNTERPARTS: Final = "Bring back what was lost from a backup, or begin a new job directory from a savepoint"


@frozen
class ZooKeeperHighAvailability:
    """Leads jobs through the ZooKeeper at `hosts` (`host:port`, with commas between); a `JobServices`.

    `root` is a node of its own, below which each job has one under its name. A driver of which the servers have heard
    nothing for `session_timeout_s` seconds has lost the leadership (servers have bounds of their own: 2 to 20 of their
    ticks). A driver that finds another one leading waits for `stand_by_timeout_s` seconds, None for as long as it
    takes. `connection_timeout_s` is how long to wait for a server at the start. `client_options` go to
    `kazoo.client.KazooClient`, for authentication (`auth_data`, `sasl_options`), `default_acl` and TLS (`use_ssl`,
    `ca`, `certfile`, `keyfile`). `monotonic_s` is the clock by which a driver without connection may still lead.

    All drivers of a job have the same root, and the same arguments otherwise. Raises `InvariantViolationError` for what
    makes no sense, and, where it is used, `StorageError` if kazoo is not installed.
    """

    hosts: str
    root: str = _USUAL_ROOT
    session_timeout_s: float = field(default=10.0, kw_only=True)
    connection_timeout_s: float = field(default=15.0, kw_only=True)
    stand_by_timeout_s: float | None = field(default=None, kw_only=True)
    client_options: Mapping[str, Any] = field(factory=dict, kw_only=True, repr=False)
    driver_directory: str | None = field(default=None, kw_only=True)
    monotonic_s: Callable[[], float] = field(default=steady_s, kw_only=True, repr=False)

    def __attrs_post_init__(self) -> None:
        checked_root(self.root)
        self._settings()
        limit = self.stand_by_timeout_s
        is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 0 <= limit <= threading.TIMEOUT_MAX):
            raise InvariantViolationError(
                f"stand_by_timeout_s is {limit!r}; it takes seconds from 0 on, or None for no limit"
            )

    @classmethod
    def at(cls, place: str, *, stand_by_timeout_s: float | None = None) -> ZooKeeperHighAvailability:
        """That of a place as people write it, ``host:port,host:port/root``; without a root, of the usual one."""
        hosts, _, root = place.partition("/")
        return cls(hosts, f"/{root}" if root else _USUAL_ROOT, stand_by_timeout_s=stand_by_timeout_s)

    def with_driver_directory(self, driver_directory: str) -> ZooKeeperHighAvailability:
        """See `JobServices`."""
        return evolve(self, driver_directory=driver_directory)

    def kept_in(self, job_name: str) -> str | None:
        """The node of the job."""
        return f"zookeeper:{self._nodes(job_name).directory}"

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> ZooKeeperLeadership:
        """See `LeadershipProvider`; waits as a stand-by. `JobDirectoryMismatchError` if the node is another job's."""
        nodes = self._nodes(job_name)
        with self._session() as session:
            # Who would wait for the leader of another job would wait in vain.
            self._check_same_job(file_system, JobDirectory.inspect(file_system.uri), nodes, session)
        return ZooKeeperLeadership(self._settings(), nodes, self.stand_by_timeout_s)

    @contextlib.contextmanager
    def looking(self, file_system: CheckpointFileSystem, identity: JobIdentity | None) -> Iterator[JobRecords]:
        """See `JobServices`. A directory that was never led so is looked at as it is."""
        if identity is None or read_kept_in(file_system) is None:
            with DirectoryServices(driver_directory=self.driver_directory).looking(file_system, identity) as records:
                yield records
            return
        nodes = self._nodes(identity.job_name)
        with self._session() as session:
            session.sync(nodes.directory)
            self._check_same_job(file_system, identity, nodes, session)
            pointers = ZooKeeperPointers(file_system, nodes, session)
            root = driver_root(file_system, self.driver_directory, identity.job_id)
            yield JobRecords(file_system, pointers, driver_files_of(root, _directory(nodes, session)))

    def take_over(self, directory: JobDirectory) -> JobRecords:
        """See `JobServices` and the module."""
        leadership, file_system = directory.leadership, directory.file_system
        if not isinstance(leadership, ZooKeeperLeadership):
            raise InvariantViolationError("the job directory was opened with another leadership")
        session, nodes = leadership.session, leadership.nodes
        session.sync(nodes.directory)
        self._check_same_job(file_system, directory.identity, nodes, session)
        if read_kept_in(file_system) is None:
            self._begin(directory, leadership)
        own = f"{DRIVERS_DIRECTORY}/{uuid.uuid4().hex}"
        root = driver_root(file_system, self.driver_directory, directory.identity.job_id)
        others = root.list_directories(DRIVERS_DIRECTORY)
        copy_driver_files(root, _directory(nodes, session), own)
        noted = encode_text(own)
        _carry_out(
            leadership,
            "note the driver files",
            lambda transaction: transaction.set_data(nodes.driver_files, noted),
            lambda: session.get(nodes.driver_files) == noted,
        )
        delete_driver_files(root, others)
        pointers = ZooKeeperPointers(file_system, nodes, session, leadership)
        return JobRecords(file_system, pointers, driver_files_of(root, own))

    def _begin(self, directory: JobDirectory, leadership: ZooKeeperLeadership) -> None:
        """Takes the checkpoints of a directory into ZooKeeper, all at once; nobody leads it by its lock meanwhile."""
        file_system, nodes, session = directory.file_system, leadership.nodes, leadership.session
        is_local = file_system.local_path() is not None
        lock = DriverLockFile().lead(file_system, directory.identity.job_name) if is_local else None
        try:
            if read_fall_back(file_system) is not None:
                raise JobDirectoryMismatchError(
                    f"going back to an older checkpoint was begun in {file_system.uri} and is not finished: finish it "
                    f"without high availability first"
                )
            found = DirectoryPointers(file_system).find()
            pointers = {
                nodes.checkpoint(one): encode_pointer(CheckpointPointer(one, _metadata_file(file_system, one)))
                for one in sorted(found.ids)
            }
            greatest = -1 if found.greatest_id is None else found.greatest_id
            contents = {
                nodes.driver_files: encode_text(""),
                nodes.last_id: encode_text(greatest),
                # The last one, which says that they are there.
                nodes.job: JobNode(directory.identity.job_id, file_system.uri).encode(),
            }
            for parent in (nodes.checkpoints, nodes.set_aside):
                session.make(parent)
            # A crash may have come between this and the file: the directory has gone on since.
            former = [f"{nodes.checkpoints}/{name}" for name in session.children(nodes.checkpoints)]
            there = {node for node in contents if session.exists(node)}

            def build(transaction: TransactionRequest) -> None:
                for node in former:
                    transaction.delete(node)
                for node, content in pointers.items():
                    transaction.create(node, content)
                for node, content in contents.items():
                    (transaction.set_data if node in there else transaction.create)(node, content)

            _carry_out(
                leadership,
                f"take the checkpoints of {file_system.uri} over",
                build,
                lambda: (
                    all(session.get(node) == content for node, content in {**pointers, **contents}.items())
                    and len(session.children(nodes.checkpoints)) == len(pointers)
                ),
            )
            write_kept_in(file_system, f"zookeeper:{nodes.directory}")
        finally:
            if lock is not None:
                lock.close()

    def _check_same_job(
        self,
        file_system: CheckpointFileSystem,
        identity: JobIdentity | None,
        nodes: JobNodes,
        session: ZooKeeperSession,
    ) -> None:
        where = f"zookeeper:{nodes.job} ({session.hosts})"
        data = session.get(nodes.job)
        if data is None:
            if read_kept_in(file_system) is not None:
                raise JobDirectoryMismatchError(
                    f"{where} does not exist, and the completed checkpoints of {file_system.uri} are noted beside it: "
                    f"this is another ZooKeeper, or it has lost its data. {_COUNTERPARTS}"
                )
            return
        noted = JobNode.decode(data, where)
        if identity is None or identity.job_id != noted.job_id:
            raise JobDirectoryMismatchError(
                f"{where} is of the job in {noted.job_directory}, and not of the one in {file_system.uri}. Give this "
                f"job another name, or another root"
            )

    def _nodes(self, job_name: str) -> JobNodes:
        return JobNodes(self.root, job_name)

    def _settings(self) -> ZooKeeperSettings:
        return ZooKeeperSettings(
            self.hosts, self.session_timeout_s, self.connection_timeout_s, self.client_options, self.monotonic_s
        )

    def _session(self) -> contextlib.closing[ZooKeeperSession]:
        return contextlib.closing(ZooKeeperSession(self._settings()))


def _directory(nodes: JobNodes, session: ZooKeeperSession) -> str:
    """Where the driver files are, relative to the job directory."""
    data = session.get(nodes.driver_files)
    return "" if data is None else str(decode_text(data, f"zookeeper:{nodes.driver_files}", str))


def _metadata_file(file_system: CheckpointFileSystem, checkpoint_id: int) -> FileHandle:
    path = metadata_path(checkpoint_directory(checkpoint_id))
    data = file_system.read_file(path)
    return FileHandle(path, len(data), checksum_of_bytes(data))


def _carry_out(
    leadership: ZooKeeperLeadership,
    what: str,
    build: Callable[[TransactionRequest], object],
    is_done: Callable[[], bool],
) -> None:
    obstacle = leadership.commit(what, build, is_done)
    if obstacle is not None:
        raise StorageError(
            f"cannot {what} in ZooKeeper: {type(obstacle).__name__} {obstacle}. Start again; if it happens again, "
            f"another program changes what is there"
        ) from obstacle
