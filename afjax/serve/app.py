"""The HTTP application: an ASGI app that predicts rows with a routed model."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from afjax.config.server import ServerConfig
from afjax.config.tasks import TaskConfig
from afjax.display.terminal import print_line
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.serve.batcher import Batcher, ClosedError, QueueFullError, TooLargeError
from afjax.serve.metrics import Metrics
from afjax.serve.origins import OriginMiddleware
from afjax.serve.page import PAGE, SCRIPT, STYLE
from afjax.serve.requests import Sequences, ServedTask, UnknownTaskError, predict_parts
from afjax.serve.routed_model import RoutedModel
from afjax.tasks.prediction_rows import pick_input

# The field of a row with the name of its adapter, fusion or head.
FIELD = "adapter"
# The page only loads its own script and style, and only talks to this server.
_PAGE_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'"
_JSON = "application/json"


def make_app(
    model: RoutedModel, load: Callable[[str], TaskModel] | None = None, config: ServerConfig = ServerConfig()
) -> Starlette:
    """Makes the application.

    Args:
      model: The model. Compile its programs first with ``warm_up``.
      load: Loads a task's model by its name, for ``PUT /adapters/NAME``. It raises UserError if there is none. None if
        adapters cannot be added and removed.
      config: The limits.

    Returns:
      An ASGI application for any ASGI server. One process serves it, because the model is in its memory.
    """
    service = _Service(model, load, config)
    routes = [
        Route("/", service.page),
        Route("/page.js", service.script),
        Route("/page.css", service.style),
        Route("/healthz", service.health),
        Route("/metrics", service.metrics_text),
        Route("/adapters", service.adapters),
        Route("/adapters/{name:path}", service.add, methods=["PUT"]),
        Route("/adapters/{name:path}", service.remove, methods=["DELETE"]),
        Route("/predict", service.predict, methods=["POST"]),
    ]
    middleware = [
        Middleware(OriginMiddleware, allowed_hosts=config.allowed_hosts),
    ]
    handlers: Any = {HTTPException: _error_response, Exception: _internal_error}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=service.lifespan)


class _Service:
    """The application's state and its endpoints."""

    def __init__(self, model: RoutedModel, load: Callable[[str], TaskModel] | None, config: ServerConfig) -> None:
        self._model, self._load, self._config = model, load, config
        self._metrics = Metrics(lambda: self._batcher.num_sequences, lambda: len(model.names))
        self._batcher = Batcher(
            model.outputs,
            max_batch=model.max_batch,
            max_wait_s=config.max_wait_ms / 1000,
            max_queue=config.max_queue,
            on_batch=self._metrics.record_batch,
        )
        # Tokenizers of the tokenizers library cannot be used by several threads at once.
        self._reading = asyncio.Lock()
        self._changing = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Computes the waiting rows before the server ends."""
        yield
        await run_in_threadpool(self._batcher.close)

    async def page(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": _PAGE_POLICY, "X-Content-Type-Options": "nosniff"}
        return Response(PAGE, media_type="text/html", headers=headers)

    async def script(self, request: Request) -> Response:
        return Response(SCRIPT, media_type="text/javascript")

    async def style(self, request: Request) -> Response:
        return Response(STYLE, media_type="text/css")

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics_text(self, request: Request) -> Response:
        text, media_type = self._metrics.text()
        return Response(text, media_type=media_type)

    async def adapters(self, request: Request) -> Response:
        return JSONResponse({"adapters": [self._description(name) for name in self._model.names]})

    def _description(self, name: str) -> dict[str, Any]:
        model = self._model.task(name).model
        return {
            "name": name,
            "task": model.task.kind,
            "labels": list(model.labels),
            "texts": model.text_columns,
            "fused": [member for member, _ in model.model.adapters] if model.model.fusion_name else [],
            "bytes": self._model.bytes_per_task(name),
        }

    async def add(self, request: Request) -> Response:
        name = request.path_params["name"]
        if self._load is None:
            raise HTTPException(403, "Adapters cannot be added to this server.")
        async with self._changing:
            if name in self._model.names:
                raise HTTPException(409, f'"{name}" is already in service; remove it first.')
            try:
                task_model = await run_in_threadpool(self._load, name)
                await run_in_threadpool(self._model.add, name, task_model)
            except UnknownTaskError:
                raise HTTPException(404, f'The store has no adapter, fusion or head "{name}".') from None
            except UserError as error:
                # The message may name files of the server, so it is only printed there.
                print_line(f'Adding "{name}" failed: {error}')
                raise HTTPException(422, f'"{name}" cannot be served; the server\'s log says why.') from None
        return JSONResponse(self._description(name), 201)

    async def remove(self, request: Request) -> Response:
        if self._load is None:
            raise HTTPException(403, "Adapters cannot be removed from this server.")
        try:
            self._model.remove(request.path_params["name"])
        except UnknownTaskError as error:
            raise HTTPException(404, str(error)) from None
        return Response(status_code=204)

    async def predict(self, request: Request) -> Response:
        with self._metrics.timed_request() as outcome:
            try:
                response = await self._predict(request)
            except HTTPException as error:
                outcome.status = error.status_code
                raise
            outcome.status = response.status_code
        return response

    async def _predict(self, request: Request) -> Response:
        rows, with_attention = self._rows(await self._body(request))
        names = [row[FIELD] for row in rows]
        num_reserved = len(rows)
        with _queue_errors(self._config.max_queue):
            # Before the rows are tokenized, so that tokenizing them does not become a queue without a limit.
            self._batcher.reserve(num_reserved)
        try:
            parts = await self._read(rows, names)
        except BaseException:
            self._batcher.release(num_reserved)
            raise
        with _queue_errors(self._config.max_queue):
            future = self._batcher.submit(parts, reserved=num_reserved)
        outputs = await asyncio.wrap_future(future)
        # Few requests want the attention, so it is not a part of the common batches.
        attention = await run_in_threadpool(self._model.attention, parts) if with_attention else None
        try:
            predictions = await run_in_threadpool(predict_parts, parts, outputs, len(rows), attention)
        except UserError as error:
            # NaN or infinity in an adapter's parameters.
            raise HTTPException(500, str(error)) from None
        self._metrics.record_rows(names)
        return JSONResponse({"predictions": predictions})

    async def _read(self, rows: list[dict[str, Any]], names: list[str | None]) -> list[Sequences]:
        """Checks and tokenizes rows."""
        try:
            tasks = {name: self._model.task(name) for name in dict.fromkeys(names) if name is not None}
            inputs = [_input(f"rows[{index}]", row, tasks) for index, row in enumerate(rows)]
            async with self._reading:
                return await run_in_threadpool(self._model.read, inputs, names)
        except UnknownTaskError as error:
            raise HTTPException(404, str(error)) from None
        except UserError as error:
            raise HTTPException(400, str(error)) from None

    async def _body(self, request: Request) -> bytes:
        """Receives the body, with limits on its size and on the time."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            raise HTTPException(415, f"The Content-Type must be {_JSON}.")
        limit = self._config.max_body_bytes
        body = bytearray()
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise HTTPException(413, f"The body has more than {limit} bytes.")
        except TimeoutError:
            raise HTTPException(408, f"The body did not arrive within {self._config.body_timeout_s:g} s.") from None
        except ClientDisconnect:
            raise HTTPException(400, "The client has gone.") from None
        return bytes(body)

    def _rows(self, body: bytes) -> tuple[list[dict[str, Any]], bool]:
        """Checks the form of a request; returns its rows, and whether it wants the attention over adapters."""
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            raise HTTPException(400, "The body is not JSON.") from None
        request = request if isinstance(request, dict) else {}
        rows, with_attention = request.get("rows"), request.get("fusion_attention", False)
        is_known = set(request) <= {"rows", "fusion_attention"}
        if not (isinstance(rows, list) and rows and is_known and isinstance(with_attention, bool)):
            form = 'The body must be {"rows": [...]} with at least one row, and optionally "fusion_attention": true.'
            raise HTTPException(400, form)
        if len(rows) > self._config.max_rows:
            raise HTTPException(413, f"There are {len(rows)} rows; at most {self._config.max_rows} are allowed.")
        for index, row in enumerate(rows):
            if not isinstance(row, dict) or FIELD not in row:
                raise HTTPException(400, f'rows[{index}] must be an object with the field "{FIELD}".')
            if not (row[FIELD] is None or isinstance(row[FIELD], str)):
                raise HTTPException(400, f'rows[{index}]: "{FIELD}" must be a name, or null for an embedding.')
            try:
                num_chars = _num_chars(row)
            except UnicodeEncodeError:
                raise HTTPException(400, f"rows[{index}] has a text that is not Unicode.") from None
            if num_chars > self._config.max_text_chars:
                limit = self._config.max_text_chars
                raise HTTPException(413, f"rows[{index}] has {num_chars} characters; at most {limit} are allowed.")
        return rows, with_attention


def _input(place: str, row: dict[str, Any], tasks: dict[str, ServedTask]) -> Any:
    """Picks a row's input from its columns."""
    values = {column: value for column, value in row.items() if column != FIELD}
    if row[FIELD] is None:
        return pick_input(place, values, TaskConfig(name="embedding"), None)
    model = tasks[row[FIELD]].model
    return pick_input(place, values, model.task, model.text_columns)


def _num_chars(value: Any) -> int:
    """The number of characters of all strings in a value of JSON.

    Raises:
      UnicodeEncodeError: A string is not Unicode, because of a lone surrogate.
    """
    total, waiting = 0, [value]
    # A loop, because recursion is limited and a value can be deep.
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            value.encode()
            total += len(value)
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
    return total


@contextlib.contextmanager
def _queue_errors(max_queue: int) -> Iterator[None]:
    """Converts the errors of a full queue to answers."""
    try:
        yield
    except TooLargeError:
        message = f"The rows have more sequences than the {max_queue} that may wait; send fewer rows or shorter texts."
        raise HTTPException(413, message) from None
    except QueueFullError:
        raise HTTPException(429, "Too many rows are waiting; try again later.", {"Retry-After": "1"}) from None
    except ClosedError:
        raise HTTPException(503, "The server is shutting down.") from None


async def _error_response(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "Internal error; the server's log says more."}, 500)
