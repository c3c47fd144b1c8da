"""Settings of the HTTP server."""

import dataclasses
import re

from afjax.config.from_dict import check_fields
from afjax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The limits and other settings of the HTTP server.

    Attributes:
      max_wait_ms: The longest time that a row waits for rows of other requests, in milliseconds.
      max_queue: The largest number of sequences that wait or are computed. Further requests get the status 429.
      max_body_bytes: The largest size of a request's body.
      max_rows: The largest number of rows per request.
      max_text_chars: The largest number of characters of a row's texts together.
      body_timeout_s: The longest time to receive a request's body, in seconds.
      max_connections: The largest number of connections. Further ones get the status 503.
      predict_all: Whether ``POST /predict_all`` is answered. Its programs have to be compiled.
      allowed_hosts: The names that clients may use in the ``Host`` header, in lower case. IPv6 addresses have brackets.

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
            raise UserError("server.allowed_hosts is empty; give at least one name.")
        for name in self.allowed_hosts:
            if not re.fullmatch(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]", name):
                raise UserError(
                    f'server.allowed_hosts has "{name}"; give names in lower case and without a port, as in '
                    "adapters.example or [::1]."
                )
