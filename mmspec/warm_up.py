"""`warm`: compiles the kernels of a decode before it, so that none is compiled while somebody waits for tokens.

Triton compiles a kernel when it is first launched, for seconds; see `mmspec.kernels.specialization` for what makes two
launches different. A decode of random logits with the same settings launches the same kernels as the model's, without
a call of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.arguments import check_integer
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit
from mmspec.engine import NO_RESOURCES, run
from mmspec.errors import ArgumentError
from mmspec.kernels.backend import choose
from mmspec.knobs import LARGEST
from mmspec.recipes import Recipe, parse
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.tree import Tree


@dataclass
class RandomTarget:
    """A target of random logits: nothing is read, and every token may follow.

    Attributes:
        rows: B.
        vocab_size: V.
        device: Of the logits.
        dtype: Of the logits.
        guided: Whether there are unconditional logits.
        cell: The shape of a token; (K,) for columns.
        width: D, of the features that heads read.
    """

    rows: int
    vocab_size: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    guided: bool = False
    cell: tuple[int, ...] = ()
    width: int = 0
    layers: int = 1024
    short_cache: bool = True
    can_skip_layers: bool = True
    fused_layers: tuple[int, ...] = ()
    _read: int = field(default=1, init=False)
    _collected: int = field(default=1, init=False)
    _exited: tuple[int, int] = field(default=(0, 0), init=False)

    def prefill(self) -> Logits:
        return self._logits(1, self.guided)

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        guided = self.guided and (early_exit is None or early_exit.guided)
        if early_exit is None:
            self._read = tokens.shape[1]
        else:
            self._exited = self.rows * (1 + guided), tokens.shape[1]
        return self._logits(tokens.shape[1], guided)

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, early_exit: EarlyExit | None = None
    ) -> Logits:
        return self.forward(tokens, at, early_exit)

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        pass

    def select_rows(self, row_ids: list[int]) -> None:
        self.rows = len(row_ids)

    def read_prompts(self, embeddings: Tensor) -> None:
        """Any embeddings will do."""

    def features(self) -> Tensor:
        """Zeros [R, W, D]."""
        return torch.zeros(self._all_rows, self._read, self.width, dtype=self.dtype, device=self.device)

    def exit_features(self) -> Tensor:
        """Zeros [R, W, D]."""
        return torch.zeros(*self._exited, self.width, dtype=self.dtype, device=self.device)

    def head(self, features: Tensor) -> Tensor:
        """Random logits [R, W, V]."""
        return torch.randn(*features.shape[:2], self.vocab_size, dtype=self.dtype, device=self.device)

    def collect_layers(self, layers: Sequence[int]) -> None:
        self._collected = len(layers)

    def layer_features(self) -> Tensor:
        """Zeros [R, W, layers * D]."""
        return self.features().repeat(1, 1, self._collected)

    @property
    def _all_rows(self) -> int:
        return self.rows * (1 + self.guided)

    def _logits(self, width: int, guided: bool) -> Logits:
        shape = self.rows * (1 + guided), width, *self.cell, self.vocab_size
        return split_cfg(torch.randn(shape, dtype=self.dtype, device=self.device), guided)


def warm(
    recipe: str | Recipe,
    layout: Layout,
    samplings: Sequence[SamplingParams],
    vocab_size: int,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    resources: DraftResources = NO_RESOURCES,
    windows: Sequence[int] | None = None,
    width: int = 0,
) -> None:
    """Compiles every sampling and verification kernel that decodes with these settings launch.

    The kernels of captured layers are compiled when a call is captured. Where a row of logits is no multiple of 16
    bytes, as with an odd V, the alignment of the unconditional logits depends on the batch and the window too, and a
    batch that rows leave may compile a kernel again. Where the kernels do not run, as on a CPU, nothing is done.

    Args:
        recipe: How the decodes draft and verify.
        layout: The sequence that they generate.
        samplings: Their sampling parameters, one per row of the batch. With guidance, logits are two rows each.
        vocab_size: V.
        device: Of the logits.
        dtype: Of the logits.
        resources: The resources of the model for drafters. Its draft models are not called.
        windows: Tokens in one target call; None for the recipe's window, and with `window=auto` for all powers of two.
        width: D, of the features that the recipe's head reads, if it has one.

    Raises:
        ArgumentError: If there are no rows, or the recipe is for tokens that are vectors.
    """
    recipe, place = parse(recipe), torch.device(device)
    check_integer("vocab_size", vocab_size, 1, 2**31 - 1)
    if not samplings:
        raise ArgumentError("samplings=[] is not allowed; it must have one entry per row")
    if layout.kind == "latents" or recipe.info.continuous:
        raise ArgumentError(f"recipe '{recipe}' is for tokens that are vectors, whose decodes launch no kernels")
    if choose(place.type) != "triton":
        return
    guided = any(one.guidance_scale != 1 for one in samplings)
    rows = len(samplings)

    def target(guided: bool) -> RandomTarget:
        return RandomTarget(rows, vocab_size, place, dtype, guided, layout.cell, width)

    given = replace(
        resources,
        draft_model=None if resources.draft_model is None else lambda: target(False),
        guided_draft_model=None if resources.guided_draft_model is None else lambda: target(True),
        adaptive_windows={},
    )
    if windows is None:
        windows = [2**n for n in range(1, LARGEST.bit_length())] if recipe.auto else [recipe.window]
    for window in windows:
        one = recipe.with_knobs(window=window) if "window" in recipe.knobs else recipe
        # Its last windows are narrower, down to a single token.
        short = replace(layout, length=min(layout.length, window + 2), eos=frozenset(), ends=None, stops=None)
        run(target(guided), one, short, samplings, range(rows), given)
