"""The acceptance rules by name. A rule lives in one file beside this one, under the name of the paper's idea.

An acceptance function takes p, q float32 [B, m, V] and the drafts x int64 [B, m] (slot i of the window holds draft i)
and returns the probability float32 [B, m] with which each draft is kept; values above 1 count as 1. Whatever it is, a
draft that is not kept is drawn again from the plain residual norm((p - q)+).

This module imports nothing heavy, so that a command line can check a recipe before it loads a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmspec.knobs import Knob, Value

if TYPE_CHECKING:
    from torch import Tensor

    from mmspec.codebook import Codebook
    from mmspec.sampling.acceptance import Accept


@dataclass(frozen=True)
class Rule:
    """An acceptance rule that recipes can name.

    Attributes:
        summary: One line.
        make: Where the function stands that makes it, `module:function`. It is called with the knobs by name and, when
            `takes_codebook`, with `codebook=`, None where the model has none; it returns an acceptance function.
        exact: Whether the outcome follows the target distribution.
        knobs: Its settings; the value 0 of the first one gives the exact rule.
        takes_codebook: Whether it asks which tokens are alike.
        takes_features: Whether it looks at the target's features; its acceptance function then has a fourth argument,
            float [B, m, D], what the target has where it has read each draft (`mmspec.rules.feature_rules`).
        continuous: Whether it is for tokens that are vectors; what `make` names then makes a
            `mmspec.continuous.sampler.LatentRule`.
    """

    summary: str
    make: str
    exact: bool = False
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    takes_codebook: bool = False
    takes_features: bool = False
    continuous: bool = False

    def build(self, knobs: Mapping[str, Value], codebook: Codebook | None) -> Accept:
        """The acceptance function for these knobs (others than its own are left alone)."""
        module, _, name = self.make.partition(":")
        make: Callable[..., Callable[..., Tensor]] = getattr(import_module(module), name)
        own = {knob: knobs[knob] for knob in self.knobs}
        accept = make(codebook=codebook, **own) if self.takes_codebook else make(**own)
        if not self.takes_features:
            return accept
        from mmspec.sampling.acceptance import FeatureRule

        return FeatureRule(accept)


def _nearest(default: int) -> Knob:
    return Knob(default, "how many nearest tokens count as neighbours", low=1, high=1_000_000)


_FACTORS = ("paper", "code", "none")
_SCHEDULES = ("published", "corrected")

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "exact": Rule(
            "min(1, p/q) with the residual resample; keeps the target distribution",
            "mmspec.sampling.rejection:exact",
            exact=True,
        ),
        "lantern": Rule(
            "the draft's nearest tokens lend it their probability, up to delta in all",
            "mmspec.rules.lantern:additive",
            knobs={
                "delta": Knob(0.1, "most probability that neighbours lend", low=0.0, high=1.0),
                "k": _nearest(1000),
            },
            takes_codebook=True,
        ),
        "lantern++": Rule(
            "the draft's nearest tokens lend it their probability, up to lambda times its own in all",
            "mmspec.rules.lantern:multiplicative",
            knobs={
                "factor": Knob(3.0, "lambda: p(x) counts as this many times itself at most", low=0.0, high=1e6),
                "k": _nearest(10),
            },
            takes_codebook=True,
        ),
        "gsd": Rule(
            "the draft and the tokens next to it in rank are accepted as a group",
            "mmspec.rules.gsd:grouped",
            knobs={
                "group": Knob(14, "tokens of next rank in the group, half above and half below", low=0, high=100_000),
                "probability": Knob(0.15, "members differ by less than this in probability", low=0.0, high=1.0),
                "distance": Knob(0.0, "members lie nearer than this, squared, in the codebook; 0 is off", 0.0, 1e9),
            },
            takes_codebook=True,
        ),
        "pcg": Rule(
            "overlapping groups of similar tokens are accepted as groups",
            "mmspec.rules.pcg:overlapping",
            knobs={
                "size": Knob(16, "most tokens in a group", low=0, high=1024),
                "theta": Knob(0.45, "cosine above which tokens are similar", low=-1.0, high=1.0),
            },
            takes_codebook=True,
        ),
        "beta": Rule(
            "the acceptance probability is raised by beta",
            "mmspec.rules.beta:Beta",
            knobs={"beta": Knob(0.2, "added to p/q", low=0.0, high=1.0)},
        ),
        "ensemble": Rule(
            "the draft is tested against a mixture of the target's and its own distribution",
            "mmspec.rules.ensemble:Ensemble",
            knobs={"draft": Knob(0.2, "share of the draft's distribution, 1 - w", low=0.0, high=1.0)},
        ),
        "omega": Rule(
            "p/q is multiplied by a factor that decays along the window",
            "mmspec.rules.omega:Omega",
            knobs={
                "delta": Knob(2.0, "the factor of the first draft; below 1 it is none", low=0.0, high=1e6),
                "decay": Knob(0.7, "by which its logarithm falls per slot", low=0.0, high=100.0),
            },
        ),
        "typical": Rule(
            "what the target finds typical is accepted",
            "mmspec.rules.typical:typical",
            knobs={
                "epsilon": Knob(0.09, "highest threshold on p(x), stricter when larger; 0 is off", low=0.0, high=1.0),
                "alpha": Knob(0.3, "threshold on p(x) over exp(-entropy)", low=0.0, high=1.0),
            },
        ),
        "top-m": Rule(
            "the target's m likeliest tokens are accepted",
            "mmspec.rules.top_m:top_m",
            knobs={"m": Knob(3, "how many", low=0, high=1_000_000)},
        ),
        "smoothed": Rule(
            "vectors: noise of deviation sigma after the head's last step, and reflection coupling under it",
            "mmspec.continuous.smoothed:Smoothed",
            exact=True,
            knobs={"sigma": Knob(0.1, "the deviation, in units of the latents", low=1e-6, high=1e6)},
            continuous=True,
        ),
        "tolerance": Rule(
            "vectors: a draft near the target's own latent of the same noise is accepted",
            "mmspec.continuous.tolerance:Tolerance",
            knobs={
                "distance": Knob(0.1, "how near, root mean square over the coordinates; 0: equal", low=0.0, high=1e6)
            },
            continuous=True,
        ),
        "cspd": Rule(
            "vectors: the published rule of Continuous Speculative Decoding, which is biased",
            "mmspec.continuous.cspd:CSpD",
            knobs={
                "flatten": Knob(42.0, "by which deviations are multiplied in the test; 1 in the paper", 1.0, 1e6),
                "factor": Knob("paper", "the variances' ratio: the paper's, the code's, none", choices=_FACTORS),
                "schedule": Knob("published", "published keeps drafts after a rejected one", choices=_SCHEDULES),
                "sigma": Knob(0.0064, "deviation of the last step where the head has none", low=1e-6, high=1e6),
                "prefill": Knob(0.05, "share of the tokens that the target draws alone at first", low=0.0, high=1.0),
            },
            continuous=True,
        ),
    }
)
