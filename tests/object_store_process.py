"""An S3-compatible store over HTTP in its own process: `python object_store_process.py`.

It prints its port, and ends when its standard input is closed, so that it ends with its parent process. Requests are
served one at a time, because moto checks a condition and writes in two steps, which a real store does in one.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import make_server


def main() -> None:
    """Serve until the standard input ends."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    one_at_a_time = threading.Lock()
    # Of the one service. An application for all of them looks for the service of each request among 180.
    store = create_backend_app("s3")

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with one_at_a_time:
            return list(store(environ, start_response))

    server = make_server("127.0.0.1", 0, serve, threaded=True)
    threading.Thread(target=_end_with_the_input, daemon=True).start()
    print(server.port, flush=True)  # noqa: T201
    server.serve_forever()


def _end_with_the_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
