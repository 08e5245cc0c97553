"""The objective of outer heads: the target's distributions at the drafts that the head has corrected.

Windows are decoded with the head as it is, so that it learns from the changes that its own corrections leave. A window
shows what was right for the one before it: where both overlap, the head sees the states of the earlier call and the
tokens of the later one, and should predict the distributions of the later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.assembly import build_drafter
from mmspec.decoding.batch import BatchState
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.stats import Meter
from mmspec.decoding.target import RereadsWindows, reuses_updates
from mmspec.decoding.window_policy import FixedWindow
from mmspec.errors import ArgumentError
from mmspec.methods.outer.drafter import outer_layers
from mmspec.methods.outer.head import OuterHead
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Verdict, exact
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import TokenSampler
from mmspec.training.drafter_kind import DrafterKind, HeadSizes, with_weights
from mmspec.training.objectives import LOSSES, masked_mean
from mmspec.training.prepared import PreparedPrompts
from mmspec.training.settings import TrainingSettings

PASSES = 2  # while windows are decoded for training
CALLS = 2  # target calls per update


class WindowLosses:
    """A drafter that forwards to another one, and compares the head's distributions of every window with the target's.

    Args:
        drafter: A drafter of `refresh=outer` with the head.
        target: The target that is decoding.
        sampler: Makes the head's distributions of its logits.
        loss: A name in `mmspec.training.objectives.LOSSES`.

    Attributes:
        found: The losses of the windows since the list was last cleared.
    """

    ROWS = ("_drafter", "_sampler", "_last", "_last_at")

    def __init__(self, drafter: Any, head: OuterHead, target: RereadsWindows, sampler: TokenSampler, loss: str) -> None:
        self.found: list[Tensor] = []
        self._drafter, self._target, self._sampler, self._loss = drafter, target, sampler, LOSSES[loss]
        self._part = outer_layers(target, 2, head)
        self._last: Tensor | None = None  # states of the last window, [R, W, 2 * D]
        self._last_at = np.zeros(0, dtype=np.int64)  # the position of its first token by row

    @property
    def calls(self) -> int:
        return int(self._drafter.calls)

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Any:
        return self._drafter.propose(state, count, draws)

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        states = self._target.layer_features()
        at = state.before.host
        if self._last is not None:
            with torch.enable_grad():
                self._compare(verdict, state, draws, states, at, self._last, self._last_at)
        self._last, self._last_at = states, at
        self._drafter.observe(verdict, state, draws)

    def _compare(
        self,
        verdict: Verdict,
        state: BatchState,
        draws: WindowRNG,
        states: Tensor,
        at: NDArray[np.int64],
        old: Tensor,
        old_at: NDArray[np.int64],
    ) -> None:
        width, factor = states.shape[1], len(states) // len(at)
        slots = (at - old_at)[:, None] + np.arange(width)
        known = torch.from_numpy(slots < old.shape[1]).to(states.device)
        index = torch.from_numpy(slots.clip(max=old.shape[1] - 1)).to(states.device).repeat(factor, 1)[..., None]
        moved = old.gather(1, index.expand(-1, -1, old.shape[-1]))
        moved = torch.where(known.repeat(factor, 1)[..., None], moved, states)
        tokens = torch.cat([state.last(), verdict.draft.tokens], dim=1)
        logits = self._target.reread(tokens, at, moved, self._part)
        q = self._sampler.probs(
            Logits(logits.cond.float(), None if logits.uncond is None else logits.uncond.float()), draws.positions.host
        )
        inside = torch.from_numpy((draws.positions.host < state.layout.length) & state.is_running[:, None])
        mask = known & inside.to(known.device)
        if mask.any():
            self.found.append(masked_mean(self._loss(dense(verdict.p), q, None, None), mask))


def outer_losses(
    head: OuterHead, prepared: PreparedPrompts, window: int, loss: str, generator: torch.Generator
) -> Iterator[Tensor]:
    """Decodes the prompts with the head, and yields the loss of every `CALLS` calls; the head may change between them.

    Args:
        prepared: The prompts.
        window: Tokens in one target call.
        loss: A name in `mmspec.training.objectives.LOSSES`.
        generator: Gives the seeds of the rows.
    """
    layout, samplings = prepared.layout, prepared.samplings
    recipe = parse(f"scd:window={window},refresh=outer,passes={PASSES}")
    resources = replace(prepared.resources, heads={"outer": head})
    target = prepared.make()
    assert isinstance(target, RereadsWindows), "_new_outer has refused others"
    seeds = torch.randint(2**31, (len(samplings),), generator=generator).tolist()
    state, meter = BatchState(seeds, layout, window, target.device), Meter(target.device, len(seeds))
    sampler, own = (TokenSampler(samplings, layout.constraint, target.device) for _ in range(2))
    drafter = build_drafter(recipe, layout, target, samplings, resources, sampler, len(seeds))
    losses = WindowLosses(drafter, head, target, own, loss)
    batch = RunningBatch(target, losses, exact(), sampler, state, FixedWindow(window), meter)
    with torch.no_grad():
        running = batch.start()
    while running:
        with torch.no_grad():
            running = batch.step()
        if losses.found and (len(losses.found) == CALLS or not running):
            yield torch.stack(losses.found).mean()
            losses.found.clear()


def _new_outer(sizes: HeadSizes, settings: TrainingSettings) -> OuterHead:
    if not (isinstance(sizes.target, RereadsWindows) and reuses_updates(sizes.target)):
        name = type(sizes.target).__name__
        raise ArgumentError(f"no drafter of kind 'outer' can be trained for this model: {name} rereads no windows")
    if sizes.target.layers < 3:
        raise ArgumentError(f"--kind outer is for models of 3 layers or more; this one has {sizes.target.layers}")
    return OuterHead(sizes.target.vocab_size, sizes.dim, sizes.intermediate_size, sizes.heads, settings.layers)


KIND = DrafterKind(
    "scd:refresh=outer,passes=2",
    lambda head, b: next(outer_losses(head, b.prepared, b.settings.depth + 1, b.settings.loss, b.generator)),
    _new_outer,
    slack=lambda depth: depth + 1,
    initialize=with_weights,
    decodes=lambda head, b: outer_losses(head, b.prepared, b.settings.depth + 1, b.settings.loss, b.generator),
)
