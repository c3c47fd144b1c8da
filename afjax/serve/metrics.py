"""Counts and times the server's requests, and formats the metrics for Prometheus."""

from collections.abc import Callable, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """The metrics of one server."""

    def __init__(self, num_sequences: Callable[[], int], num_adapters: Callable[[], int]) -> None:
        """Creates the metrics, initially zero.

        Args:
          num_sequences: Returns the number of sequences that are queued or being computed.
          num_adapters: Returns the number of adapters, fusions and heads being served.
        """
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("afjax_requests", "Prediction requests", ["status"], registry=registry)
        self._seconds = Histogram(
            "afjax_request_seconds", "Seconds per prediction request", buckets=_SECONDS, registry=registry
        )
        self._rows = Counter("afjax_rows", "Predicted rows", ["adapter"], registry=registry)
        self._batches = Histogram("afjax_batch_sequences", "Sequences per batch", buckets=_SEQUENCES, registry=registry)
        self._batch_requests = Counter("afjax_batch_requests", "Computed requests", registry=registry)
        queue = Gauge("afjax_queue_sequences", "Sequences queued or being computed", registry=registry)
        queue.set_function(num_sequences)
        adapters = Gauge("afjax_adapters", "Adapters, fusions and heads being served", registry=registry)
        adapters.set_function(num_adapters)

    def record_request(self, status: int, seconds: float) -> None:
        """Counts a request by its HTTP status, and records its latency."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def record_rows(self, names: Sequence[str | None]) -> None:
        """Counts predicted rows by adapter name."""
        for name in names:
            self._rows.labels(name or "").inc()

    def forget(self, name: str) -> None:
        """Removes the counter of an adapter that is no longer served."""
        self._rows.remove(name)

    def record_batch(self, num_requests: int, num_sequences: int) -> None:
        """Counts a batch's requests and sequences."""
        self._batch_requests.inc(num_requests)
        self._batches.observe(num_sequences)

    def text(self) -> tuple[bytes, str]:
        """Formats all metrics for Prometheus, and returns the text and its media type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
