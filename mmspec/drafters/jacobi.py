"""Jacobi decoding: the rejected part of the previous window, resampled, then the drafts of a continuation drafter."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mmspec.arguments import checked_call, has
from mmspec.decoding.batch import BatchState
from mmspec.decoding.drafter import ContinuationDrafter
from mmspec.decoding.foreign_parts import check_draft
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.coupling import COUPLINGS, Coupling, refuse_leaks
from mmspec.drafters.recipe_info import Choice
from mmspec.drafters.restarts import KnowsGuesses, Restarts
from mmspec.drafters.token_init import InitDrafter, forcing_frames, token_init
from mmspec.drafters.window_kernel import Reusable, WindowKernel
from mmspec.environment.importing import resolve
from mmspec.errors import ArgumentError
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import WindowRNG


class RefreshesDrafts(Protocol):
    """Couples the first drafts of a window to a draft network; see `mmspec.drafters.refresh`."""

    @property
    def calls(self) -> int:
        """Calls of the network."""
        ...

    def refresh(
        self, state: BatchState, tokens: Tensor, q: Probs, reused: Numbers, draws: WindowRNG
    ) -> tuple[Tensor, Probs, Numbers]:
        """The drafts with their q, and how many of each row are not new."""
        ...

    def observe(self, verdict: Verdict, state: BatchState) -> None:
        """Called after verification."""
        ...


class CouplesToLayers(Protocol):
    """Couples the rejected part of a window to a few layers of the target; such as `refresh=outer`."""

    calls: int

    @property
    def reads_ahead(self) -> bool:
        """Whether it does so without waiting for a device."""
        ...

    def couple(
        self, verdict: Verdict, tokens: Tensor, coupling: Coupling, state: BatchState, draws: WindowRNG
    ) -> tuple[Tensor, Probs]:
        """The tokens and their q."""
        ...

    def couple_ahead(
        self, verdict: Verdict, tokens: Tensor, coupling: Coupling, state: BatchState, draws: WindowRNG
    ) -> tuple[Tensor, Probs] | None:
        """As `couple`, on a device; None if that is not possible."""
        ...


class Jacobi:
    """Reuses the rejected part of the previous window as drafts, and continues it with another drafter.

    The rejected part is the slots after the resampled token. The coupling gives each of them a new token that follows
    the target distribution p of the slot in that window, so that p is the q of the reused draft.

    Args:
        continuation: Drafts positions that are new to the window.
        coupling: Resamples the rejected part; None drops it, so that every draft comes from `continuation`.
        vocab_size: V.
        refresh: Couples the first drafts of every window to a draft network; None leaves them as they are.
        outer_layers: Couples the rejected part to what a few layers of the target make of it; None leaves it coupled to
            the target distributions of the window. Requires a coupling.
    """

    ROWS = ("_continuation", "_refresh", "_outer_layers", "_restarts", "_accepted", "_tokens", "_q")

    def __init__(
        self,
        continuation: ContinuationDrafter,
        coupling: Coupling | None,
        vocab_size: int,
        refresh: RefreshesDrafts | None = None,
        outer_layers: CouplesToLayers | None = None,
    ) -> None:
        self._continuation = continuation
        self._coupling = coupling
        self._vocab_size = vocab_size
        self._refresh = refresh
        self._outer_layers = outer_layers
        # The resampled tokens of the previous window, [B, W, *cell], and their q. They are reused from the slot after
        # the accepted drafts and the token that follows these on.
        self._tokens: Tensor | None = None
        self._q: Probs | None = None
        self._accepted = Numbers(np.zeros(0, dtype=np.int64))
        # Whose choices are made on the host: on a device the next window may be drafted before it knows the tokens.
        self._restarts: Restarts | None = None
        if coupling is not None and isinstance(continuation, KnowsGuesses) and not continuation.learns:
            self._restarts = Restarts(continuation)
        self._p: Probs = torch.empty(0)  # of the latest window, where a kernel drafts

    @cached_property
    def _kernel(self) -> WindowKernel | None:
        """Drafts whole windows: it reads the counts on the device, and p even if nothing is reused."""
        if self._refresh is not None:
            return None
        found = getattr(self._continuation, "kernel", self._continuation if self._coupling is None else None)
        return found if isinstance(found, WindowKernel) else None

    @property
    def calls(self) -> int:
        return self._continuation.calls + sum(
            part.calls for part in (self._refresh, self._outer_layers) if part is not None
        )

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        self._continuation.observe(verdict, state, draws)
        if self._refresh is not None:
            self._refresh.observe(verdict, state)
        if self._restarts is not None and state.device.type == "cpu":
            self._restarts.observe(verdict, state, draws)
        self._accepted = verdict.counts
        if state.ops.by_kernels and self._kernel is not None:
            self._p = verdict.p
        if self._coupling is not None and verdict.accepted.min() + 1 < verdict.tokens.shape[1]:
            self._tokens = None if verdict.coupled is None else state.ops.check(verdict.p, verdict.coupled)
            if self._tokens is None:
                self._tokens, self._q = self._coupling(verdict, state, draws), verdict.p  # q := p
                if self._outer_layers is not None:
                    coupled = self._outer_layers.couple(verdict, self._tokens, self._coupling, state, draws)
                    self._tokens, self._q = coupled
            else:
                self._q = verdict.p if verdict.coupled_p is None else verdict.coupled_p
        else:
            self._tokens = self._q = None

    @property
    def drafts_ahead(self) -> bool:
        return self._kernel is not None and (self._outer_layers is None or self._outer_layers.reads_ahead)

    def draft_ahead(self, verdict: Verdict, state: BatchState, draws: WindowRNG, next_draws: WindowRNG) -> Draft | None:
        if self._kernel is None:
            return None
        # The kernels read the counts on the device, and do without tokens to reuse where there are none.
        self._continuation.observe(verdict, state, draws)
        tokens, q = None if self._coupling is None else self._coupling(verdict, state, draws), verdict.p
        if self._outer_layers is not None and self._coupling is not None and tokens is not None:
            coupled = self._outer_layers.couple_ahead(verdict, tokens, self._coupling, state, draws)
            if coupled is None:
                return None
            tokens, q = coupled
            verdict.coupled_p = q
        verdict.coupled = tokens
        return self._kernel.draft(state, next_draws, Reusable(verdict.p, tokens, q, verdict.counts))

    def before_join(self, other: Jacobi, state: BatchState, other_state: BatchState) -> None:
        width = max(0 if one._tokens is None else one._tokens.shape[1] for one in (self, other))
        for one, its_state in ((self, state), (other, other_state)):
            tokens, q, one._accepted = one._reusable(width, its_state)
            one._tokens, one._q = (tokens, q) if width else (None, None)

    def _reusable(self, width: int, state: BatchState) -> tuple[Tensor, Tensor, Numbers]:
        """Tokens, q and accepted drafts of the previous window, moved to the end of one of `width` slots."""
        batch, cell = len(state.ids), state.layout.cell
        tokens = torch.zeros(batch, width, *cell, dtype=torch.int64, device=state.device)
        q = torch.zeros(batch, width, *cell, self._vocab_size, device=state.device)
        if self._tokens is None or self._q is None:
            return tokens, q, Numbers(np.full(batch, width - 1))
        first = width - self._tokens.shape[1]
        tokens[:, first:], q[:, first:] = self._tokens, dense(self._q)
        return tokens, q, Numbers(self._accepted.host + first)

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        batch, on_cpu = len(state.ids), state.device.type == "cpu"
        if self._restarts is not None and self._tokens is not None and on_cpu:
            self._accepted = self._restarts.after(self._accepted, self._tokens.shape[1])
        if state.ops.by_kernels and self._kernel is not None:
            drafted = self._kernel.draft(state, draws, Reusable(self._p, self._tokens, self._q, self._accepted))
            if drafted is not None:
                return drafted
        if self._tokens is None or self._q is None:
            there = None if on_cpu else torch.zeros(batch, dtype=torch.int64, device=state.device)
            reused = Numbers(np.zeros(batch, dtype=np.int64), there)
            cell = state.layout.cell
            tokens = torch.zeros(batch, count, *cell, dtype=torch.int64, device=state.device)
            q: Probs = torch.zeros(batch, count, *cell, self._vocab_size, device=state.device)
        else:
            width = self._tokens.shape[1]
            offset = self._accepted.plus(1)
            first = offset.on(state.device)
            there = None if on_cpu else (width - first).clamp(max=count)
            reused = Numbers(np.minimum(width - offset.host, count), there)
            slots = (first[:, None] + torch.arange(count, device=state.device)).clamp(max=width - 1)
            row = torch.arange(batch, device=state.device)[:, None]
            tokens, q = self._tokens[row, slots], self._q[row, slots]
        if self._refresh is not None:
            tokens, q, reused = self._refresh.refresh(state, tokens, q, reused, draws)
        draft = Draft(tokens, q)
        if reused.host.min() == count:
            return draft
        extended = self._continuation.extend(state, draft, reused, draws)
        check_draft(self._continuation, "extend", extended, state, count)
        return extended


def build(context: DraftingContext) -> Jacobi:
    """Builds the drafter of the recipes `sjd` and `scd`.

    Raises:
        ArgumentError: If the recipe would not be exact; see `mmspec.drafters.coupling.refuse_leaks`.
    """
    refuse_leaks(context)
    knobs, resources = context.recipe.knobs, context.resources
    coupling, start = COUPLINGS[str(knobs.get("coupling", "fresh"))], str(knobs["start"])
    if start == "model" or (start in context.networks and context.networks[start].continues):
        from mmspec.drafters.chain import ChainDrafter
        from mmspec.drafters.runners import build_runner

        chain = ChainDrafter(build_runner(context, start), context.target.device)
        return Jacobi(chain, coupling, context.target.vocab_size)
    if start == "auto":
        has_table = (resources.table or resources.continuation) is not None
        start = "table" if has_table else "up" if context.layout.width else "left"
    refresh = outer_layers = None
    if (name := str(knobs["refresh"])) in context.refreshes:
        outer_layers = built_choice(REFRESH, name, context.refreshes[name], context)
    elif name != "none":
        from mmspec.drafters.refresh import Refresh
        from mmspec.drafters.runners import build_runner

        weight = None if knobs["weight"] == "auto" else float(knobs["weight"])
        runner = build_runner(context, name)
        refresh = Refresh(runner, int(knobs["refreshed"]), weight, context.target.device)
    return Jacobi(_continuation(context, start), coupling, context.target.vocab_size, refresh, outer_layers)


def build_ngram(context: DraftingContext) -> Jacobi:
    """Builds the drafter of the recipe `table`."""
    return Jacobi(_continuation(context, "table"), None, context.target.vocab_size)


def _continuation(context: DraftingContext, name: str) -> ContinuationDrafter:
    """The continuation drafter without a model for a token initialization, by name."""
    if name == "table" and context.resources.continuation is not None:
        return context.resources.continuation()
    if name in context.starts:
        found: ContinuationDrafter = built_choice(START, name, context.starts[name], context)
        return found
    return InitDrafter(token_init(context, name), forcing_frames(context.target))


START, REFRESH = "start", "refresh"
_MUST = {
    START: ("a mmspec.decoding.drafter.ContinuationDrafter", has("calls", "extend", "observe")),
    REFRESH: ("a mmspec.drafters.jacobi.CouplesToLayers", has("calls", "couple", "couple_ahead", "reads_ahead")),
}


def built_choice(knob: str, name: str, choice: Choice, context: DraftingContext) -> Any:
    """What a value of a knob stands for, for this kind of token.

    Args:
        knob: `START` or `REFRESH`.
        name: The value.
        choice: What is known of it.
        context: The recipe and the model.

    Raises:
        ArgumentError: If it is for another kind of token.
        PluginError: If its builder returns something else.
    """
    kind, (must, fits) = context.layout.kind, _MUST[knob]
    if kind not in choice.builders:
        raise ArgumentError(f"{knob}={name} is for {' and '.join(choice.builders)}; this model generates {kind}")
    builder = resolve(choice.builders[kind])
    return checked_call(f"the builder of {knob}={name}", builder, context, must=must, fits=fits)
