"""Rejects requests that other sites make from a user's browser."""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# This path is answered for any host name, because load balancers may use any name in health checks. The response is not
# secret.
_FOR_ANY_HOST = "/healthz"


class OriginMiddleware:
    """Rejects requests with an unknown ``Host`` or from pages of other origins.

    ``Host`` is checked because another site's page could reach this server under that site's name (DNS rebinding).
    Browsers send the page's origin with every cross-site request and every request that changes state. Other clients,
    such as curl, do not send it.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str]) -> None:
        """Wraps an application.

        Args:
          app: The application.
          allowed_hosts: The allowed host names, in lower case. IPv6 addresses are in brackets.
        """
        self._app, self._allowed_hosts = app, allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            status, message = refusal
            await JSONResponse({"error": message}, status)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Returns the status and message for a rejected request, or None if it is allowed."""
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if scope["path"] != _FOR_ANY_HOST and _without_port(host) not in self._allowed_hosts:
            return 400, "The Host header does not match this server; see --allowed_hosts."
        origin = headers.get("origin")
        # Links from other sites to this one are allowed.
        follows_link = scope["method"] in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
        is_cross_site = headers.get("sec-fetch-site") == "cross-site" and not follows_link
        if is_cross_site or (origin is not None and _host_of(origin) != host):
            return 403, "Requests from other sites' pages are rejected."
        return None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _host_of(origin: str) -> str | None:
    """Extracts an origin's host and port, or None for "null" (sandboxed pages)."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
