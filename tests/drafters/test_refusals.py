"""Recipes whose drafter is missing or is of another model are refused in a line that says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
from batch_runs import run

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.errors import ArgumentError, MMSpecError, ModelError
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.heads.head import Head
from mmspec.methods.kangaroo.head import ExitAdapter
from mmspec.methods.medusa.head import MedusaHeads
from mmspec.methods.one_step.head import OneStepHead
from mmspec.methods.prompt.head import PromptTokens
from mmspec.methods.retrieval.head import Datastore
from mmspec.methods.swift.head import SkippedLayers
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import FEATURES, ToyTarget

Heads = Callable[[], Mapping[str, Head]]
OTHER_VOCABULARY = "a vocabulary of 4 tokens, the model 3"
# A recipe, the heads of the model, what its target cannot, and the error. The target has 4 layers and 3 tokens.
REFUSALS: list[tuple[str, Heads, str, type[MMSpecError], str]] = [
    *((name, dict, "", ArgumentError, f"train one with `mmspec train-drafter --kind {kind}`") for name, kind in (
        ("kangaroo", "kangaroo"), ("one-step", "one-step"), ("eagle", "eagle"), ("tree-medusa", "medusa"))),
    ("prompt", dict, "", ArgumentError, "train some with `mmspec train-drafter --kind prompt`"),
    ("swift", dict, "", ArgumentError, "'swift' needs a choice of layers, and this model has none"),
    ("retrieval:store=datastore", dict, "", ArgumentError, "needs a datastore, and this model has none; make one with"),
    *((recipe, dict, "", ArgumentError, f"layers={layers} is not allowed; this model has 4, so take fewer")
      for recipe, layers in (("cascade:layers=5", 5), ("layer-skip:layers=4", 4))),
    ("kangaroo", lambda: {"kangaroo": ExitAdapter(3, FEATURES, 24, 2, 4)}, "", ArgumentError,
     "layers=4 is not allowed; this model has 4, so take fewer"),
    *((f"scd:refresh=outer,layers={n}", dict, "", ArgumentError,
       f"layers={n} is not allowed with refresh=outer; it must be 2") for n in (1, 4, 9)),
    ("scd:refresh=outer", dict, "can_reuse_updates", ArgumentError,
     "refresh=outer is not possible here: ToyTarget cannot reuse what its layers have added"),
    ("cascade:recent=0", dict, "", ArgumentError, "drafts with the whole model; set recent or layers"),
    ("short-cache", dict, "short_cache", ArgumentError,
     "a short cache cannot draft here: ToyTarget reads its whole KV cache"),
    ("swift", lambda: {"swift": SkippedLayers(3, 8, 4)}, "can_skip_layers", ArgumentError,
     "layers cannot be skipped here: ToyTarget runs the first ones only"),
    ("swift", lambda: {"swift": SkippedLayers(3, 8, 9)}, "", ModelError,
     "drafter is for a model of 9 layers and 3 tokens, and this one has 4 and 3"),
    ("prompt", lambda: {"prompt": PromptTokens(3, FEATURES, 2)}, "", ArgumentError,
     "drafts 3 tokens ahead, but the drafter has 2 prompt tokens"),
    ("medusa", lambda: {"medusa": MedusaHeads(3, FEATURES, 2)}, "", ArgumentError,
     "'medusa' drafts 4 tokens ahead, but the drafter has 2 Medusa heads; take window=3"),
    ("tree-medusa:branch=2/1/1", lambda: {"medusa": MedusaHeads(3, FEATURES, 2)}, "", ArgumentError,
     "3 tokens ahead, but the drafter has 2 Medusa heads; take a branch of depth 2"),
    ("prompt:branch=1", lambda: {"prompt": PromptTokens(4, FEATURES, 2)}, "", ModelError, OTHER_VOCABULARY),
    ("one-step", lambda: {"one-step": OneStepHead(4, FEATURES, 16, 2)}, "", ModelError, OTHER_VOCABULARY),
    ("medusa:window=3", lambda: {"medusa": MedusaHeads(4, FEATURES, 2)}, "", ModelError, OTHER_VOCABULARY),
    ("retrieval", lambda: {"retrieval": Datastore(4, 16, 1, 2)}, "", ModelError, OTHER_VOCABULARY),
    ("eagle", lambda: {"eagle": Eagle3Head(3, 16, 24, 2, layer_ids=(1, 2, 9))}, "", ModelError,
     "reads layers [1, 2, 9], and the model has 4"),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "heads", "cannot", "error", "message"), REFUSALS)
def test_a_drafter_that_does_not_fit(
    recipe: str, heads: Heads, cannot: str, error: type[MMSpecError], message: str
) -> None:
    target = ToyTarget(1, 3, 4, 0)
    if cannot:
        setattr(target, cannot, False)
    with pytest.raises(error, match=re.escape(message)) as found:
        run(target, parse(recipe), Layout(4), [SamplingParams()], [0], DraftResources(heads=heads()))
    assert "\n" not in str(found.value)
