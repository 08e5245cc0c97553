"""A masked model drafts a block, which an autoregressive model verifies.

A masked model knows the distribution of every missing place given the known ones. In one pass it gives those of the
next places, none of which depends on another: the product is the distribution that the block is sampled from, and the
q of each token is that of its place. Steps that read the tokens of earlier ones, as masked models decode alone, have no
such q: a token then depends on later ones. Aggressive Decoding (arXiv 2205.10350) drafts with such models for greedy
decoding, where no q is needed.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.draft_model import draft_sampling
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import DRAFT, WindowRNG
from mmspec.sampling.sampler import Sampler


class MaskedModel(Protocol):
    """A masked model of the target's tokens, with the same prompts."""

    def block(self, state: BatchState, count: int) -> Tensor:
        """Logits of the next `count` tokens of each row, float32 [B, count, *cell, V], all of them masked.

        They depend on the tokens of the rows and on nothing else. Past the end of a row they may be anything.
        """
        ...


class MaskedDrafter:
    """Samples each token of a block from its own distribution.

    Args:
        model: The masked model.
        sampler: Makes the distributions, and samples.
        device: Of the sampler.
    """

    ROWS = ("_model", "_sampler")
    COUNTS = ("calls",)

    def __init__(self, model: MaskedModel, sampler: Sampler, device: torch.device) -> None:
        self.calls = 0
        self._model, self._sampler, self._device = model, sampler, device

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        pass

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        q = self._sampler(Logits(self._model.block(state, count), None), Numbers(state.positions(count)))
        self.calls += 1
        tokens = [self._sampler.sample(q[:, i : i + 1], draws.slot(i), DRAFT) for i in range(count)]
        return Draft(torch.cat(tokens, dim=1), q)


def build(context: DraftingContext) -> MaskedDrafter:
    """The builder of the recipe `masked`.

    Raises:
        ArgumentError: If the model has no masked model beside it.
    """
    make = context.resources.models.get("masked")
    if make is None:
        raise ArgumentError(
            f"recipe {context.recipe.name!r} needs a masked model of the same codes as draft_model, and this model has "
            "none; MusicGen takes a MAGNeT"
        )
    sampler = context.layout.sampler(draft_sampling(context, 1.0), context.target.device)
    return MaskedDrafter(make(), sampler, context.target.device)


class MaskedToy:
    """A masked model whose logits are stored in a table, by place and by the last token before the masked places.

    Args:
        vocab_size: V.
        layout: Layout of the sequences.
        seed: Seed of the table.
    """

    ROWS = ()

    def __init__(self, vocab_size: int, layout: Layout, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (layout.length, vocab_size + 1, *layout.cell, vocab_size)
        self._table = torch.randn(shape, generator=generator) * 1.2

    def block(self, state: BatchState, count: int) -> Tensor:
        places = torch.from_numpy(state.positions(count)).clamp(max=len(self._table) - 1)
        last = state.last().flatten(1)[:, :1] + 1  # 0 before the first token
        return self._table[places, last.clamp(max=self._table.shape[1] - 1)]  # padding may be outside the vocabulary
