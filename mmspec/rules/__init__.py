"""The table of acceptance rules. Each rule is one file of this folder, named after the idea of its paper.

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

from mmspec.importing import resolve
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

    def build(
        self, knobs: Mapping[str, Value], codebook: Codebook | None, heads: Mapping[str, Head] = MappingProxyType({})
    ) -> Accept:
        """The acceptance function for these knobs; knobs of other parts of the recipe are ignored."""
        make: Callable[..., Callable[..., Tensor]] = resolve(self.make)
        own: dict[str, object] = {knob: knobs[knob] for knob in self.knobs}
        if self.takes_codebook:
            own["codebook"] = codebook
        if self.head:
            own["head"] = heads.get(self.head)
        accept = make(**own)
        if not self.takes_features:
            return accept
        from mmspec.sampling.acceptance import FeatureRule

        return FeatureRule(accept)


def _nearest(default: int) -> Knob:
    return Knob(default, "number of nearest tokens that count as neighbors", low=1, high=1_000_000)


_FACTORS = ("paper", "code", "none")
_SCHEDULES = ("published", "corrected")

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "exact": Rule(
            "min(1, p/q) and resampling from the residual; keeps the target distribution",
            "mmspec.sampling.rejection:exact",
            exact=True,
        ),
        "lantern": Rule(
            "the draft's nearest tokens lend it their probability, up to delta in all",
            "mmspec.methods.lantern:additive",
            knobs={
                "delta": Knob(0.1, "largest probability that neighbors lend", low=0.0, high=1.0),
                "k": _nearest(1000),
            },
            takes_codebook=True,
        ),
        "lantern++": Rule(
            "the draft's nearest tokens lend it their probability, up to lambda times its own in all",
            "mmspec.methods.lantern:multiplicative",
            knobs={
                "factor": Knob(3.0, "lambda: p(x) counts at most this many times", low=0.0, high=1e6),
                "k": _nearest(10),
            },
            takes_codebook=True,
        ),
        "gsd": Rule(
            "the draft and the tokens next to it in rank are accepted as a group",
            "mmspec.methods.gsd:grouped",
            knobs={
                "group": Knob(14, "tokens next in rank in the group, half above and half below", low=0, high=100_000),
                "probability": Knob(0.15, "members differ by less than this in probability", low=0.0, high=1.0),
                "distance": Knob(0.0, "members' squared distance in the codebook is below this; 0 is off", 0.0, 1e9),
            },
            takes_codebook=True,
        ),
        "pcg": Rule(
            "overlapping groups of similar tokens are accepted as groups",
            "mmspec.methods.pcg:overlapping",
            knobs={
                "size": Knob(16, "largest number of tokens in a group", low=0, high=1024),
                "theta": Knob(0.45, "cosine above which tokens are similar", low=-1.0, high=1.0),
            },
            takes_codebook=True,
        ),
        "beta": Rule(
            "the acceptance probability is raised by beta",
            "mmspec.methods.beta:Beta",
            knobs={"beta": Knob(0.2, "added to p/q", low=0.0, high=1.0)},
        ),
        "ensemble": Rule(
            "the draft is tested against a mixture of target and draft distribution",
            "mmspec.methods.ensemble:Ensemble",
            knobs={"draft": Knob(0.2, "share of the draft distribution, 1 - w", low=0.0, high=1.0)},
        ),
        "omega": Rule(
            "p/q is multiplied by a factor that decays along the window",
            "mmspec.methods.omega:Omega",
            knobs={
                "delta": Knob(2.0, "factor of the first draft; 1 and below is exact", low=0.0, high=1e6),
                "decay": Knob(0.7, "decrease of its logarithm per slot", low=0.0, high=100.0),
            },
        ),
        "typical": Rule(
            "drafts that are typical under the target are accepted",
            "mmspec.methods.typical:Typical",
            knobs={
                "epsilon": Knob(0.09, "largest threshold on p(x), stricter if larger; 0 is off", low=0.0, high=1.0),
                "alpha": Knob(0.3, "threshold on p(x) over exp(-entropy)", low=0.0, high=1.0),
            },
        ),
        "top-m": Rule(
            "the target's m most likely tokens are accepted",
            "mmspec.methods.top_m:TopM",
            knobs={"m": Knob(3, "number of tokens", low=0, high=1_000_000)},
        ),
        "fallback": Rule(
            "drafts that the draft model is sure of are accepted",
            "mmspec.methods.fallback:Fallback",
            knobs={
                "trust": Knob(0.2, "a draft model whose largest q is above 1 - trust is sure; 0 is exact", 0.0, 1.0),
                "rollback": Knob(0.01, "drafts with p(x) below this are tested all the same", low=0.0, high=1.0),
            },
        ),
        "clusters": Rule(
            "the draft is accepted with its k-means cluster of the codebook",
            "mmspec.methods.clusters:clusters",
            knobs={"size": Knob(4, "mean number of tokens in a cluster; 1 and below is exact", low=0, high=100_000)},
            takes_codebook=True,
        ),
        "judge": Rule(
            "drafts that a trained classifier of the target's features calls good are accepted",
            "mmspec.methods.judge.rule:judged",
            knobs={"leniency": Knob(0.2, "drafts with a score above 1 - leniency are good; 0 is exact", 0.0, 1.0)},
            takes_features=True,
            head="judge",
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
            "mmspec.methods.tolerance:Tolerance",
            knobs={"distance": Knob(0.1, "largest root mean square difference; 0: equal", low=0.0, high=1e6)},
            continuous=True,
        ),
        "cspd": Rule(
            "latents: the published rule of Continuous Speculative Decoding, which is biased",
            "mmspec.methods.cspd:CSpD",
            knobs={
                "flatten": Knob(42.0, "factor of the deviations in the test; 1 in the paper", 1.0, 1e6),
                "factor": Knob("paper", "the variances' ratio: the paper's, the code's, none", choices=_FACTORS),
                "schedule": Knob("published", "published keeps drafts after a rejected one", choices=_SCHEDULES),
                "sigma": Knob(0.0064, "deviation of the last step if the head has none", low=1e-6, high=1e6),
                "prefill": Knob(0.05, "share of the tokens that the target first generates alone", low=0.0, high=1.0),
            },
            continuous=True,
        ),
    }
)
