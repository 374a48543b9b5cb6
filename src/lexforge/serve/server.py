"""A process that serves one index: its address, its start and its end."""

from __future__ import annotations

import ipaddress
import socket
import sys
from pathlib import Path
from typing import Any

from lexforge.common.command_line import printable
from lexforge.common.extras import missing_extra
from lexforge.serve.app import create_app

WAITING_CONNECTIONS = 2048
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
STOP_SECONDS = 3  # answers under way when the server is asked to end may take so long


def run_server(directory: Path, host: str, port: int, model: str | None = None, **options: Any) -> None:
    """Serve an index until the process is asked to end by Ctrl-C or SIGTERM.

    Prints one line with the address, as soon as searches are answered, and a warning where other machines may
    reach it. At a loopback address only requests for `LOCAL_HOSTS`, that address or `host` are answered.

    Args:
        directory: The folder of the index.
        host: The address or name of this machine at which connections are taken; `0.0.0.0` is all of them.
        port: The port; 0 takes a free one.
        model: The encoder, as a folder or a hub name; None takes the one that the index names.
        **options: Further arguments of `lexforge.corpus.open_searcher`.

    Raises:
        FileNotFoundError: If the folder holds no index, or there is no such model.
        ImportError: If the extra `serve` is not installed.
        KeyboardInterrupt: After Ctrl-C, when the server has ended.
        OSError: If the port is in use, or the host is none of this machine.
        ValueError: If a file is damaged, the model is not the one that made the index, or there is no such
            port.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise missing_extra("a server", "serve", error) from None
    # The port is taken first, because loading the encoder takes seconds.
    with _take_port(host, port) as taken:
        address, port = taken.getsockname()[:2]
        name = f"[{address}]" if ":" in address else address
        is_local = ipaddress.ip_address(address).is_loopback
        app = create_app(directory, model, hosts={*LOCAL_HOSTS, name, host} if is_local else None, **options)
        app.state.index.open()
        url = f"http://{name}:{port}"
        documents = len(app.state.index.current().searcher)
        print(printable(f"{documents:,} passages of {directory} are searched at {url}"), flush=True)
        if not is_local:
            print(
                f"warning: whoever reaches {address}:{port} can search and read these documents, because "
                "there is no authentication",
                file=sys.stderr,
            )
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_SECONDS
        )
        uvicorn.Server(config).run(sockets=[taken])


def _take_port(host: str, port: int) -> socket.socket:
    """Return a socket that listens at the port.

    Raises:
        OSError: If the port is in use, or the host is none of this machine.
        ValueError: If there is no such port.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535; received {port}")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # It listens at once, because two sockets may be bound to a port until one does.
        return socket.create_server((host, port), family=family, backlog=WAITING_CONNECTIONS)
    except OSError as error:
        raise OSError(f"cannot listen at {host}:{port}: {error}; choose another --port or --host") from error
