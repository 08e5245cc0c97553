"""Acceptance rules, and those of the core; the others are methods.

An acceptance function takes p, q float32 [B, m, V] and the draft tokens x int64 [B, m] (slot i of the window holds
draft i) and returns the probability float32 [B, m] with which each draft is accepted; values above 1 count as 1.
Whatever it returns, a rejected draft is resampled from the plain residual norm((p - q)+).

This module does not import torch, so that the command line can check a recipe before it loads a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mmspec.environment.importing import resolve
from mmspec.knobs import Knob, Value

if TYPE_CHECKING:
    from torch import Tensor

    from mmspec.codebook import Codebook
    from mmspec.heads.head import Head
    from mmspec.sampling.acceptance import Accept


@dataclass(frozen=True)
class Rule:
    """An acceptance rule that recipes can name.

    Attributes:
        summary: One line.
        make: The factory of the acceptance function, or `module:function`. It is called with the knobs by name and, if
            `takes_codebook`, with `codebook=`, which is None for a model without a codebook.
        exact: Whether the outcome follows the target distribution.
        knobs: The settings; the value 0 of the first one gives the exact rule.
        takes_codebook: Whether the rule depends on the similarity of tokens.
        takes_features: Whether the rule reads the target's features; its acceptance function then has a fourth
            argument, float [B, m, D], the target's feature at each draft (`mmspec.sampling.acceptance.FeatureAccept`).
        head: The kind of the trained network that the rule uses, one of the model's `DraftResources.heads`; the factory
            is then called with `head=`, which is None for a model without one. "" for none.
        continuous: Whether the rule is for continuous tokens; `make` then returns a
            `mmspec.continuous.sampler.LatentRule`.
    """

    summary: str
    make: str | Callable[..., Any]
    exact: bool = False
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    takes_codebook: bool = False
    takes_features: bool = False
    head: str = ""
    continuous: bool = False

    def arguments(
        self, knobs: Mapping[str, Value], codebook: Codebook | None, heads: Mapping[str, Head]
    ) -> dict[str, object]:
        """The arguments of `make`, by name."""
        own: dict[str, object] = {knob: knobs[knob] for knob in self.knobs}
        if self.takes_codebook:
            own["codebook"] = codebook
        if self.head:
            own["head"] = heads.get(self.head)
        return own

    def build(
        self, knobs: Mapping[str, Value], codebook: Codebook | None, heads: Mapping[str, Head] = MappingProxyType({})
    ) -> Accept:
        """The acceptance function for these knobs; knobs of other parts of the recipe are ignored."""
        make: Callable[..., Callable[..., Tensor]] = resolve(self.make)
        accept = make(**self.arguments(knobs, codebook, heads))
        if not self.takes_features:
            return accept
        from mmspec.sampling.acceptance import FeatureRule

        return FeatureRule(accept)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "exact": Rule(
            "min(1, p/q) and resampling from the residual; keeps the target distribution",
            "mmspec.sampling.rejection:exact",
            exact=True,
        ),
        "smoothed": Rule(
            "latents: noise of deviation sigma after the head's last step, and reflection coupling",
            "mmspec.continuous.smoothed:Smoothed",
            exact=True,
            knobs={"sigma": Knob(0.1, "standard deviation, in units of the latents", low=1e-6, high=1e6)},
            continuous=True,
        ),
        "tolerance": Rule(
            "latents: a draft near the target's own latent of the same noise is accepted",
            "mmspec.continuous.tolerance:Tolerance",
            knobs={"distance": Knob(0.1, "largest root mean square difference; 0: equal", low=0.0, high=1e6)},
            continuous=True,
        ),
    }
)
