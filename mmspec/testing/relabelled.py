"""Recipes whose rule sees the few tokens of a toy as tokens of a large vocabulary.

The joint distribution of a large vocabulary cannot be enumerated; that of a few of its tokens can. A rule that treats
high ids, or large vocabularies, in another way is found so with the power of the test on the small toy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

import torch
from torch import Tensor

from mmspec.codebook import Codebook
from mmspec.heads.head import Head
from mmspec.knobs import Value
from mmspec.recipes import Recipe
from mmspec.rules import Rule
from mmspec.sampling.acceptance import Accept, FeatureRule
from mmspec.testing.exactness import ExactnessResult, check

VOCAB_SIZE = 512
IDS = (5, 131, 509)  # of the tokens of the toy
_BATCH = 4_000  # rows; the distributions of a window are large


@dataclass(frozen=True)
class RelabelledRule(Rule):
    """A rule that is called with distributions over `VOCAB_SIZE` tokens, and with drafts among `IDS`."""

    def build(
        self, knobs: Mapping[str, Value], codebook: Codebook | None, heads: Mapping[str, Head] = MappingProxyType({})
    ) -> Accept:
        if codebook is not None:
            codebook = Codebook(codebook.vectors, torch.tensor(IDS), VOCAB_SIZE)
        accept = super().build(knobs, codebook, heads)
        if isinstance(accept, FeatureRule):
            with_features = accept.accept
            return FeatureRule(lambda p, q, x, h: with_features(_wide(p), _wide(q), _ids(x), h))
        return lambda p, q, x: accept(_wide(p), _wide(q), _ids(x))


class RelabelledRecipe(Recipe):
    """A recipe with a `RelabelledRule`."""

    @property
    def rule(self) -> Rule:
        rule = super().rule
        return RelabelledRule(**{field.name: getattr(rule, field.name) for field in fields(Rule)})


def check_relabelled(recipe: Recipe, samples: int = 60_000, seed: int = 0) -> ExactnessResult:
    """`mmspec.testing.exactness.check` with the tokens of the toy at the ids `IDS` of a vocabulary of `VOCAB_SIZE`.

    Args:
        recipe: With a rule for tokens.
        samples: Number of rows.
        seed: Seed of the toy and of the rows.
    """
    wide = RelabelledRecipe(recipe.name, recipe.knobs)
    return check(wide, samples=samples, seed=seed, vocab_size=len(IDS), batch=_BATCH)


def _ids(tokens: Tensor) -> Tensor:
    return torch.tensor(IDS, device=tokens.device)[tokens]


def _wide(probs: Tensor) -> Tensor:
    found = probs.new_zeros(*probs.shape[:-1], VOCAB_SIZE)
    found[..., list(IDS)] = probs
    return found
