"""The HTTP server's config."""

import dataclasses
import re
from typing import Annotated

from afjax.config.from_dict import Settings
from afjax.config.ranges import PositiveInt, Range
from afjax.errors import UserError

_Duration = Annotated[float, Range(least=0, below=1_000_000)]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ServerConfig(Settings, name="server"):
    """Limits and other settings of the HTTP server.

    Attributes:
      max_wait_ms: Maximum time in milliseconds that a row waits to be batched with rows from other requests.
      max_queue: Maximum number of sequences that are queued or being computed, in each of three queues: requests that
        ask for a fusion's attention, requests to ``predict_all``, and all others. Further requests get status 429.
      max_body_bytes: Maximum size of a request body.
      max_rows: Maximum number of rows per request.
      max_text_chars: Maximum total number of characters in a row's texts.
      body_timeout_s: Timeout in seconds for receiving a request body.
      max_connections: Maximum number of connections. Further ones get status 503.
      predict_all: Whether to serve ``POST /predict_all``, which requires compiling additional programs.
      allowed_hosts: The allowed values of the ``Host`` header, in lower case. IPv6 addresses are in brackets.

    Raises:
      UserError: A field has the wrong type or an invalid value.
    """

    max_wait_ms: _Duration = 2.0
    max_queue: PositiveInt = 1024
    max_body_bytes: PositiveInt = 2**20
    max_rows: PositiveInt = 256
    max_text_chars: PositiveInt = 100_000
    body_timeout_s: _Duration = 10.0
    max_connections: PositiveInt = 512
    predict_all: bool = False
    allowed_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.allowed_hosts:
            raise UserError("server.allowed_hosts is empty; add at least one host name.")
        for name in self.allowed_hosts:
            if not re.fullmatch(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]", name):
                raise UserError(
                    f'server.allowed_hosts has "{name}"; use lower-case host names without a port, such as '
                    "adapters.example or [::1]."
                )
