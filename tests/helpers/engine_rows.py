"""Requests that join and leave a running batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmspec import Engine


def from_engine(
    pipe: Any, prompts: Sequence[str], seed: int, recipe: str | None = None, rows: int = 2
) -> dict[str, Any]:
    """The result of each prompt from an engine of some rows, to which a prompt is added before every step.

    Args:
        pipe: The pipeline.
        prompts: The prompts; prompt i has the seed `seed + i`.
        seed: The seed of the first one.
        recipe: As of the engine.
        rows: Rows that are decoded at the same time, at most.
    """
    engine, results = Engine(pipe, recipe, max_rows=rows), dict[str, Any]()
    for i, prompt in enumerate(prompts):
        engine.add(prompt, request_id=prompt, seed=seed + i)
        results |= {output.request_id: output.result for output in engine.step() if output.finished}
    while engine.has_unfinished:
        results |= {output.request_id: output.result for output in engine.step() if output.finished}
    return results
