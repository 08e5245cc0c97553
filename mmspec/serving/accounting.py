"""What a request cost: `usage` of its response, and its part of the metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from mmspec.serving.generation import Generation
from mmspec.serving.metrics import ServerMetrics


@dataclass
class Accounting:
    """Counts one request.

    Args:
        metrics: Of the server.
        kind: "image" or "audio", the kind of the tokens.
    """

    metrics: ServerMetrics
    model: str
    kind: str
    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    def add(self, generation: Generation) -> None:
        """Adds a generation that has ended."""
        self.tokens += generation.count
        self.calls += generation.calls
        self.seconds = max(self.seconds, generation.seconds)
        self.metrics.tokens.labels(self.model).inc(generation.count)
        self.metrics.calls.labels(self.model).inc(generation.calls)
        if generation.calls:
            self.metrics.tokens_per_call.labels(self.model).observe(generation.count / generation.calls)

    @property
    def elapsed(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self.started

    def first_audio(self) -> None:
        """Records that the first audio is ready."""
        self.metrics.first_audio.labels(self.model).observe(self.elapsed)

    def audio(self, seconds: float) -> None:
        """Records the duration of the audio of a finished request."""
        if seconds > 0:
            self.metrics.real_time_factor.labels(self.model).observe(self.elapsed / seconds)

    def usage(self) -> dict[str, Any]:
        """`usage` of a response. Prompts are not counted: the models read them in ways that differ."""
        return {
            "input_tokens": 0,
            "output_tokens": self.tokens,
            "total_tokens": self.tokens,
            "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
            "output_tokens_details": {"image_tokens": self.tokens if self.kind == "image" else 0, "text_tokens": 0},
            "target_calls": self.calls,
            "tokens_per_call": round(self.tokens / max(self.calls, 1), 3),
            "seconds": round(self.seconds, 4),
        }
