"""A drafter without a model: token initialization from neighboring tokens, slot by slot or by one Triton kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import FrameFeatureTarget, Target
from mmspec.drafters.ngram import NGramTable
from mmspec.drafters.token_init import (
    BaseInitDrafter,
    LearnedTable,
    RandomToken,
    TokenInit,
    host_version,
    neighbors_of_window,
    repeat_left,
    repeat_up,
)
from mmspec.drafters.window_kernel import Reusable
from mmspec.errors import ArgumentError
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.numbers import Numbers, on_device
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import INIT, WindowRNG

LONGEST = 256  # positions of a window, whose drafts one program holds


class ForcedOnDevice:
    """The tokens that positions are forced to, on the device: copied once for each constraint."""

    def __init__(self) -> None:
        self._known: tuple[Constraint, Tensor | None] | None = None  # of the latest constraint

    def __call__(self, state: BatchState) -> Tensor | None:
        """Of a batch, int64 [N] or [B, N]; None if all are free."""
        constraint = state.layout.constraint
        if constraint is None:
            return None
        if self._known is None or self._known[0] is not constraint:
            tokens = constraint.forced.tokens
            forced = torch.from_numpy(tokens).to(state.device) if (tokens >= 0).any() else None
            self._known = constraint, forced
        return self._known[1]


@dataclass
class KernelDrafts:
    """A token initialization that `mmspec.kernels.token_init` knows.

    Attributes:
        kind: "left", "up", "random", "table" or "learned".
        table: Of "table", integer [V + 1, V].
        learned: Of "learned".
    """

    kind: str
    table: Tensor | None = None
    learned: LearnedTable | None = None

    def __post_init__(self) -> None:
        self._forced = ForcedOnDevice()

    def draft(self, state: BatchState, draws: WindowRNG, previous: Reusable) -> Draft | None:
        if previous.is_dense or state.layout.cell or draws.positions.host.shape[1] > LONGEST:
            return None
        # Imported here: Triton may be missing.
        from mmspec.kernels import token_init
        from mmspec.sampling.lazy_probs import LazyProbs

        vocab_size = previous.p.shape[-1]
        if self.table is not None and self.table.shape[1] != vocab_size:
            return None
        stats, reused = previous.for_kernels(state.device)
        kind = ("left", "up", "random", "table", "learned").index(self.kind)  # in the order of the kernel's numbers
        positions = draws.positions.on(state.device)
        # The others need no random numbers, which are then computed while the model runs.
        u = draws[INIT] if self.kind == "random" else None
        found = token_init.draft_window(
            *state.storage(), positions, u, kind, state.layout.width or 0, vocab_size,
            self.table if self.learned is None else self.learned.table, self._forced(state), reused,
        )  # fmt: skip
        drafted = LazyProbs.known(replace(stats, floats=found.floats, ints=found.ints))
        return Draft(found.window[:, 1:], drafted, found.window)


def kernel_drafts(init: object) -> KernelDrafts | None:
    """The same initialization in the kernel; None if the kernel does not know it."""
    if isinstance(init, NGramTable):
        return KernelDrafts("table", init.best.contiguous())
    if isinstance(init, LearnedTable):
        return KernelDrafts("learned", learned=init)
    kind = "left" if init is repeat_left else "up" if init is repeat_up else None
    if isinstance(init, RandomToken):
        kind = "random"
    return None if kind is None else KernelDrafts(kind)


class InitDrafter(BaseInitDrafter):
    """A `mmspec.decoding.drafter.ContinuationDrafter` that fills slots by token initialization.

    The drafts are not sampled from a distribution, so that their q is one-hot; any initialization is exact.

    Args:
        init: The initialization; a `LearnedTable` is updated after every target call.
        frames: A target of frames whose first tokens force those of later frames; None for other targets.
    """

    def __init__(self, init: TokenInit, frames: FrameFeatureTarget | None = None) -> None:
        super().__init__(init)
        self._init = init
        self._frames = frames
        self._host_init = host_version(init)

    @cached_property
    def kernel(self) -> KernelDrafts | None:
        """Drafts whole windows where the Triton kernels run, which know no frames."""
        return kernel_drafts(self._init) if self._frames is None else None

    def guesses(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
        """Without the tokens that are forced."""
        left, up = neighbors_of_window(verdict, state)
        return self._init(left.flatten(), up.flatten(), draws[INIT].flatten()).view(left.shape)

    def extend(self, state: BatchState, draft: Draft, reused: Numbers, draws: WindowRNG) -> Draft:
        count, first, width = draft.tokens.shape[1], int(reused.host.min()), state.layout.width
        aligned = bool((reused.host == first).all())  # all rows reuse the same number of drafts
        is_new = np.arange(first, count) >= reused.host[:, None]
        positions = state.positions(count)
        # A slot depends on the one before it: on a CPU the tokens are NumPy arrays, whose operations take the least
        # time. A device gets the same operations of torch, so that nothing waits for it.
        where: Any = torch.where
        init: Any = self._init
        here = partial(_there, state.device)
        if on_host := state.device.type == "cpu":
            where, init, here = np.where, self._host_init, partial(_numpy)
        tokens, u, new = here(draft.tokens), here(draws[INIT]), here(is_new)
        above: Any = here(state.at(positions - width)) if width else None
        line_starts = positions % width == 0 if width else np.zeros_like(positions, dtype=bool)
        constraint = state.layout.constraint
        columns = [tokens[:, j] for j in range(first)]
        last = here(state.last(2))
        before, left = [last[:, 0], last[:, 1], *columns][-2:]
        begins = np.zeros_like(positions, dtype=bool)
        if self._frames is not None:
            from mmspec.drafters.first_tokens import FirstTokens

            begins, firsts = positions % self._frames.frame_size == 0, FirstTokens(self._frames, state)
            for j in range(first):
                firsts.note(draft.tokens[:, j], begins[:, j])
        for j in range(first, count):
            up = before  # in a stream
            if width:
                # The token above may be in this window, and not committed yet.
                up = columns[j - width] if j >= width else above[:, j]
                if line_starts[:, j].any():
                    # The first token of a line has no left neighbor; the token above replaces it.
                    left = where(here(line_starts[:, j]) & (up >= 0), up, left)
            before, left = left, init(left, up, u[:, j])
            if constraint is not None:
                forced = constraint.forced[positions[:, j].clip(max=len(constraint.forced) - 1)]
                if (forced >= 0).any():
                    must = here(forced)
                    left = where(must >= 0, must, left)
            if begins[:, j].any():
                must = here(np.where(begins[:, j], firsts.forced(), -1))
                left = where(must >= 0, must, left)
            if not aligned:
                left = where(new[:, j - first], left, tokens[:, j])
            if begins[:, j].any():
                firsts.note(torch.as_tensor(left), begins[:, j])
            columns.append(left)
        found = torch.from_numpy(np.stack(columns, 1)) if on_host else torch.stack(columns, 1)
        return Draft(found, state.ops.point_mass(draft.q, found, first, is_new, inplace=True))


def _numpy(values: Tensor | NDArray[Any]) -> Any:
    return values.numpy() if isinstance(values, Tensor) else values


def _there(device: torch.device, values: Tensor | NDArray[Any]) -> Any:
    return values if isinstance(values, Tensor) else on_device(values, device)


def forcing_frames(target: Target) -> FrameFeatureTarget | None:
    """A target whose first tokens of frames force those of later frames; None for other targets."""
    return target if isinstance(target, FrameFeatureTarget) and target.forces_firsts else None


def token_init(context: DraftingContext, name: str) -> TokenInit:
    """A token initialization by name: "left", "up", "random" or "table".

    Raises:
        ArgumentError: If the model has no n-gram table.
    """
    layout, target, table = context.layout, context.target, context.resources.table
    above = repeat_up if layout.width else repeat_left
    if name == "table":
        if table is None:
            raise ArgumentError(f"recipe '{context.recipe}' needs an n-gram table, and this model has none")
        return table
    known: dict[str, TokenInit] = {"left": repeat_left, "up": above, "random": RandomToken(target.vocab_size)}
    return known[name]
