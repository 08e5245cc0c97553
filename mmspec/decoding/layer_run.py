"""How a call runs the layers of a model: which run, which states are kept, and what takes the place of the others."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmspec.decoding.target import EarlyExit


class LayerRun:
    """The layers of one call of a target.

    Args:
        early_exit: The part that runs; None for all layers.
        collected: The states that a call of all layers keeps, see
            `mmspec.decoding.target.LayerFeatureTarget.collect_layers`.
        states: [R, W, layers * D], where they are put, or new memory if None; of an early exit with `reuse`, those of
            the last full call, which are read.

    Attributes:
        states: The same, after the call.
    """

    def __init__(
        self, early_exit: EarlyExit | None, collected: Sequence[int] = (), states: Tensor | None = None
    ) -> None:
        self.states = states
        self._early_exit = early_exit
        self._collected = tuple(collected) if early_exit is None else ()

    def runs(self, layer: int) -> bool:
        """Whether a layer runs, by its index."""
        return self._early_exit is None or self._early_exit.runs(layer)

    def skip(self, layer: int, h: Tensor) -> Tensor:
        """The states [R, W, D] after a layer that does not run, of those before it."""
        if self._early_exit is None or not self._early_exit.reuse or layer != self._early_exit.skip[0]:
            return h
        assert self.states is not None, "a full call comes first"
        before, after = self.states.chunk(2, dim=-1)
        return self._early_exit.after_gap(h, before.to(h), after.to(h))

    def keep(self, count: int, h: Tensor) -> None:
        """Copies the states after the first `count` layers, [R, W, D], if they are collected."""
        for place, wanted in enumerate(self._collected):
            if wanted == count:
                if self.states is None:
                    self.states = h.new_empty(*h.shape[:-1], len(self._collected) * h.shape[-1])
                self.states.unflatten(-1, (len(self._collected), -1))[..., place, :].copy_(h)
