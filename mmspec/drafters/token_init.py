"""Token initialization: drafts for positions that are new to the window, from the left and the upper neighbor.

`InitDrafter` fills slots by one, slot by slot; `KernelDrafts` whole windows by one Triton kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import FrameFeatureTarget, Target
from mmspec.drafters.ngram import NGramTable
from mmspec.drafters.window_kernel import KernelDrafts
from mmspec.errors import ArgumentError
from mmspec.sampling.numbers import Numbers, copied, on_device
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import INIT, WindowRNG

# (left, up, u) -> tokens, int64 [B] each. `left` is the token before the position. `up` is the token above it, or in a
# stream the one before `left`; -1 if there is none. `u` float32 [B] is uniform in [0, 1). The token has a one-hot q, so
# that any initialization is exact.
TokenInit = Callable[[Tensor, Tensor, Tensor], Tensor]

Tokens = NDArray[np.int64]
# The same on the host, where a call of NumPy takes a fraction of the time of one of torch.
HostTokenInit = Callable[[Tokens, Tokens, NDArray[np.float32]], Tokens]


@runtime_checkable
class SupportsHost(Protocol):
    """A `TokenInit` that also computes on the host."""

    def on_host(self, left: Tokens, up: Tokens, u: NDArray[np.float32]) -> Tokens:
        """The tokens of a call with the same arguments."""
        ...


@runtime_checkable
class LearnedTable(Protocol):
    """An initialization from a table of each row, which changes with every window.

    Attributes:
        table: int32 [B, entries], the token after each pair of neighbors, -1 for none; see `table_entry`. Of columns
            int32 [B, K, V], the code after each code.
    """

    table: Tensor

    def update(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Learns from a window; `state` still ends where the window began.

        It needs no counts of accepted drafts, so that it is called before the host knows them; a second call for the
        same window does nothing.
        """
        ...


class BaseInitDrafter:
    """What drafters of tokens and of columns by an initialization have in common: a `LearnedTable` learns.

    Args:
        init: The initialization.
    """

    ROWS = ("_learned",)

    calls = 0

    def __init__(self, init: object) -> None:
        self._learned = init if isinstance(init, LearnedTable) else None

    @property
    def learns(self) -> bool:
        """Whether it changes with every window."""
        return self._learned is not None

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """It does not need the counts."""
        if self._learned is not None:
            self._learned.update(verdict, state, draws)


def host_version(init: TokenInit) -> HostTokenInit:
    """The same initialization of NumPy arrays, for drafts on a CPU."""
    known: object = init
    if known is repeat_left:
        return lambda left, up, u: left
    if known is repeat_up:
        return lambda left, up, u: np.where(up >= 0, up, left)
    if isinstance(known, SupportsHost):
        return known.on_host

    def converted(left: Tokens, up: Tokens, u: NDArray[np.float32]) -> Tokens:
        return init(*(torch.from_numpy(np.ascontiguousarray(each)) for each in (left, up, u))).numpy()

    return converted


def repeat_left(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
    """Repeats the token before."""
    return left


def repeat_up(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
    """Repeats the token above, or in the first line the token before. For 2-D token maps only."""
    return torch.where(up >= 0, up, left)


@dataclass(frozen=True)
class RandomToken:
    """An initialization with uniformly random tokens.

    Attributes:
        vocab_size: V.
    """

    vocab_size: int

    def __call__(self, left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        return (u * self.vocab_size).long().clamp_(max=self.vocab_size - 1)


def table_entry(left: Tensor, up: Tensor, vocab_size: int, entries: int) -> Tensor:
    """The index of a pair of neighbors (`up` is -1 if there is none) in a table, of the shape of `left`."""
    return ((up + 1) * vocab_size + left) % entries


def neighbors_of_window(verdict: Verdict, state: BatchState) -> tuple[Tensor, Tensor]:
    """The left and the upper neighbor of each slot of a window that has been verified, int64 [B, m + 1] each.

    Args:
        verdict: The outcome.
        state: The batch; it still ends where the window began, and every row has a token.
    """
    count = verdict.p.shape[1]
    last = state.last(2)
    read = torch.cat([last, verdict.draft.tokens], dim=1) if count > 1 else last
    left, up = read[:, 1:], read[:, :-1]
    if width := state.layout.width:
        positions = state.positions(count)
        up = state.at(np.minimum(positions, state.length[:, None] + width - 1) - width)
        if count > width:
            # The token above is in this window.
            up = torch.cat([up[:, :width], verdict.draft.tokens[:, : count - width]], dim=1)
        first = copied(torch.from_numpy(positions % width == 0), up.device)
        left = torch.where(first & (up >= 0), up, left)
    return left, up


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
        """Drafts whole windows where the Triton kernels run, which know some initializations, and no frames."""
        init: object = self._init
        if self._frames is not None:
            return None
        if isinstance(init, NGramTable):
            return KernelDrafts("table", init.best.contiguous())
        if isinstance(init, LearnedTable):
            return KernelDrafts("learned", learned=init)
        if isinstance(init, RandomToken):
            return KernelDrafts("random")
        return KernelDrafts("left") if init is repeat_left else KernelDrafts("up") if init is repeat_up else None

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
