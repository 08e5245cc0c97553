"""`mmspec check --batch-invariance`: the table and the JSON object."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmspec.cli.model_check.batch_invariance import Codes, check_batch_invariance
from mmspec.cli.model_check.options import ModelOptions
from mmspec.cli.model_check.page import table, write_page
from mmspec.cli.model_check.subject import dtype_of
from mmspec.files import check_writable
from mmspec.metrics.prompts import BUILTIN, BY_MODEL, SPEECH
from mmspec.pipeline import makes_audio
from mmspec.recipes import Recipe, default_recipe
from mmspec.vision.class_prompts import class_count

DTYPES = ("float32", "bf16")


def report_batch_invariance(
    model: str, recipe: Recipe | None, options: ModelOptions, output: Path | None, as_json: bool
) -> bool:
    """Checks a model, and prints or writes the table; returns whether the check passed.

    Args:
        model: As `mmspec.load` reads it.
        recipe: How to decode; None is the default of the model.
        options: The other options. Their rows are the number of requests.
        output: Where to write the table; None prints it.
        as_json: Whether to print a JSON object instead.
    """
    if output is not None:
        check_writable(output, "-o/--output")
    found: list[Codes] = []
    for name in DTYPES if options.dtype is None else (options.dtype,):
        pipe = options.load(model, name)
        chosen, dtype = recipe or default_recipe(pipe), str(dtype_of(pipe)).removeprefix("torch.")
        prompts = prompts_of(model, pipe, options.rows) if options.prompt is None else (options.prompt,)
        requests = [prompts[number % len(prompts)] for number in range(options.rows)]
        print(f"checking {chosen} in {dtype}", file=sys.stderr, flush=True)
        found += check_batch_invariance(pipe, chosen, requests, dtype)
    passed = all(codes.result != "FAILED" for codes in found)
    head = ["requests", "dtype", "codes equal to those of each request alone", "result"]
    lines = table(head, [(codes.way, codes.dtype, codes.figures, codes.result) for codes in found])
    title = f"{model}, {chosen}, {options.rows} requests: {'passed' if passed else 'FAILED'}"
    results = [{**asdict(codes), "result": codes.result} for codes in found]
    facts = {"schema": 1, "passed": passed, "model": model, "recipe": str(chosen), "results": results}
    write_page("\n".join([title, "", *lines]) + "\n", facts, output, as_json)
    return passed


def prompts_of(model: str, pipe: Any, count: int) -> Sequence[str]:
    """The prompts of a check that names none: `count` classes of a model that generates classes, else texts."""
    if (classes := class_count(pipe)) is not None:
        return [str(classes * number // count) for number in range(count)]
    return BY_MODEL.get(model, SPEECH if makes_audio(pipe) else BUILTIN)
