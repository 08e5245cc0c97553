"""The checks of a model, and its speed."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mmspec.cli.model_check.samples import ALARM, compare_samples
from mmspec.cli.model_check.subject import Made, PromptedTarget, Subject, possible
from mmspec.decoding.target import Target
from mmspec.errors import MMSpecError
from mmspec.recipes import Recipe, parse
from mmspec.testing.adapters import check_windows

Status = Literal["passed", "FAILED", "not checked"]
OWN = "own generate"
# Settings that turn kernels and CUDA graphs off.
EAGER = {"MMSPEC_KERNELS": "torch", "MMSPEC_CUDA_GRAPHS": "off"}


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: What is compared.
        status: Its result; "not checked" if it is not possible for the model.
        detail: Figures, tolerances, or the reason.
    """

    name: str
    status: Status
    detail: str


@dataclass(frozen=True)
class Speed:
    """The cost of generating one row, sampled.

    Attributes:
        name: A recipe, or `OWN`.
        target_calls: Calls of the model; None where its own generate calls only parts of it.
        seconds: The median of the repetitions.
    """

    name: str
    target_calls: int | None
    seconds: float


@dataclass(frozen=True)
class ModelReport:
    """What `mmspec check -m` finds.

    Attributes:
        model: The model, as the user named it.
        kind: Its class.
        facts: Device, dtype, versions.
        prompt_ids: Its ids, as the model reads them.
        checks: The checks, in order.
        speeds: The costs, plain decoding first; empty if a check failed.
        refused: Recipes that the model cannot run, and why.
    """

    model: str
    kind: str
    facts: Mapping[str, Any]
    prompt: str
    prompt_ids: Sequence[int]
    checks: Sequence[Check]
    speeds: Sequence[Speed] = field(default_factory=list)
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no check failed, and at least one passed."""
        statuses = {check.status for check in self.checks}
        return "FAILED" not in statuses and "passed" in statuses


def check_model(
    subject: Subject,
    model: str,
    prompt: str,
    facts: Mapping[str, Any],
    recipes: Sequence[Recipe],
    rows: int,
    repetitions: int,
    device: str,
    dtype: torch.dtype,
    progress: Callable[[str], None],
) -> ModelReport:
    """Runs all checks of a model.

    Args:
        subject: The model.
        model: Its name in the report.
        facts: Facts for the report.
        recipes: Recipes to check besides plain decoding; those that are not possible are listed as such.
        rows: Rows of each sample.
        repetitions: Repetitions of each measurement.
        device: The device of the model.
        dtype: The dtype of its weights.
        progress: Called with the name of each check.
    """
    progress("recipes")
    found, refused = possible(subject, [parse("plain"), *recipes])
    checks: list[Check] = []
    for name, run in (
        ("greedy tokens", lambda: check_greedy(subject, found, dtype)),
        ("windows and roll-back", lambda: check_rollback(subject, dtype)),
        ("samples", lambda: check_samples(subject, found, rows)),
        ("kernels and CUDA graphs", lambda: check_kernels(subject, found, device, dtype)),
    ):
        progress(name)
        try:
            checks += run()
        except MMSpecError as error:
            checks.append(Check(name, "FAILED", str(error)))
    report = ModelReport(model, subject.name, facts, prompt, subject.prompt_ids, checks, [], refused)
    if not report.passed:
        return report
    progress("speed")
    speeds = measure_speed(subject, found, repetitions, device)
    return ModelReport(model, subject.name, facts, prompt, subject.prompt_ids, checks, speeds, refused)


def check_greedy(subject: Subject, recipes: Sequence[Recipe], dtype: torch.dtype) -> list[Check]:
    """Greedy tokens of every recipe against the model's own generate, or else against plain decoding."""
    if subject.has_own:
        reference, against = subject.own(greedy=True, rows=1, seed=0), "the model's own generate"
    else:
        reference, against = subject.ours(parse("plain"), greedy=True, rows=1, seed=0), "plain decoding"
    checks = []
    for recipe in recipes:
        name = f"greedy tokens of {recipe} = {against}"
        if not subject.has_own and recipe.name == "plain":
            continue
        if recipe.rule.continuous:
            checks.append(Check(name, "not checked", "tokens are vectors, which this rule samples"))
            continue
        made = subject.ours(recipe, greedy=True, rows=1, seed=0)
        checks.append(compare_greedy(subject, name, made, reference, dtype))
    return checks


def compare_greedy(subject: Subject, name: str, made: Made, expected: Made, dtype: torch.dtype) -> Check:
    """Compares greedy tokens; of types less precise than float32, a different token must be nearly as likely."""
    if same(made.tokens, expected.tokens, dtype):
        what = "samples of audio" if made.tokens.is_floating_point() else "tokens"
        return Check(name, "passed", f"{made.tokens.shape[1]} {what} are equal")
    if made.tokens.is_floating_point() or made.tokens.shape[0] != expected.tokens.shape[0]:
        return Check(name, "FAILED", "the audio differs")
    width = min(made.tokens.shape[1], expected.tokens.shape[1])
    different = (made.tokens[0, :width] != expected.tokens[0, :width]).nonzero()[:, 0]
    if not len(different):
        return Check(name, "FAILED", f"{made.tokens.shape[1]} tokens instead of {expected.tokens.shape[1]}")
    first = int(different[0])
    figures = f"the first {first} of {width} tokens are equal"
    prompted = subject.target(1, 1)
    if prompted is None:
        verdict: Status = "FAILED" if dtype == torch.float32 else "not checked"
        return Check(name, verdict, figures)
    gap, spread = logit_gap(prompted, expected.tokens[0, : first + 1], int(made.tokens[0, first]))
    allowed = tolerance(spread, dtype)
    verdict = "passed" if gap <= allowed else "FAILED"
    return Check(name, verdict, f"{figures}; the logits of the next differ by {gap:.2g}, {allowed:.2g} allowed")


def same(first: Tensor, second: Tensor, dtype: torch.dtype) -> bool:
    """Whether two results are equal; audio up to rounding."""
    if first.shape != second.shape:
        return False
    if first.is_floating_point():
        return bool(torch.allclose(first.float(), second.float(), atol=1e-3 if dtype == torch.float32 else 0.05))
    return bool(torch.equal(first, second))


def logit_gap(prompted: PromptedTarget, ids: Tensor, other: int) -> tuple[float, float]:
    """The difference between the logits of two candidates for one position, and the spread of all logits there.

    Args:
        prompted: The model with its prompt.
        ids: The tokens up to the position, int64 [n]; the last one is the first candidate.
        other: The second candidate.
    """
    target = prompted.target
    tokens = (ids - prompted.first_id).to(target.device)
    with torch.inference_mode():
        logits = target.prefill()
        for n in range(len(tokens) - 1):
            logits = target.forward(tokens[None, n : n + 1], np.array([n]))
    z = logits.cond[0, -1].float()
    if logits.uncond is not None:
        z = torch.lerp(logits.uncond[0, -1].float(), z, prompted.guidance_scale)
    gap = float((z[int(tokens[-1])] - z[other - prompted.first_id]).abs())
    return gap, spread_of(z)


def spread_of(logits: Tensor) -> float:
    """The standard deviation of the finite logits."""
    return float(logits[logits.isfinite()].std())


def tolerance(spread: float, dtype: torch.dtype) -> float:
    """The difference of logits that rounding may cause; a mistake changes them by about their spread."""
    return max(1e-3, 32 * torch.finfo(dtype).eps * spread)


def check_rollback(subject: Subject, dtype: torch.dtype) -> list[Check]:
    """Logits of overlapping windows, after rejected drafts, against those of plain steps."""
    name = "logits of windows after roll-back = logits of plain steps"
    found = subject.target(1, 1)
    if found is None:
        return [Check(name, "not checked", "the target of this model is not made for single ids and a text prompt")]
    with torch.inference_mode():
        spread = spread_of(found.target.prefill().cond.float())
    length = min(found.length, 24)
    window = min(6, length - 2)
    if window < 2:
        return [Check(name, "not checked", f"sequences of {length} tokens are too short")]

    def make(rows: int, slack: int) -> Target:
        made = subject.target(rows, slack)
        assert made is not None
        return made.target

    largest, allowed = check_windows(make, length, window, batch_size=2), tolerance(spread, dtype)
    verdict: Status = "passed" if largest <= allowed else "FAILED"
    return [
        Check(name, verdict, f"largest difference {largest:.2g}, {allowed:.2g} allowed; logits spread {spread:.2g}")
    ]


def check_samples(subject: Subject, recipes: Sequence[Recipe], rows: int) -> list[Check]:
    """Sampled tokens of every recipe against the model's own samples, or else against plain decoding."""
    references: dict[str, Tensor] = {}
    checks = []
    for index, recipe in enumerate(recipes):
        plain = plain_of(recipe)
        against = "the model's own samples" if subject.has_own else f"samples of {plain}"
        name = f"samples of {recipe} ~ {against}"
        if not subject.has_own and str(recipe) == str(plain):
            continue
        if not recipe.exact:
            checks.append(Check(name, "not checked", "the recipe is not exact"))
            continue
        if against not in references:
            made = subject.own(False, rows, 10**6) if subject.has_own else subject.ours(plain, False, rows, 10**6)
            references[against] = made.tokens
        tokens = subject.ours(recipe, greedy=False, rows=rows, seed=index * rows).tokens
        result = compare_samples(tokens, references[against])
        if result is None:
            checks.append(Check(name, "not checked", "all samples are equal; more --tokens may differ"))
            continue
        detail = (
            f"p = {result.p:.4f} ({ALARM} or less fails) of {result.rows} rows at {result.positions} positions; a "
            f"difference of {result.detectable:.2f} in total variation per position is found in 9 of 10 runs"
        )
        checks.append(Check(name, "passed" if result.p > ALARM else "FAILED", detail))
    return checks


def plain_of(recipe: Recipe) -> Recipe:
    """Plain decoding with the distribution of a recipe: a rule for vectors sets their noise."""
    if not recipe.rule.continuous:
        return parse("plain")
    return Recipe(f"plain+{recipe.rule_name}", {name: recipe.knobs[name] for name in recipe.rule.knobs})


def check_kernels(subject: Subject, recipes: Sequence[Recipe], device: str, dtype: torch.dtype) -> list[Check]:
    """Greedy tokens with kernels and CUDA graphs against those without, on a CUDA device."""
    name = "kernels and CUDA graphs = eager torch"
    if not device.startswith("cuda"):
        return [Check(name, "not checked", f"they are used on CUDA devices only, not on {device}")]
    checks = []
    for recipe in recipes:
        fast = subject.ours(recipe, greedy=True, rows=1, seed=0)
        with environment(EAGER):
            eager = subject.ours(recipe, greedy=True, rows=1, seed=0)
        checks.append(compare_greedy(subject, f"{recipe}: {name}", fast, eager, dtype))
    return checks


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables inside the context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def measure_speed(subject: Subject, recipes: Sequence[Recipe], repetitions: int, device: str) -> list[Speed]:
    """Calls and seconds of one sampled row; every way once to warm up, then in turns."""
    ways: dict[str, Callable[[int], Made]] = {
        str(recipe): lambda seed, recipe=recipe: subject.ours(recipe, greedy=False, rows=1, seed=seed)  # type: ignore[misc]
        for recipe in recipes
    }
    if subject.has_own:
        ways[OWN] = lambda seed: subject.own(greedy=False, rows=1, seed=seed)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    calls: dict[str, list[int]] = {name: [] for name in ways}
    for seed in range(repetitions + 1):
        for name, way in ways.items():
            start = clock(device)
            made = way(seed)
            if seed:
                seconds[name].append(clock(device) - start)
                calls[name].append(made.calls)
    return [
        Speed(name, round(statistics.median(calls[name])) or None, statistics.median(taken))
        for name, taken in seconds.items()
    ]


def clock(device: str) -> float:
    """The time in seconds at which all work on the device is done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()
