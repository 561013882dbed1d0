"""The connection over which Spark gives a Python worker its rows: what is on the way is asked for at once.

Spark writes a task's function, its rows and their end in several small pieces, and leaves Nagle's algorithm on: a small
piece waits until the one before it is acknowledged. Linux puts an acknowledgement off for some 40 ms while the receiver
has nothing to say, and a worker has nothing to say before its rows are there. One that acknowledges of its own accord
as it begins has them at once. In an epoch of few rows these 40 ms were a fifth of all.

(Nagle: RFC 896. Delayed acknowledgements: RFC 1122, 4.2.3.2. ``TCP_QUICKACK``: tcp(7).)
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat

__all__ = ["acknowledge_what_has_come"]

_OPEN_FILES = "/proc/self/fd"


def acknowledge_what_has_come() -> None:
    """Acknowledges what has come over the connections of this process within its host.

    PySpark names the connection of a worker nowhere, so every one that may be it is told; nothing but that changes for
    the others. Does nothing where the system has no such option or no list of open files, and where the program has
    set a default timeout, with which Python makes every socket that it touches one that does not block: the rows come
    all the same.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None or socket.getdefaulttimeout() is not None or not os.path.isdir(_OPEN_FILES):
        return
    for name in os.listdir(_OPEN_FILES):
        # A file that was closed since, or a socket that is not connected.
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                _acknowledge(int(name), option)


def _acknowledge(descriptor: int, option: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
        if is_tcp and connection.getsockname()[0] == connection.getpeername()[0]:
            connection.setsockopt(socket.IPPROTO_TCP, option, 1)
