"""A pipeline of toy models for engines: every recipe, per-row sampling parameters, guidance, lengths and ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from batch_runs import run
from numpy.typing import NDArray
from torch import Tensor

from mmspec.arguments.keywords import check_options
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.stats import Stats
from mmspec.errors import PromptError
from mmspec.recipes import Recipe, parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget, toy_resources

V, N, WIDTH = 4, 6, 3
END = V - 1


class FaultyTarget(ToyTarget):
    """A toy whose rows may fail: `faults` has one of None, "prefill", "nan" and "raise" for each row."""

    ROWS = (*ToyTarget.ROWS, "faults")

    faults: list[str | None]

    @property
    def cache_bytes(self) -> int:
        return 100 * len(self.faults)

    def prefill(self) -> Logits:
        if "prefill" in self.faults:
            raise RuntimeError("a prompt could not be read")
        return super().prefill()

    def forward(self, tokens: Tensor, at: NDArray[np.int64], *args: Any) -> Logits:
        return self._spoiled(super().forward(tokens, at, *args))

    def forward_tree(self, tokens: Tensor, at: NDArray[np.int64], *args: Any) -> Logits:
        return self._spoiled(super().forward_tree(tokens, at, *args))

    def _spoiled(self, logits: Logits) -> Logits:
        if "raise" in self.faults:
            raise RuntimeError("a row raised")
        bad = torch.tensor([fault == "nan" for fault in self.faults])
        return Logits(logits.cond.masked_fill(bad[:, None, None], torch.nan), logits.uncond)


@dataclass
class ToyPipe:
    """Decodes rows of a toy model; a prompt is the name of a fault, or any other text.

    Attributes:
        ends: Whether the token `END` ends a row.
        config: The defaults of a call.
        largest: The largest number of rows that were prepared at a time.
    """

    ends: bool = False
    config: dict[str, Any] = field(default_factory=lambda: {"recipe": "scd:window=3"})
    largest: int = 0

    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        if not isinstance(prompt, str) or not prompt:
            raise PromptError(f"prompt={prompt!r} is not allowed; it must be a text")
        names = ("temperature", "top_k", "top_p", "guidance_scale")
        check_options(options, ("seed", "length", *names))
        sampling = SamplingParams(**{name: options[name] for name in names if name in options})
        seed, length = options.get("seed", 0), options.get("length", N)

        def finish(tokens: Sequence[Tensor], stats: Stats) -> list[int]:
            if prompt == "finish":
                raise RuntimeError("the result could not be made")
            return tokens[0].tolist()

        return PreparedRequest([RowPrompt((prompt, length), sampling, seed)], finish, seed)

    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedRows:
        self.largest = max(self.largest, len(rows))
        if any(row.prompt[0] == "prepare" for row in rows):
            raise RuntimeError("a prompt could not be prepared")
        samplings = [row.sampling for row in rows]
        layout = Layout(N, WIDTH, eos=frozenset({END}) if self.ends else frozenset())
        guided = any(sampling.guidance_scale != 1 for sampling in samplings)
        target = FaultyTarget(len(rows), V, N, 7, guided)
        target.faults = [row.prompt[0] if row.prompt[0] in ("prefill", "nan", "raise") else None for row in rows]
        resources = toy_resources(len(rows), V, layout, 7, samplings)
        return PreparedRows(target, layout, samplings, resources, [row.prompt[1] for row in rows])

    def alone(self, recipe: str, seed: int, length: int = N, **options: Any) -> list[int]:
        """The tokens of a request that runs alone, without an engine."""
        row = RowPrompt(("", length), SamplingParams(**options), seed)
        rows = self.prepare_rows([row], parse(recipe))
        layout = Layout(length, WIDTH, eos=rows.layout.eos)
        decoded = run(rows.target, parse(recipe), layout, rows.samplings, [seed], rows.resources)
        return decoded.tokens[0, : decoded.stats.tokens].tolist()
