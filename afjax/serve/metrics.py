"""Counts and times the server's requests, and formats the metrics for Prometheus."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclasses.dataclass
class Outcome:
    """The outcome of a request: its status, which is set when it is known."""

    status: int = 500


class Metrics:
    """The metrics of one server."""

    def __init__(self, num_sequences: Callable[[], int], num_adapters: Callable[[], int]) -> None:
        """Makes the metrics, all zero.

        Args:
          num_sequences: Returns the number of sequences that wait or are computed.
          num_adapters: Returns the number of adapters, fusions and heads in service.
        """
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("afjax_requests", "Requests for predictions", ["status"], registry=registry)
        self._seconds = Histogram(
            "afjax_request_seconds", "Seconds per request for predictions", buckets=_SECONDS, registry=registry
        )
        self._rows = Counter("afjax_rows", "Predicted rows", ["adapter"], registry=registry)
        self._batches = Histogram(
            "afjax_batch_sequences", "Sequences that are computed together", buckets=_SEQUENCES, registry=registry
        )
        self._batch_requests = Counter("afjax_batch_requests", "Requests that were computed", registry=registry)
        queue = Gauge("afjax_queue_sequences", "Sequences that wait or are computed", registry=registry)
        queue.set_function(num_sequences)
        adapters = Gauge("afjax_adapters", "Adapters, fusions and heads in service", registry=registry)
        adapters.set_function(num_adapters)

    @contextlib.contextmanager
    def timed_request(self) -> Iterator[Outcome]:
        """Counts a request and measures its time. The block sets the outcome's status."""
        begin, outcome = time.perf_counter(), Outcome()
        try:
            yield outcome
        finally:
            self._requests.labels(str(outcome.status)).inc()
            self._seconds.observe(time.perf_counter() - begin)

    def record_rows(self, names: Sequence[str | None]) -> None:
        """Counts predicted rows by the names of their adapters."""
        for name in names:
            self._rows.labels(name or "").inc()

    def record_batch(self, num_requests: int, num_sequences: int) -> None:
        """Counts the requests and sequences that are computed together."""
        self._batch_requests.inc(num_requests)
        self._batches.observe(num_sequences)

    def text(self) -> tuple[bytes, str]:
        """Returns all metrics in the format of Prometheus, and its media type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
