"""Published sizes with random weights that are made predictable: steps of the model, and decodes end to end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import torch
from gpu_bench.decoding import Decoder, decoder
from gpu_bench.plan import Plan
from gpu_bench.records import Record, dtype_of, one_line, record_of
from gpu_bench.timing import time_calls

from mmspec.recipes import parse


def models(plan: Plan, device: torch.device) -> Iterator[Record]:
    """Steps and decodes of every model, all models at one number of rows before the next one."""
    made = dict[str, Decoder]()
    for rows, recipes in plan.recipes.items():
        for name, published in plan.models.items():
            case = {"model": name, "rows": rows}
            try:
                if name not in made:
                    made[name] = decoder(published, device, dtype_of(device))
            except torch.AcceleratorError:
                raise
            except Exception as error:
                yield case | {"error": one_line(error)}
                continue
            one, steps = made[name], dict[int, float | None]()
            widths = sorted({1, *(parse(recipe).window for recipe in recipes)})
            for width in widths:
                found = record_of(case | {"width": width, "end": _middle(one)}, partial(_step, plan, one, rows, width))
                steps[width] = found.get("device")
                yield found
            if name == "musicgen-large" and rows == 8 and device.type == "cuda":
                yield from _attention_of_columns(plan, one)
            for recipe in recipes:
                if "table" not in recipe or one.table is not None:
                    yield record_of(case | {"recipe": recipe}, partial(_decode, plan, one, rows, recipe, steps))


def _middle(one: Decoder) -> int:
    return one.published.prompt + one.published.length // 2


def _step(plan: Plan, one: Decoder, rows: int, width: int, end: int = 0) -> Record:
    """A step that reads the cache up to a slot, or to the middle of an output."""
    with torch.inference_mode():
        call = one.model.step(rows, width, end or _middle(one))
        return asdict(time_calls([call], one.model.heads[0].weight.device, max(plan.repeats // 4, 2)))


def _decode(plan: Plan, one: Decoder, rows: int, recipe: str, steps: dict[int, float | None]) -> Record:
    """The time of a run whose kernels are compiled and whose calls are captured; `host`: what a step leaves of a call.

    Drafts of a network are part of `host`.
    """
    tokens = min(plan.tokens, one.published.length)
    one.decode(recipe, rows, tokens)  # compiles and captures
    stats = one.decode(recipe, rows, tokens).stats
    each, step = stats.seconds / stats.target_calls, steps.get(parse(recipe).window if recipe != "plain" else 1)
    parts = {part: seconds / stats.target_calls for part, seconds in stats.seconds_by_part.items()}
    return {
        "seconds_per_call": each, "host": None if step is None else each - step,
        "seconds_per_token": stats.seconds / tokens,
        "tokens_per_call": stats.tokens_per_call, "calls": stats.target_calls, "memory": stats.peak_memory,
        "by_part": parts,
    }  # fmt: skip


def _attention_of_columns(plan: Plan, one: Decoder) -> Iterator[Record]:
    """Steps of MusicGen at cache lengths that are a multiple of 64 and not of 8, with and without cuDNN's attention."""
    for cudnn in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        for end in (256, 275, 320):
            for width in (1, 16):
                case = {"model": "musicgen-large", "rows": 8, "width": width, "end": end, "cudnn": cudnn}
                yield record_of(case, partial(_step, plan, one, 8, width, end))
    torch.backends.cuda.enable_cudnn_sdp(True)
