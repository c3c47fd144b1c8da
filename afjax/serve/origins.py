"""Refuses requests that other sites make from a user's browser."""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# Health checks of load balancers may use any name for the server. The answer is not secret.
_FOR_ANY_HOST = "/healthz"


class OriginMiddleware:
    """Refuses requests with an unknown ``Host``, and requests from pages of other origins.

    A page of another site could reach this server under its own name (DNS rebinding), so the name in ``Host`` is
    checked. Browsers send the origin of the page with each request that changes something, and with each cross-site
    request. Other clients, such as curl, do not send it.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str]) -> None:
        """Makes the middleware.

        Args:
          app: The application.
          allowed_hosts: The names that ``Host`` may have, in lower case. An IPv6 address has brackets.
        """
        self._app, self._allowed_hosts = app, allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            status, message = refusal
            await JSONResponse({"error": message}, status)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Returns the status and the message to refuse a request with, or None if the request is allowed."""
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if scope["path"] != _FOR_ANY_HOST and _without_port(host) not in self._allowed_hosts:
            return 400, "The Host header has a name that this server does not have; see --allowed_hosts."
        origin = headers.get("origin")
        # A link on a page of another site may lead here.
        follows_link = scope["method"] in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
        is_cross_site = headers.get("sec-fetch-site") == "cross-site" and not follows_link
        if is_cross_site or (origin is not None and _host_of(origin) != host):
            return 403, "Requests from pages of other sites are refused."
        return None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _host_of(origin: str) -> str | None:
    """Returns the host and port of an origin, or None if it has none, like the origin "null" of sandboxed pages."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
