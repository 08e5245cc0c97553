"""What an evaluation will cost, predicted before anything is loaded: samples, target calls, memory and hours.

A target call is taken to read the weights, and the keys and values, once at the memory bandwidth of the device, and to
last a fixed time besides. Real calls take longer; recipes that save calls make fewer. Encoding, decoding to pixels or
waveforms, and metrics are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from mmspec.metrics.evaluation.suites.suite import ModelSize

BANDWIDTH = 3.35e12  # bytes per second: an H100 SXM's HBM3, of its data sheet
OVERHEAD = 0.0005  # seconds per call besides reading memory; an assumption
BYTES = 2  # of a weight and of a key or value in bfloat16


@dataclass(frozen=True)
class Prediction:
    """The predicted cost of an evaluation.

    Attributes:
        samples: Images or recordings to generate, those of the reference by plain decoding included.
        pipeline_calls: Calls of the pipeline, `batch` samples each.
        target_calls: Target calls of all samples if every recipe made as many as plain decoding; None for a model of
            unknown size.
        memory: Bytes of weights, keys and values of a full call; None likewise.
        hours: Of one process, for `target_calls`; None likewise.
        processes: That share the work.
    """

    samples: int
    pipeline_calls: int
    target_calls: int | None
    memory: float | None
    hours: float | None
    processes: int


def predict(
    size: ModelSize | None,
    prompts: int,
    seeds: int,
    recipes: Sequence[str],
    batch: int,
    reference: bool,
    processes: int,
) -> Prediction:
    """Predicts an evaluation.

    Args:
        size: Of the model; None if it is unknown.
        prompts: Their number.
        seeds: Seeds per prompt.
        recipes: Plain decoding included.
        batch: Samples per call.
        reference: Whether plain decoding generates a reference too.
        processes: That share the work.
    """
    sets = len(recipes) + reference
    samples = prompts * seeds * sets
    calls = ceil(prompts * seeds / batch) * sets
    if size is None:
        return Prediction(samples, calls, None, None, None, processes)
    weights = size.parameters * BYTES
    cache = 2.0 * size.layers * size.kv_heads * size.head_dim * BYTES * size.tokens * size.rows * batch
    seconds = (weights + cache / 2) / BANDWIDTH + OVERHEAD  # the cache is half full on average
    target_calls = calls * size.tokens
    return Prediction(
        samples, calls, target_calls, weights + cache, target_calls * seconds / 3600 / processes, processes
    )
