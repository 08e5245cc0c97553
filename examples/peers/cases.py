"""What a peer gives to the runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Options:
    """What the caller wants.

    Attributes:
        repositories: The clones that the peer needs.
        size: "tiny" or "published".
        dtype: Of the weights.
        batch: Rows of a call.
        tokens: Steps of a row, where the model leaves a choice.
        recipes: Of mmspec, beside `plain`; those of the peer if empty.
    """

    repositories: tuple[Path, ...]
    size: str
    dtype: torch.dtype
    batch: int
    tokens: int
    recipes: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """What a job made.

    Attributes:
        tokens: Tokens or latents, as the model numbers them.
        steps: Tokens, columns, frames or latents of a row.
        calls: Calls of the target, where the job drafts.
    """

    tokens: Tensor
    steps: int
    calls: int | None = None


@dataclass(frozen=True)
class Case:
    """A model and the jobs that decode it.

    Attributes:
        model: What it is, with its size.
        jobs: By name; each is called with whether to be greedy. The first is the peer's, to which others are compared.
        inexact: Jobs that do not promise the greedy tokens of the first.
        tolerance: The largest difference of numbers that are not tokens.
        packages: Distributions whose versions matter.
        repositories: Folders whose commits matter.
    """

    model: str
    jobs: Mapping[str, Callable[[bool], Run]]
    inexact: frozenset[str] = frozenset()
    tolerance: float = 0.0
    packages: tuple[str, ...] = ("torch", "transformers", "mmspec")
    repositories: tuple[Path, ...] = ()


def parameters(model: torch.nn.Module) -> str:
    """The size of a model, as a text."""
    return f"{sum(each.numel() for each in model.parameters()) / 1e6:.0f} M parameters"
