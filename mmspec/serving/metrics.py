"""What `GET /metrics` tells, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from mmspec.serving.models import ServedModel

_SECONDS = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5, 10)
_TOKENS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 12, 16, 32)
_PATHS = (
    "/v1/images/generations", "/v1/audio/speech", "/v1/audio/voices", "/v1/models", "/health", "/metrics", "/", "/docs",
    "/openapi.json",
)  # fmt: skip


class ServerMetrics:
    """The counters of one server.

    Attributes:
        running: Requests that the server works on, by model.
        finished: Requests that ended, by model and outcome: ok, refused, cancelled or error.
        tokens: Generated tokens, by model.
        calls: Target calls that rows took part in, by model.
        tokens_per_call: Of each finished request.
        seconds: Of each finished request, from its arrival.
        first_audio: Seconds from the arrival of a speech request to its first audio.
        real_time_factor: Seconds per second of audio of a speech request; below 1 is faster than real time.
        decoding_errors: Requests that failed while they were decoded, by model.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"mmspec_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"mmspec_{name}", text, ["model"], buckets=buckets, registry=registry)

        self.responses = counter("http_responses", "HTTP responses", "path", "status")
        self.running = Gauge("mmspec_requests_running", "Requests in work or waiting", ["model"], registry=registry)
        self.finished = counter("requests_finished", "Requests that ended", "model", "outcome")
        self.tokens = counter("tokens", "Generated tokens", "model")
        self.calls = counter("row_calls", "Target calls that requests took part in", "model")
        self.decoding_errors = counter("decoding_errors", "Requests that failed while they were decoded", "model")
        self.tokens_per_call = histogram("tokens_per_call", "Tokens per target call, by request", _TOKENS)
        self.seconds = histogram("request_seconds", "Seconds from arrival to end", _SECONDS)
        self.first_audio = histogram("time_to_first_audio_seconds", "Seconds from arrival to the first audio", _SECONDS)
        self.real_time_factor = histogram("real_time_factor", "Seconds per second of audio", _RATIOS)

    def count_response(self, path: str, status: int) -> None:
        """Counts a response; paths that do not exist are counted as one."""
        self.responses.labels(path if path in _PATHS else "other", str(status)).inc()

    def watch(self, models: Sequence[ServedModel]) -> None:
        """Reports the engines of models from now on."""
        self.registry.register(EngineCollector(models))

    def text(self) -> bytes:
        """All metrics."""
        return generate_latest(self.registry)


class EngineCollector:
    """Reads the statistics of the models' engines when they are asked for."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """A gauge for each number that the engines report; the format allows one description of each."""
        text = "Seconds since the latest step of a model with requests; 0 without"
        clock = GaugeMetricFamily("mmspec_seconds_since_last_step", text, labels=["model"])
        families: dict[str, GaugeMetricFamily] = {"": clock}
        for model in self._models:
            clock.add_metric([model.name], model.clock.seconds)
            for name, value in model.engine.stats().items():
                if name not in families:
                    text = f"{name.replace('_', ' ')} of the engine"
                    families[name] = GaugeMetricFamily(f"mmspec_engine_{name}", text, labels=["model"])
                families[name].add_metric([model.name], float(value))
        yield from families.values()
