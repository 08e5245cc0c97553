"""Every relaxed rule with settings under which it relaxes, and decoding a toy model under a rule."""

from __future__ import annotations

import torch
from batch_runs import run
from torch import Tensor

from mmspec.codebook import Codebook
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.drafters.ngram import NGramTable
from mmspec.recipes import parse
from mmspec.registry import RULES
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget, toy_heads

V = 12
CODEBOOK = Codebook(torch.randn(V, 3, generator=torch.Generator().manual_seed(0)))
RELAXED = [name for name, rule in RULES.items() if not rule.exact and not rule.continuous]
SETTINGS = {
    "lantern": "delta=0.2,k=2", "lantern++": "factor=2,k=2", "gsd": "group=2,probability=0.5", "pcg": "size=2,theta=0",
    "beta": "beta=0.1", "ensemble": "draft=0.2", "omega": "delta=1.5,decay=0.2", "typical": "epsilon=0.4",
    "top-m": "m=1", "fallback": "trust=0.5,rollback=0.05", "clusters": "size=2",
    "judge": "leniency=0.5",
}  # fmt: skip


def decode(recipe: str, sampling: SamplingParams) -> tuple[Tensor, float, float]:
    """Tokens [3, 4] of a toy target, tokens per call, and the bound on the total variation distance."""
    resources = DraftResources(
        NGramTable(torch.arange(V).expand(V + 1, V)), lambda: ToyTarget(3, V, 4, 6), [SamplingParams()] * 3,
        lambda: CODEBOOK, heads={"judge": toy_heads(V, 2, 6)["judge"]},
    )  # fmt: skip
    target = ToyTarget(3, V, 4, 5, guided=sampling.guidance_scale != 1)
    out = run(target, parse(recipe), Layout(length=4, width=2), [sampling] * 3, [5, 6, 7], resources)
    return out.tokens, out.stats.tokens_per_call, out.stats.tv_bound
