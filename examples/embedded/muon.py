"""Muon for the hidden matrices of a transformer and AdamW for all other parameters, on one learning-rate schedule.

Muon (Jordan et al. 2024, `torch.optim.Muon`) orthogonalizes the update of each matrix. The matrices of a fused
projection are updated apart: orthogonalized together, the gradient of the values, which is larger, would leave queries
and keys almost unchanged, and the transformer would hardly learn where to attend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn


class MuonConfig(Protocol):
    """Settings of `MuonAdamW`.

    Attributes:
        muon_lr: Peak learning rate of Muon.
        adamw_lr: Peak learning rate of AdamW.
        weight_decay: Decoupled weight decay of both.
        warmup: Steps of linear warm-up.
        decay_from: Share of the budget, in 0..1, after which the learning rate falls linearly.
        final_lr: Learning rate at the end of the budget, as a share of the peak.
    """

    @property
    def muon_lr(self) -> float: ...
    @property
    def adamw_lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def warmup(self) -> int: ...
    @property
    def decay_from(self) -> float: ...
    @property
    def final_lr(self) -> float: ...


@dataclass
class RowBlock:
    """Rows of a fused matrix as a parameter that shares its memory.

    Attributes:
        parameter: Rows `rows` of `fused`.
        fused: The parameter of the model.
        rows: The rows.
    """

    parameter: nn.Parameter
    fused: nn.Parameter
    rows: slice


def row_blocks(model: nn.Module, count: Callable[[str], int]) -> list[RowBlock]:
    """The matrices of a model that Muon trains.

    Args:
        model: The model.
        count: Number of equal blocks of rows that the matrix of this parameter name consists of, such as 3 for fused
            queries, keys and values; 0 leaves the parameter to AdamW. Parameters that are not matrices are ignored.
    """
    blocks = []
    for name, p in model.named_parameters():
        if p.ndim == 2 and (n := count(name)):
            size = len(p) // n
            for first in range(0, len(p), size):
                rows = slice(first, first + size)
                blocks.append(RowBlock(nn.Parameter(p.data[rows]), p, rows))
    return blocks


def lr_factor(step: int, done: float, config: MuonConfig) -> float:
    """The learning rate of step `step` (from 0) as a share of its peak, when a share `done` of the budget is spent."""
    decay = (1 - done) / (1 - config.decay_from)
    return min((step + 1) / config.warmup, 1.0, config.final_lr + (1 - config.final_lr) * max(decay, 0.0))


class MuonAdamW:
    """Muon for hidden matrices, AdamW for embeddings, output head, norms and biases.

    Args:
        model: The model to train.
        blocks: Number of row blocks of each matrix; see `row_blocks`.
        config: Learning rates and schedule.
    """

    def __init__(self, model: nn.Module, blocks: Callable[[str], int], config: MuonConfig) -> None:
        self._model = model
        self._config = config
        self._blocks = row_blocks(model, blocks)
        hidden = {id(block.fused) for block in self._blocks}
        rest = [p for p in model.parameters() if id(p) not in hidden]
        decay = config.weight_decay
        matrices = [block.parameter for block in self._blocks]
        self._optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(matrices, lr=config.muon_lr, momentum=0.95, weight_decay=decay), config.muon_lr),
            (torch.optim.AdamW(rest, lr=config.adamw_lr, betas=(0.9, 0.97), weight_decay=decay), config.adamw_lr),
        ]

    def step(self, step: int, done: float) -> None:
        """Updates the model from its gradients, and clears them.

        Args:
            step: Steps taken before.
            done: Share of the budget that is spent, in 0..1.
        """
        for block in self._blocks:
            assert block.fused.grad is not None
            block.parameter.grad = block.fused.grad[block.rows]
        for optimizer, peak in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * lr_factor(step, done, self._config)
            optimizer.step()
            optimizer.zero_grad()
        self._model.zero_grad()

    def state_dict(self) -> list[dict[str, Any]]:
        """The states of Muon and of AdamW."""
        return [optimizer.state_dict() for optimizer, _ in self._optimizers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restores what `state_dict` returned."""
        for (optimizer, _), state in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(state)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, step: int, decay: float) -> None:
    """Updates an exponential moving average of a model's parameters; its decay is smaller in the first steps.

    Args:
        average: The averaged model.
        model: The model after its update.
        step: Steps taken before that update.
        decay: Largest decay of the average.
    """
    keep = min(decay, (step + 1) / (step + 10))
    for mean, p in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(p, 1 - keep)
