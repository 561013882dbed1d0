"""The command `ui`: serves the page of `statebackend.ui`."""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Annotated

import typer

from statebackend.checkpoint.errors import SavepointError
from statebackend.cli.printing import Printer
from statebackend.cli.terminal import AsJson, ZooKeeper, print_answer, services_of


def ui(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Jobs, savepoints or checkpoints, or local directories of jobs and savepoints."
        ),
    ],
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 for a free one.")] = 8765,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="A name by which browsers may reach the page.")
    ] = None,
    zookeeper: ZooKeeper = None,
    as_json: AsJson = False,
) -> None:
    """Serve a read-only page of jobs, savepoints and their state, until it is interrupted."""
    try:
        from statebackend.ui.places import Places
        from statebackend.ui.server import Access, serve
    except ModuleNotFoundError as error:
        raise SavepointError(f"the page needs {error.name}: pip install 'statebackend[ui]'") from error

    access = Access([host, *(allow_host or ())])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        shown_host = f"[{host}]" if ":" in host else host
        answer = {"url": f"http://{shown_host}:{listener.getsockname()[1]}/?token={access.token}"}
        if not _is_loopback(host):
            answer["warning"] = "the page is not encrypted: other machines of the network can read token and state"
        print_answer(as_json, answer, _print_address)
        # Into a pipe too, the address comes before the page is served.
        sys.stdout.flush()
        serve(Places(paths, services_of(zookeeper)), access, listener)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _print_address(printer: Printer, answer: dict[str, str]) -> None:
    if "warning" in answer:
        printer.line(f"warning: {answer['warning']}", "yellow")
    printer.line(f"open {answer['url']}")
