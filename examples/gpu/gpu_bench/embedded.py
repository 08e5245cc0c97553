"""The models that ship with mmspec, end to end: seconds per image and per second of speech."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from gpu_bench.plan import Plan
from gpu_bench.records import Record, one_line, record_of
from gpu_bench.timing import synchronize

import mmspec
from mmspec.metrics.prompts import BUILTIN, BY_MODEL, SPEECH


def embedded(plan: Plan, device: torch.device) -> Iterator[Record]:
    """Every model with plain decoding and with recipes, in batches of several sizes."""
    pipes = dict[str, Any]()
    for batch in plan.batches:
        for name, recipes in plan.embedded.items():
            try:
                if name not in pipes:
                    pipes[name] = mmspec.load(name, device=str(device))
                    if hasattr(pipes[name], "set_progress_bar_config"):
                        pipes[name].set_progress_bar_config(disable=True)
            except torch.AcceleratorError:
                raise
            except Exception as error:
                yield {"model": name, "batch": batch, "error": one_line(error)}
                continue
            for recipe in recipes:
                case = {"model": name, "batch": batch, "recipe": recipe}
                yield record_of(case, partial(_called, pipes[name], name, batch, recipe, device))


def _called(pipe: Any, name: str, batch: int, recipe: str, device: torch.device) -> Record:
    known = SPEECH if name == "spoken" else BY_MODEL.get(name, BUILTIN)
    prompts = [known[i % len(known)] for i in range(batch)]
    for _ in range(2):  # the first call compiles and captures
        synchronize(device)
        start = time.perf_counter()
        out = pipe(prompts, recipe=recipe, seed=list(range(batch)))
        synchronize(device)
        seconds = time.perf_counter() - start
    made = sum(len(clip.audio[0]) / clip.sampling_rate for clip in out) if name == "spoken" else batch
    stats = out.stats
    return {"seconds_per_output": seconds / made, "tokens_per_call": stats.tokens_per_call, "calls": stats.target_calls}
