"""Calls of a pipeline for several samples with the same settings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmspec.bulk.media import AudioClip, Medium, encode_medium, media_of, notes_of, suffix_of
from mmspec.bulk.requests import SampleRequest
from mmspec.bulk.rows import row_stats
from mmspec.decoding.stats import RowStats
from mmspec.errors import PromptError
from mmspec.recipes import recipe_of_call


@dataclass(frozen=True)
class GeneratedSample:
    """A generated sample, which is nowhere written yet.

    Attributes:
        request: What it was generated from.
        recipe: Its name with its knobs.
        medium: The image or recording.
        tokens: The ids, as a nested list of integers; empty if the pipeline does not return them.
        stats: What the sample cost.
        seconds: Its share of the wall-clock time of its call.
        notes: Remarks on it, such as that it was cut at its limit.
        window: Tokens of the widest window; 0 if unknown.
    """

    request: SampleRequest
    recipe: str
    medium: Medium
    tokens: list[Any]
    stats: RowStats
    seconds: float
    notes: list[str] = field(default_factory=list)
    window: int = 0

    @property
    def suffix(self) -> str:
        return suffix_of(self.medium)

    @property
    def length(self) -> float | None:
        """Seconds of audio; None for an image."""
        return self.medium.seconds if isinstance(self.medium, AudioClip) else None

    def encode(self, fingerprint: str) -> bytes:
        """The bytes of its file; a PNG contains how it was generated."""
        settings = {key: str(value) for key, value in self.request.settings.to_dict().items()}
        notes = {"prompt": self.request.prompt, "seed": str(self.request.seed), **settings, "recipe": self.recipe}
        return encode_medium(self.medium, notes | {"weights": fingerprint})


def batches(requests: Sequence[SampleRequest], batch_size: int) -> Iterator[list[SampleRequest]]:
    """Groups of at most `batch_size` requests with equal settings, which one call can serve, in order of appearance."""
    groups: dict[Any, list[SampleRequest]] = {}
    for request in requests:
        groups.setdefault(request.settings, []).append(request)
    for group in groups.values():
        for first in range(0, len(group), batch_size):
            yield group[first : first + batch_size]


def generate_batch(pipe: Any, requests: Sequence[SampleRequest]) -> list[GeneratedSample]:
    """Generates samples in one call.

    Args:
        pipe: A pipeline of `mmspec.load`, or one that is called like it.
        requests: With equal settings.

    Raises:
        PromptError: If the model does not accept one of the prompts.
        ArgumentError: If the pipeline does not accept a setting.
    """
    settings = requests[0].settings.to_dict()
    given = settings.pop("recipe", None)
    recipe = recipe_of_call(pipe, given or None)
    start = time.perf_counter()
    prompts, seeds = [one.prompt for one in requests], [one.seed for one in requests]
    output = pipe(prompts, recipe=recipe, seed=seeds, **settings)
    seconds = (time.perf_counter() - start) / len(requests)
    media, rows = media_of(output, len(requests)), row_stats(output.stats, len(requests))
    tokens = _tokens_of(output, len(requests))
    return [
        GeneratedSample(request, str(recipe), medium, ids, row, seconds, notes, output.stats.window)
        for request, medium, ids, row, notes in zip(
            requests, media, tokens, rows, notes_of(output, len(requests)), strict=True
        )
    ]


def generate_accepted(
    pipe: Any, requests: Sequence[SampleRequest]
) -> tuple[list[GeneratedSample], list[tuple[SampleRequest, str]]]:
    """Generates samples in one call, or one by one if the model does not accept one of the prompts.

    Returns:
        The samples, and the requests that the model does not accept, with the reason.

    Raises:
        ArgumentError: If the pipeline does not accept a setting.
    """
    try:
        return generate_batch(pipe, requests), []
    except PromptError as error:
        if len(requests) == 1:
            return [], [(requests[0], str(error))]
    samples, refused = list[GeneratedSample](), list[tuple[SampleRequest, str]]()
    for request in requests:
        made, unmade = generate_accepted(pipe, [request])
        samples += made
        refused += unmade
    return samples, refused


def _tokens_of(output: Any, count: int) -> list[list[Any]]:
    """The tokens of each sample: of an image a list, of audio a list per part."""
    if hasattr(output, "images"):
        tokens = getattr(output, "tokens", None)
        return [[]] * count if tokens is None else tokens.tolist()
    return [[part.tolist() for part in getattr(one, "tokens", [])] for one in output]
