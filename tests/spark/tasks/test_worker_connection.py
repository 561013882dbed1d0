"""The connection of a worker acknowledges received data at once, and other connections are unchanged."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from statebackend.spark.tasks.channels import acknowledge_what_has_come

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "TCP_QUICKACK") or not os.path.isdir("/proc/self/fd"), reason="this is an option of Linux"
)


@pytest.fixture(params=["127.0.0.1", "::1"])
def connection(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """One end of a local connection with delayed acknowledgements."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as server:
        try:
            server.bind((request.param, 0))
        except OSError:
            pytest.skip(f"this host has no {request.param}")
        server.listen()
        with socket.create_connection(server.getsockname()[:2]) as worker, server.accept()[0]:
            worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            yield worker


def acknowledges_at_once(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1


def connections() -> dict[int, str]:
    """The targets of the socket descriptors of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        # The descriptor may have been closed since the listing.
        with contextlib.suppress(FileNotFoundError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return {number: place for number, place in found.items() if place.startswith("socket:")}


def test_received_data_is_acknowledged_at_once(connection: socket.socket) -> None:
    assert not acknowledges_at_once(connection)
    acknowledge_what_has_come()
    assert acknowledges_at_once(connection)


def test_files_stay_open_and_no_descriptor_leaks(connection: socket.socket) -> None:
    before = connections()
    assert connection.fileno() in before
    acknowledge_what_has_come()
    left = connections()
    # Other threads may open and close other connections meanwhile.
    assert left[connection.fileno()] == before[connection.fileno()]
    assert list(left.values()).count(left[connection.fileno()]) == 1


def test_other_sockets_do_no_harm(connection: socket.socket) -> None:
    with socket.socket() as unconnected, socket.socketpair()[0] as local, socket.socket(type=socket.SOCK_DGRAM) as one:
        acknowledge_what_has_come()
        assert all(os.get_blocking(other.fileno()) for other in (unconnected, local, one))
    assert acknowledges_at_once(connection)


def test_a_default_timeout_of_the_program_makes_no_connection_non_blocking(
    connection: socket.socket,
) -> None:
    socket.setdefaulttimeout(60)
    try:
        acknowledge_what_has_come()
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(connection.fileno())


@pytest.mark.parametrize("is_missing", ["option", "list of files"])
def test_a_system_without_the_option_continues_as_before(
    connection: socket.socket, monkeypatch: pytest.MonkeyPatch, is_missing: str
) -> None:
    if is_missing == "option":
        monkeypatch.delattr(socket, "TCP_QUICKACK")
    else:
        monkeypatch.setattr("statebackend.spark.tasks.channels._OPEN_FILES", "/proc/self/nothing")
    acknowledge_what_has_come()
    monkeypatch.undo()
    assert not acknowledges_at_once(connection)
