"""Every recipe of the registry on the toys, with knobs for short windows, and every kind of sampling parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from batch_runs import run

from mmspec.decoding.layout import Layout, TokenKind
from mmspec.decoding.processed_target import ProcessedTarget
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import Target
from mmspec.decoding.to_end import Decoded
from mmspec.drafters.columns.jacobi import COLUMN_COUPLINGS, STARTS
from mmspec.methods.masked import MaskedToy
from mmspec.recipes import parse
from mmspec.registry import RULES
from mmspec.sampling.constraints import Constraint, ForcedCells
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ColumnToy, ToyTarget, toy_codebooks, toy_resources
from mmspec.ways_to_draft import RECIPES

V, LENGTH, CELLS = 5, 4, 2
SHORT = {"window": 3, "branch": "2/1", "drafts": 2, "length": 2, "depth": 2, "top": 2, "inner": 2}
# Relaxed rules with settings under which they relax.
RULE_KNOBS = {
    "lantern": "delta=0.2,k=2", "lantern++": "factor=2,k=2", "gsd": "group=2,probability=0.5", "pcg": "size=2,theta=0",
    "beta": "beta=0.1", "ensemble": "draft=0.2", "omega": "delta=1.5,decay=0.2", "typical": "epsilon=0.4",
    "top-m": "m=1", "fallback": "trust=0.5,rollback=0.05", "clusters": "size=2", "judge": "leniency=0.5",
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What the tokens of two rows are sampled with.

    Attributes:
        rows: The sampling parameters of each.
        penalized: Whether a logits processor changes the target's logits.
        constrained: Whether tokens are forbidden, or cells of columns forced.
    """

    rows: tuple[SamplingParams, SamplingParams]
    penalized: bool = False
    constrained: bool = False

    @property
    def reads_logits(self) -> bool:
        """Whether kernels read the target's logits."""
        return not any(row.min_p > 0 or row.typical_p < 1 for row in self.rows)


HOT, WARM, COOL = SamplingParams(1.2), SamplingParams(), SamplingParams(0.7)
SETTINGS = {
    "none": Setting((WARM, COOL)),
    "cuts": Setting((SamplingParams(0.8, top_k=3), SamplingParams(1.2, top_p=0.7))),
    "truncated": Setting((SamplingParams(0.9, min_p=0.15), SamplingParams(1.2, typical_p=0.6))),
    "guided": Setting((SamplingParams(0.9, guidance_scale=2.0), SamplingParams(0.0))),
    "processors": Setting((HOT, SamplingParams(top_p=0.9)), penalized=True),
    "constraint": Setting((HOT, COOL), constrained=True),
}


def short(name: str) -> str:
    """The text of a recipe with short windows."""
    given = [f"{knob}={value}" for knob, value in SHORT.items() if knob in RECIPES[name].knobs]
    return f"{name}:{','.join(given)}" if given else name


def recipes(kind: TokenKind) -> list[str]:
    """Every recipe for a kind of token."""
    return [short(name) for name, info in RECIPES.items() if info.supports(kind)]


def variants(kind: TokenKind) -> Iterator[str]:
    """A recipe with each word of each knob, for a kind of token."""
    words = dict[tuple[str, str], str]()  # the last recipe that has it
    for name, info in RECIPES.items():
        if info.supports(kind):
            for knob, its in info.knobs.items():
                words |= {(knob, word): name for word in its.choices if word not in ("auto", "none", its.default)}
    for (knob, word), name in words.items():
        if kind == "tokens" or word in (*STARTS, "recycle", *COLUMN_COUPLINGS):
            yield f"{short(name)},{knob}={word}{',start=left' if knob == 'refresh' else ''}"


def relaxed(drafting: str) -> Iterator[str]:
    """A way of drafting with every relaxed rule."""
    for name, rule in RULES.items():
        if not (rule.exact or rule.continuous):
            first, _, knobs = short(drafting).partition(":")
            yield f"{first}+{name}:{knobs},{RULE_KNOBS[name]}"


def decode_tokens(recipe: str, setting: Setting) -> Decoded:
    """Two rows of a toy, with draft models and heads of all kinds."""
    constraint = None
    if setting.constrained:
        allowed = torch.ones(2, V, dtype=torch.bool)
        allowed[1, ::2] = False
        constraint = Constraint(torch.arange(LENGTH) % 3 // 2, allowed)
    layout = Layout(LENGTH, 2, constraint)
    resources = toy_resources(2, V, layout, 5, [SamplingParams(0.9), SamplingParams(1.1)])
    target: Target = ToyTarget(2, V, LENGTH, 5, any(row.guidance_scale != 1 for row in setting.rows))
    if setting.penalized:
        prompt = torch.zeros(2, 0, dtype=torch.int64)
        target = ProcessedTarget(target, [RepetitionPenalty(2.0)], prompt, LENGTH + parse(recipe).window)
    return run(target, parse(recipe), layout, setting.rows, [5, 6], resources)


def decode_columns(recipe: str, setting: Setting) -> Decoded:
    """As `decode_tokens`; two cells are forced, one of them to an id outside the vocabulary."""
    forced = np.full((LENGTH, CELLS), -1)
    forced[1, 1], forced[2, 0] = V + 3, 2
    layout = Layout(LENGTH, cell=(CELLS,), forced=ForcedCells(forced) if setting.constrained else None)

    def toy(seed: int, guided: bool = False) -> ColumnToy:
        return ColumnToy(2, V, CELLS, LENGTH, seed, guided)

    resources = DraftResources(
        draft_model=lambda: toy(7),
        draft_sampling=[SamplingParams(0.9), SamplingParams(1.1)],
        codebooks=lambda: toy_codebooks(V, CELLS, 3),
        models={"masked": lambda: MaskedToy(V, layout, 9)},
    )
    guided = any(row.guidance_scale != 1 for row in setting.rows)
    return run(toy(5, guided), parse(recipe), layout, setting.rows, [5, 6], resources)
