"""The HTTP server's config."""

import dataclasses
import re

from afjax.config.from_dict import check_fields
from afjax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Limits and other settings of the HTTP server.

    Attributes:
      max_wait_ms: Maximum time in milliseconds that a row waits to be batched with rows from other requests.
      max_queue: Maximum number of sequences that are queued or being computed. Further requests get status 429.
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

    max_wait_ms: float = 2.0
    max_queue: int = 1024
    max_body_bytes: int = 2**20
    max_rows: int = 256
    max_text_chars: int = 100_000
    body_timeout_s: float = 10.0
    max_connections: int = 512
    predict_all: bool = False
    allowed_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")

    def __post_init__(self) -> None:
        check_fields(self, "server")
        for field in ("max_queue", "max_body_bytes", "max_rows", "max_text_chars", "max_connections"):
            if getattr(self, field) < 1:
                raise UserError(f"server.{field} is {getattr(self, field)}; it must be at least 1.")
        for field in ("max_wait_ms", "body_timeout_s"):
            if not 0 <= getattr(self, field) < 1e6:
                raise UserError(f"server.{field} is {getattr(self, field)}; it must be 0 or more, and below 1000000.")
        if not self.allowed_hosts:
            raise UserError("server.allowed_hosts is empty; add at least one host name.")
        for name in self.allowed_hosts:
            if not re.fullmatch(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]", name):
                raise UserError(
                    f'server.allowed_hosts has "{name}"; use lower-case host names without a port, such as '
                    "adapters.example or [::1]."
                )
