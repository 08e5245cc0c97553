"""Refreshed Jacobi drafts: the first reused drafts are coupled to a draft network, which has read the corrected prefix.

The drafts after a resampled token come from a target call that saw another token there, so that more than half of the
calls of coupled Jacobi decoding give one token where images have much entropy. A reused draft x may be coupled to any
distribution r that depends only on what lies to its left: x ~ q is kept with probability min(1, r(x) / q(x)) and
resampled from norm((r - q)+) otherwise, after which it follows r, and q := r. The test of the target is untouched, so
that decoding stays exact for any network.

r is a mixture w d + (1 - w) q of the network's distribution d with the old one. The weight w of a row is the one that
would have overlapped most with the target distributions of the row's earlier windows.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.drafters.draft_runner import DraftRunner
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rejection import Verdict, ratio, residual, sample
from mmspec.sampling.rng import DRAFT, WindowRNG
from mmspec.sampling.tree import Tree

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # the weights that a row chooses from
_MEMORY = 0.9  # of the running mean of overlaps


class Refresh:
    """Couples the first drafts of a window to the distributions of a draft network.

    Args:
        runner: The network.
        count: Drafts per window to refresh.
        weight: The weight w of the network in the mixture, from 0 to 1; None to choose it by measured overlap.
        device: The device of the tokens.
    """

    ROWS = ("_runner", "_overlap")

    def __init__(self, runner: DraftRunner, count: int, weight: float | None, device: torch.device) -> None:
        self._runner = runner
        self._count = count
        self._weight = weight
        self._chain = cache(lambda count: Tree.branching([1] * count, device))
        # Of each row, refreshed draft and weight: the running mean of sum(min(p, r)), float32 [B, count, weights].
        self._overlap: Tensor | None = None
        # What overlaps are measured on: the network's and the old distributions of the last window's refreshed drafts,
        # each [B, count, V], and how many drafts of each row were reused.
        self._last: tuple[Tensor, Tensor, NDArray[np.int64]] | None = None

    @property
    def calls(self) -> int:
        """Calls of the draft network."""
        return self._runner.calls

    def refresh(
        self, state: BatchState, tokens: Tensor, q: Probs, reused: Numbers, draws: WindowRNG
    ) -> tuple[Tensor, Tensor, Numbers]:
        """Refreshes the first drafts; rows that reuse fewer drafts get new ones, sampled from the network.

        Args:
            state: The batch.
            tokens: int64 [B, W], the drafts of the window.
            q: float32 [B, W, V], their distributions.
            reused: [B], the number of drafts of each row that are reused.
            draws: The random numbers of the window.

        Returns:
            The drafts, their distributions, and the number of drafts of each row that need no continuation.
        """
        count = min(self._count, tokens.shape[1])
        weights = self._weights(len(tokens), q.device)
        new_tokens, new_q, network = list[Tensor](), list[Tensor](), list[Tensor]()
        for i in range(count):
            root = i == 0
            d = dense(
                self._runner.root(state) if root else self._runner.nodes(state, new_tokens[-1], self._chain(count), i)
            )
            u = draws.slot(i).uniforms(DRAFT, 1, 2)
            x, old = tokens[:, i : i + 1], dense(q[:, i : i + 1])
            w = weights[:, i, None, None]
            is_reused = torch.from_numpy(reused.host > i).to(x.device)[:, None]
            r = torch.where(is_reused[..., None], w * d + (1 - w) * old, d)
            keep = is_reused & (u[..., 0] < ratio(r, old, x))
            rest = torch.where(is_reused[..., None], residual(r, old), r)
            new_tokens.append(torch.where(keep, x, sample(rest, u[..., 1], fallback=r)))
            new_q.append(r)
            network.append(d)
        if self._weight is None:
            self._last = torch.cat(network, dim=1), dense(q[:, :count]), reused.host
        tokens = torch.cat([*new_tokens, tokens[:, count:]], dim=1)
        return tokens, torch.cat([*new_q, dense(q[:, count:])], dim=1), Numbers(np.maximum(reused.host, count))

    def observe(self, verdict: Verdict, state: BatchState) -> None:
        """Called after verification, before the batch advances: `state` still ends where the window began."""
        self._runner.observe(verdict, state)
        if self._last is not None:
            self._measure(verdict, *self._last)
        self._last = None

    def before_join(self, other: Refresh, state: BatchState, other_state: BatchState) -> None:
        if self._weight is None:
            self._weights(len(state.ids), state.device)
            other._weights(len(other_state.ids), state.device)

    def _weights(self, batch: int, device: torch.device) -> Tensor:
        """The weight of the network for each row and refreshed draft, float32 [B, count]."""
        if self._weight is not None:
            return torch.full((batch, self._count), self._weight, device=device)
        if self._overlap is None:
            self._overlap = torch.zeros(batch, self._count, len(WEIGHTS), device=device)
            self._overlap[..., len(WEIGHTS) // 2] = 1e-6  # half and half until something has been measured
        return torch.tensor(WEIGHTS, device=device)[self._overlap.argmax(-1)]

    def _measure(self, verdict: Verdict, network: Tensor, old: Tensor, reused: NDArray[np.int64]) -> None:
        """Adds the overlaps of the last window with its target distributions, where both drafts and tests exist."""
        assert self._overlap is not None
        count = network.shape[1]
        p = dense(verdict.p[:, :count])
        index = np.arange(count)
        known = (index < reused[:, None]) & (index < verdict.tested[:, None])
        seen = torch.from_numpy(known).to(p.device)[..., None]
        found = [torch.minimum(p, w * network + (1 - w) * old).sum(-1) for w in WEIGHTS]
        mean = self._overlap[:, :count]
        mean.copy_(torch.where(seen, _MEMORY * mean + (1 - _MEMORY) * torch.stack(found, dim=-1), mean))
