"""MAR as a target: one latent per position, in a random order of places for each row.

A place is a cell of the image grid in raster order; a position counts latents in the order of generation.

The decoder's attention is bidirectional, so one pass cannot compute the conditions of W positions: a window is W passes
in one batch. That saves calls but no work, which pays on a device with spare capacity only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.step import Step
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.vision.mar.transformer import MARTransformer


def orders(seeds: Sequence[int], places: int) -> Tensor:
    """The places of each row in generation order, int64 [B, N]: a permutation that depends on the row's seed."""
    return torch.from_numpy(np.stack([np.random.default_rng(seed % 2**64).permutation(places) for seed in seeds]))


class MARTarget:
    """A MAR with class labels; see `mmspec.decoding.target.Target`.

    Its logits are the conditions of the diffusion head, [B, W, width].

    Args:
        model: The backbone.
        labels: Class ids int64 [B].
        order: int64 [B, N], the place of each position.
        guided: Whether to compute unconditional conditions as well.
        blind: Hides the drafts of a window from all its positions, as Continuous Speculative Decoding does: one pass
            per window, with conditions that ignore the drafts.
        layers: Runs only the first `layers` layers of the encoder and of the decoder; None runs all.
    """

    ROWS = ("_condition", "_order", "_rank", "_latents", "_rows")

    vocab_size = 0

    def __init__(
        self,
        model: MARTransformer,
        labels: Tensor,
        order: Tensor,
        guided: bool,
        blind: bool = False,
        layers: int | None = None,
    ) -> None:
        self.device = model.device
        self._model = model
        self._guided = guided
        self._blind = blind
        self._layers = layers
        self._order = order.to(self.device)
        self._rows = np.arange(len(labels))
        with torch.no_grad():
            classes = [model.conditions(labels.to(self.device), len(labels))]
            if guided:
                classes.append(model.conditions(None, len(labels)))
        self._condition = torch.cat(classes)
        self._latents = torch.zeros(*order.shape, model.config.token_dim, device=self.device)
        # The position of each place.
        self._rank = self._order.argsort(dim=1)

    def prefill(self) -> Logits:
        return self.conditions(torch.zeros(len(self._order), 1, dtype=torch.int64, device=self.device))

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        return self.conditions(self._after(self.put(tokens, at)))

    def forward_slot(self, tokens: Tensor, at: NDArray[np.int64], slot: NDArray[np.int64]) -> Logits:
        """One pass, where `forward` takes one per token."""
        positions = self.put(tokens, at)
        return self.conditions(self._after(positions.gather(1, torch.from_numpy(slot)[:, None].to(self.device))))

    def _after(self, positions: Tensor) -> Tensor:
        """The positions after `positions`, int64 [B, W]; at the end of the sequence, the last one."""
        return (positions + 1).clamp(max=self._order.shape[1] - 1)

    def put(self, tokens: Tensor, at: NDArray[np.int64]) -> Tensor:
        """Writes latents [B, W, D] from positions `at` on, host int64 [B]; returns their positions, int64 [B, W]."""
        width, count = tokens.shape[1], self._order.shape[1]
        positions = torch.from_numpy(at).to(self.device)[:, None] + torch.arange(width, device=self.device)
        inside = positions < count
        places = self._order.gather(1, positions.clamp(max=count - 1))[..., None].expand(-1, -1, tokens.shape[-1])
        # Positions past the end have no place; the last place keeps its latent.
        kept = self._latents.gather(1, places)
        self._latents.scatter_(1, places, torch.where(inside[..., None], tokens.to(kept), kept))
        return positions

    def refresh(self, step: Step) -> None:
        """Writes the committed latents, which a rule that replaces drafts in place may have changed."""
        for row, row_id in enumerate(self._rows):
            tokens = step.tokens[int(row_id)]
            self._latents[row, self._order[row, : len(tokens)]] = tokens.to(self._latents)

    def conditions(self, done: Tensor) -> Logits:
        """Conditions of the head at positions `done`, int64 [B, W], each given the `done` latents before it."""
        factor = 1 + self._guided
        seen = done[:, :1] if self._blind else done
        known = self._rank[:, None] < seen[..., None]  # [B, S, N]
        latents = self._latents[:, None].expand(-1, seen.shape[1], -1, -1)
        batch = known.flatten(0, 1).repeat(factor, 1)
        condition = self._condition.repeat_interleave(seen.shape[1], dim=0)
        z = self._model(condition, latents.flatten(0, 1).repeat(factor, 1, 1), batch, self._layers)
        z = z.unflatten(0, (-1, seen.shape[1])).expand(-1, done.shape[1], -1, -1)
        places = self._order.gather(1, done).repeat(factor, 1)[..., None, None].expand(-1, -1, 1, z.shape[-1])
        return split_cfg(z.gather(2, places)[:, :, 0], self._guided)
