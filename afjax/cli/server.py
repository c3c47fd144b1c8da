"""Runs the HTTP server of ``afjax serve``."""

import argparse
import contextlib
import signal
import socket
from collections.abc import Iterator
from typing import Any

from afjax.cli.compilation_cache import use_compilation_cache
from afjax.cli.parsers import split_numbers
from afjax.cli.stored_model import load_recorded_trunk, servable_names
from afjax.config.capacity import Capacity
from afjax.config.flags import split_names
from afjax.config.server import ServerConfig
from afjax.display.terminal import print_line
from afjax.display.words import counted
from afjax.distributed.host_memory import return_freed_memory
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.serve.loading import find_artifact, load_model, load_routed_model

# Seconds for active requests to finish after SIGTERM.
GRACE_S = 30
# Seconds before the server closes an idle connection. Clients and load balancers close theirs after at most 60 seconds.
# If the server closed the connection first, a request sent at that moment would fail.
KEEP_ALIVE_S = 75


def serve(arguments: argparse.Namespace) -> None:
    """Loads and compiles the model, and serves requests until SIGTERM or SIGINT.

    Args:
      arguments: The command's flags.

    Raises:
      UserError: The extra ``serve`` is not installed, a flag has an invalid value, the store has no adapter with a
        head, the model cannot be loaded, or the address is unavailable.
    """
    try:
        import uvicorn

        from afjax.serve.app import make_app
    except ImportError as error:
        raise UserError(
            f"The server needs the package {error.name}; install it with pip install 'afjax[serve]'."
        ) from None
    # Check the flags before loading the model, which takes longer.
    config = ServerConfig(
        max_wait_ms=arguments.max_wait_ms,
        max_queue=arguments.max_queue,
        predict_all=arguments.predict_all,
        allowed_hosts=_allowed_hosts(arguments),
    )
    batch_sizes = tuple(split_numbers(arguments.batch_sizes, "--batch_sizes"))
    capacity = Capacity(resident=arguments.resident, batch_sizes=batch_sizes)
    with _reserve_address(arguments.host, arguments.port) as listener:
        use_compilation_cache()
        names = split_names(arguments.adapters) or servable_names(arguments.store)
        trunk = load_recorded_trunk(arguments.trunk, arguments.store, *find_artifact(arguments.store, names[0]))
        model = load_routed_model(arguments.store, trunk, names, capacity=capacity)
        print_line(f"{counted(len(names), 'name')}: {', '.join(names)}. Compiling the programs ...")
        model.warm_up(all_tasks=arguments.predict_all, fusion_attention=True)

        def load(name: str) -> TaskModel:
            loaded = load_model(arguments.store, model.trunk, *find_artifact(arguments.store, name))
            return_freed_memory()
            return loaded

        app = make_app(model, load, config)
        host, port = listener.getsockname()[:2]

        class Server(uvicorn.Server):
            """A server that prints its address once clients can connect."""

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                print_line(f"Serving at http://{f'[{host}]' if ':' in host else host}:{port}. Stop with Ctrl-C.")

        settings: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
        settings |= {"lifespan": "on", "limit_concurrency": config.max_connections}
        settings |= {"timeout_keep_alive": KEEP_ALIVE_S, "timeout_graceful_shutdown": GRACE_S}
        server = Server(uvicorn.Config(app, **settings))
        with _signals_end_only_the_server():
            server.run(sockets=[listener])
        print_line("The server has ended.")


@contextlib.contextmanager
def _signals_end_only_the_server() -> Iterator[None]:
    """Ignores signals that uvicorn re-raises on shutdown, so that the exit is normal."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _allowed_hosts(arguments: argparse.Namespace) -> tuple[str, ...]:
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    names = (*ServerConfig().allowed_hosts, host, *split_names(arguments.allowed_hosts))
    return tuple(dict.fromkeys(map(str.lower, names)))


def _reserve_address(host: str, port: int) -> socket.socket:
    """Binds a socket to the address. It only listens once the programs are compiled."""
    if not host:
        raise UserError("--host is empty, which would mean all addresses; use 0.0.0.0 for all, or 127.0.0.1.")
    if not 0 <= port < 65536:
        raise UserError(f"--port is {port}; it must be from 0 to 65535.")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        return listener
    except OSError as error:
        listener.close()
        raise UserError(f"Cannot listen on {host}, port {port}: {error}. Choose another --host or --port.") from None
