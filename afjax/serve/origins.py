"""Refuses requests that other sites make from a user's browser."""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class SameOriginMiddleware:
    """Refuses requests from pages of other origins.

    Browsers send the origin of the page with each request that changes something, and with each cross-site request.
    Other clients, such as curl, do not send it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            # The origin "null" of sandboxed pages has no host.
            is_foreign = origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
            if is_foreign or headers.get("sec-fetch-site") == "cross-site":
                response = JSONResponse({"error": "Requests from pages of other sites are refused."}, 403)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)
