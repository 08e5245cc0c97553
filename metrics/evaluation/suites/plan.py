"""`mmspec eval --suite`: the keys that a suite and a model's published settings give, and what a dry run prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmspec.errors import ArgumentError
from mmspec.metrics.evaluation.config import EvalConfig
from mmspec.metrics.evaluation.suites.prediction import BANDWIDTH, OVERHEAD, predict
from mmspec.metrics.evaluation.suites.prompts import suite_prompts
from mmspec.metrics.evaluation.suites.suite import PaperSettings, Suite, find_suite, settings_of
from mmspec.metrics.registry import find_metric


def planned(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys and values of an evaluation of a suite; those that the user gave take precedence.

    Args:
        given: From flags and the configuration file, `suite` among them.

    Raises:
        UnknownNameError: If there is no such suite.
        ArgumentError: If prompts are missing, or a reference is.
    """
    suite = find_suite(str(given["suite"]))
    paper = settings_of(str(given.get("model", "")))
    prompts = given.get("prompts")
    metrics = given.get("metrics", ",".join(suite.metrics))
    values: dict[str, Any] = {
        "seeds": f"0..{suite.samples_per_prompt - 1}" if suite.samples_per_prompt > 1 else "0",
        **({} if paper is None else paper.settings),
        **given,
        "metrics": metrics,
    }
    # A list in a configuration file holds the texts themselves.
    if not isinstance(prompts, list):
        values["prompts"] = suite_prompts(suite, None if prompts is None else str(prompts), given.get("limit"))
    if "top_k" in values:
        values["top_k"] = int(values["top_k"])
    return values


def check_reference(config: EvalConfig) -> None:
    """Checks that a suite whose distances are to real samples has them.

    Raises:
        ArgumentError: If it does not; plain decoding as the reference must be asked for in words.
    """
    suite = find_suite(config.suite or "")
    needs = [name for name in config.metrics if find_metric(name).needs_reference]
    if suite.reference and needs and config.reference == "plain":
        raise ArgumentError(
            f"--reference: {', '.join(needs)} of {suite.title} need {suite.reference}; "
            "name it, or leave these metrics out by --metrics"
        )


def dry_run(config: EvalConfig, processes: int) -> str:
    """What the evaluation will do and cost, as text.

    Args:
        config: Resolved, with its suite if it has one.
        processes: That will share the work.
    """
    suite = find_suite(config.suite) if config.suite else None
    paper = settings_of(config.model)
    own = config.reference == "plain" and any(find_metric(name).needs_reference for name in config.metrics)
    size = paper.size if paper else None
    found = predict(size, len(config.prompts), len(config.seeds), config.recipes, config.batch, own, processes)
    sampling = ", ".join(f"{key} {value:g}" for key, value in config.sampling.items())
    known = f"settings of {paper.title}" if paper else "no published settings known"
    lines = [
        suite.title if suite else config.model,
        "",
        f"model        {config.model} ({known})",
        f"sampling     {sampling or 'as the model'}",
        f"prompts      {len(config.prompts):,}{_of(suite)}, samples of each: {len(config.seeds)}",
        f"recipes      {', '.join(config.recipes)}",
        f"metrics      {', '.join(config.metrics)}",
        f"reference    {config.reference}",
        "",
        "PREDICTED, nothing was run or loaded:",
        f"samples      {found.samples:,}" + (" with those of the reference" if own else ""),
        f"calls        {found.pipeline_calls:,} of the pipeline, {config.batch} samples each",
    ]
    if size is None or found.memory is None or found.hours is None or found.target_calls is None:
        lines.append("memory       unknown, and hours too: the size of this model is not in mmspec's settings")
    else:
        lines += [
            f"             {found.target_calls:,} target calls if no recipe saved one, {size.tokens:,} per {size.unit}",
            f"memory       {found.memory / 1e9:.1f} GB for weights, keys and values in bfloat16",
            f"hours        {found.hours:.1f} on each of {processes} device(s) for these calls, each taken to read",
            f"             weights, keys, values once, {BANDWIDTH / 1e12:.2f} TB a second, and {1000 * OVERHEAD:g} ms.",
            "             Recipes that save calls take less; real calls reach no such bandwidth and take more;",
            "             encoding, codecs and metrics are not counted.",
        ]
    return "\n".join([*lines, *_sources(suite, paper)])


def _of(suite: Suite | None) -> str:
    return f" of {suite.prompts.count:,}" if suite and suite.prompts.count else ""


def _sources(suite: Suite | None, paper: PaperSettings | None) -> list[str]:
    """Where the settings come from, what was published, and what is not known."""
    parts: list[tuple[str, Sequence[str]]] = []
    if suite:
        parts += [("Sources of the suite", suite.sources), ("Not known, or not measured", suite.unknown)]
        parts += [("Notes", suite.notes), ("Further metrics that papers print", suite.optional)]
    if paper:
        parts += [("Sources of the model's settings", paper.sources), ("Published speeds", paper.published)]
        parts += [("Not known of the model", paper.unknown)]
    return [line for title, texts in parts if texts for line in ["", f"{title}:", *(f"- {text}" for text in texts)]]
