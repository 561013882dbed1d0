"""An S3-compatible store over HTTP in its own process: `python object_store_process.py`.

It prints its port. It ends when its standard input is closed, and so with its parent process. It serves one request at
a time, because moto checks a condition and writes in two steps, and a real store does both in one.
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
    # An application for S3 only. The one for all services searches 180 of them at each request.
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
