"""The HTTP application: an ASGI app that predicts rows with a routed model."""

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from afjax.config.server import ServerConfig
from afjax.display.terminal import print_line
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.serve.batcher import Batcher, ClosedError, Part, PartOutputs, QueueFullError, TooLargeError
from afjax.serve.bodies import parse_predict, parse_predict_all
from afjax.serve.columns import ADAPTER_COLUMN, pick_inputs, pick_task_input, without_adapter
from afjax.serve.metrics import Metrics
from afjax.serve.origins import OriginMiddleware
from afjax.serve.requests import Sequences, SharedSequences, UnknownTaskError, predict_groups, predict_parts
from afjax.serve.routed_model import RoutedModel

# The page may only load its own script and style, and only connect to this server.
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}
_JSON = "application/json"
# Status in the metrics if the client closed the connection. There is no standard code; nginx uses 499.
CLIENT_HAS_GONE = 499


def make_app(
    model: RoutedModel, load: Callable[[str], TaskModel] | None = None, config: ServerConfig = ServerConfig()
) -> Starlette:
    """Creates the ASGI application.

    Args:
      model: The model. Compile its programs first with ``warm_up``.
      load: Loads a task's model by name, for ``PUT /adapters/NAME``, and raises UserError if there is none. If ``load``
        is None, adapters cannot be added or removed.
      config: The server's settings and limits.

    Returns:
      An application for any ASGI server. Run it in a single process, because the process holds the model in memory.
    """
    service = _Service(model, load, config)
    routes = [
        _constant("/", _page_file("page.html", "text/html", _PAGE_HEADERS)),
        _constant("/page.js", _page_file("page.js", "text/javascript")),
        _constant("/page.css", _page_file("page.css", "text/css")),
        _constant("/healthz", JSONResponse({"status": "ok"})),
        Route("/metrics", service.metrics_text),
        Route("/adapters", service.adapters),
        Route("/adapters/{name:path}", service.add, methods=["PUT"]),
        Route("/adapters/{name:path}", service.remove, methods=["DELETE"]),
        Route("/predict", service.predict, methods=["POST"]),
        Route("/predict_all", service.predict_all, methods=["POST"]),
    ]
    middleware = [Middleware(OriginMiddleware, allowed_hosts=config.allowed_hosts)]
    handlers: Any = {HTTPException: _error_response, Exception: _internal_error}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=service.lifespan)


def _constant(path: str, response: Response) -> Route:
    """A route whose response never changes."""
    # A response is an ASGI application. Starlette only defaults to GET for functions.
    return Route(path, response, methods=["GET"])


def _page_file(name: str, media_type: str, headers: Mapping[str, str] | None = None) -> Response:
    """Reads a file of the web page."""
    return Response(Path(__file__).with_name(name).read_bytes(), media_type=media_type, headers=headers)


class _Service:
    """The application's state and its endpoints."""

    def __init__(self, model: RoutedModel, load: Callable[[str], TaskModel] | None, config: ServerConfig) -> None:
        self._model, self._load, self._config = model, load, config
        self._metrics = Metrics(self._num_sequences, lambda: len(model.names))
        batcher: Any = functools.partial(Batcher, max_queue=config.max_queue, on_batch=self._metrics.record_batch)
        self._batcher: Batcher[Sequences, np.ndarray] = batcher(
            model.outputs, max_batch=model.max_batch, max_wait_s=config.max_wait_ms / 1000
        )
        # A request for many adapters per row fills batches by itself, so it does not wait for other requests.
        self._all_batcher: Batcher[SharedSequences, list[np.ndarray]] = batcher(
            lambda groups: [model.outputs_of_all(group) for group in groups], max_batch=1, max_wait_s=0.0
        )
        # Few requests need the attention, so it is computed separately from the other requests' batches.
        self._attention_batcher: Batcher[Sequences, tuple[np.ndarray, dict[str, np.ndarray]]] = batcher(
            lambda parts: list(zip(model.outputs(parts), model.attention(parts), strict=True)),
            max_batch=model.max_batch,
            max_wait_s=0.0,
        )
        self._changing = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Computes the queued rows before the server shuts down."""
        yield
        for batcher in (self._batcher, self._all_batcher, self._attention_batcher):
            await run_in_threadpool(batcher.close)

    def _num_sequences(self) -> int:
        batchers = (self._batcher, self._all_batcher, self._attention_batcher)
        return sum(batcher.num_sequences for batcher in batchers)

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
                # The error may contain paths on the server, so it is logged and not sent to the client.
                print_line(f'Adding "{name}" failed: {error}')
                raise HTTPException(422, f'"{name}" cannot be served; see the server\'s log.') from None
            return JSONResponse(self._description(name), 201)

    async def remove(self, request: Request) -> Response:
        if self._load is None:
            raise HTTPException(403, "Adapters cannot be removed from this server.")
        async with self._changing:
            try:
                self._model.remove(request.path_params["name"])
                self._metrics.forget(request.path_params["name"])
            except UnknownTaskError as error:
                raise HTTPException(404, str(error)) from None
        return Response(status_code=204)

    async def predict(self, request: Request) -> Response:
        return await self._measured(self._predict(request))

    async def predict_all(self, request: Request) -> Response:
        return await self._measured(self._predict_all(request))

    async def _measured(self, answer: Coroutine[Any, Any, Response]) -> Response:
        """Counts a request and measures its latency."""
        begin, status = time.perf_counter(), 500
        try:
            response = await answer
            status = response.status_code
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            self._metrics.record_request(status, time.perf_counter() - begin)
        return response

    async def _predict(self, request: Request) -> Response:
        rows, fusion_attention = parse_predict(await self._body(request), self._config)
        names = [row[ADAPTER_COLUMN] for row in rows]

        def read() -> list[Sequences]:
            tasks = {name: self._model.task(name) for name in dict.fromkeys(names) if name is not None}
            task_of_row = [None if name is None else tasks[name] for name in names]
            inputs = [
                pick_task_input(f"rows[{index}]", without_adapter(row), task)
                for index, (row, task) in enumerate(zip(rows, task_of_row, strict=True))
            ]
            return self._model.read(inputs, task_of_row)

        if fusion_attention:
            parts, results = await self._compute(request, self._attention_batcher, len(names), read)
            outputs, attention = [result[0] for result in results], [result[1] for result in results]
        else:
            parts, outputs = await self._compute(request, self._batcher, len(names), read)
            attention = None
        with _errors_of_outputs():
            predictions = await run_in_threadpool(predict_parts, parts, outputs, len(names), attention)
        self._record_rows(names)
        return JSONResponse({"predictions": predictions})

    async def _predict_all(self, request: Request) -> Response:
        if not self._config.predict_all:
            raise HTTPException(403, "This server does not predict rows with all adapters.")
        rows, given_names = parse_predict_all(await self._body(request), self._config)
        names = list(self._model.names) if given_names is None else given_names
        if not names:
            raise HTTPException(404, "No adapter is in service.")
        with _http_errors(self._config.max_queue):
            # Adapters that are removed while this request waits for a thread are still used.
            tasks = [self._model.task(name) for name in names]

        def read() -> list[SharedSequences]:
            def advise(fitting: list[str]) -> str:
                return f'To use only adapters that fit, add "adapters": {json.dumps(fitting)}.'

            named_rows = [(f"rows[{index}]", row) for index, row in enumerate(rows)]
            parts = []
            for group, inputs in pick_inputs(named_rows, tasks, None if given_names else advise):
                parts += self._model.read_all(inputs, group)
            return parts

        groups, outputs = await self._compute(request, self._all_batcher, len(rows) * len(names), read)
        with _errors_of_outputs():
            predictions = await run_in_threadpool(predict_groups, groups, outputs, len(rows))
        predictions = [{name: row[name] for name in names} for row in predictions]
        self._record_rows(names * len(rows))
        return JSONResponse({"predictions": predictions})

    def _record_rows(self, names: Sequence[str | None]) -> None:
        """Counts rows, except for adapters that have been removed meanwhile."""
        served = {None, *self._model.names}
        self._metrics.record_rows([name for name in names if name in served])

    async def _compute(
        self, request: Request, batcher: Batcher[Part, PartOutputs], num_reserved: int, read: Callable[[], list[Part]]
    ) -> tuple[list[Part], list[PartOutputs]]:
        """Tokenizes a request's rows and computes their outputs.

        Args:
          request: The request. If the client disconnects before the computation starts, the request is cancelled.
          batcher: Computes the outputs.
          num_reserved: The minimum number of sequences in the request.
          read: Checks and tokenizes the rows, in another thread.

        Returns:
          The request's parts, as returned by ``read``, and the outputs of each part.

        Raises:
          HTTPException: The queue is full or closed, a row is invalid, a task is unknown, or the client has
            disconnected.
        """
        with _http_errors(self._config.max_queue):
            # Reserve capacity before tokenization. Otherwise, requests that wait for a thread would form an
            # unbounded queue.
            batcher.reserve(num_reserved)
            try:
                parts = await run_in_threadpool(read)
            except BaseException:
                batcher.release(num_reserved)
                raise
            outputs = asyncio.wrap_future(batcher.submit(parts, reserved=num_reserved))
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait((outputs, gone), return_when=asyncio.FIRST_COMPLETED)
            if not outputs.done():
                raise HTTPException(CLIENT_HAS_GONE, "The client has disconnected.")
            return parts, outputs.result()
        finally:
            gone.cancel()
            # This has no effect once the outputs are computed.
            outputs.cancel()

    async def _body(self, request: Request) -> bytes:
        """Receives the body, with a size limit and a timeout."""
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
            raise HTTPException(CLIENT_HAS_GONE, "The client has disconnected.") from None
        return bytes(body)


async def _disconnected(request: Request) -> None:
    """Waits until the client closes its connection, after the body has been received."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@contextlib.contextmanager
def _errors_of_outputs() -> Iterator[None]:
    """Responds with status 500 if damaged parameters cause NaN or infinite outputs."""
    try:
        yield
    except UserError as error:
        raise HTTPException(500, str(error)) from None


@contextlib.contextmanager
def _http_errors(max_queue: int) -> Iterator[None]:
    """Converts the exceptions of a batcher, and errors in a request's rows, to HTTP errors."""
    try:
        yield
    except UnknownTaskError as error:
        raise HTTPException(404, str(error)) from None
    except UserError as error:
        raise HTTPException(400, str(error)) from None
    except TooLargeError:
        message = (
            f"The request exceeds the queue limit of {max_queue} sequences; send fewer rows, shorter texts, or fewer "
            "adapters for all rows."
        )
        raise HTTPException(413, message) from None
    except QueueFullError:
        raise HTTPException(429, "Too many rows are waiting; try again later.", {"Retry-After": "1"}) from None
    except ClosedError:
        raise HTTPException(503, "The server is shutting down.") from None


async def _error_response(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "Internal error; see the server's log."}, 500)
