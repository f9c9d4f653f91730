"""The server as a program: a socket, uvicorn, an orderly end."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from towerpack._core.errors import ConfigError
from towerpack.serving._app import create_app

_STOP_S = 30  # that requests have to finish when the server is stopped


def serve(
    path: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8501,
    ready: Callable[[str], object] = lambda url: None,
    **options: Any,
) -> None:
    """Serve a model until SIGTERM or Ctrl-C; what is being answered then is answered first.

    Args:
        path: What `towerpack export` wrote.
        host: The address to listen at. By default, other machines cannot reach the server.
        port: 0 for any that is free.
        ready: Called with the server's URL when it takes requests.
        **options: Of `create_app`.

    Raises:
        ConfigError: There is no model, or the address cannot be listened at.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # Before the model, which takes seconds to load.
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        what = f"The server cannot listen at {host}, port {port}: {error.strerror or error}."
        raise ConfigError(what, fix="another --port; 0 takes one that is free") from error
    with listening:
        config = uvicorn.Config(
            create_app(path, **options),
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=_STOP_S,
        )
        ready(f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}")
        # uvicorn raises the signal again when it is done, which would end the process as a failure.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        uvicorn.Server(config).run(sockets=[listening])
