"""The kinds of drafters that can be trained, by name, and what is done with each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

import torch
from torch import nn

from mmspec.decoding.layout import Layout
from mmspec.decoding.target import FeatureTarget, LayerFeatureTarget
from mmspec.environment.importing import resolve
from mmspec.errors import ArgumentError
from mmspec.heads.eagle import EagleHead
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.methods.trained import TRAINED
from mmspec.recipes import parse
from mmspec.training.acceptance_probe import DrafterAcceptance, measure_acceptance
from mmspec.training.drafter_kind import DrafterKind, HeadSizes, head_sizes
from mmspec.training.objectives import LK, LOSSES, draft_model_loss, eagle3_loss, eagle_loss, feature_target
from mmspec.training.prepared import PreparedPrompts, TrainablePipeline
from mmspec.training.settings import TrainingSettings


def _new_eagle(sizes: HeadSizes, settings: TrainingSettings) -> EagleHead:
    return EagleHead(
        sizes.target.vocab_size,
        sizes.dim,
        sizes.intermediate_size,
        sizes.heads,
        rope_theta=sizes.rope_theta,
        grid_size=sizes.grid_size,
        max_position_embeddings=sizes.layout.length,
    )


def _new_eagle3(sizes: HeadSizes, settings: TrainingSettings) -> Eagle3Head:
    if not isinstance(sizes.target, LayerFeatureTarget) or not sizes.target.fused_layers:
        raise ArgumentError("no drafter of kind 'eagle3' can be trained for this model: it exposes no layers")
    return Eagle3Head(
        sizes.target.vocab_size,
        sizes.dim,
        sizes.intermediate_size,
        sizes.heads,
        layer_ids=sizes.target.fused_layers,
        rope_theta=sizes.rope_theta,
        grid_size=sizes.grid_size,
        max_position_embeddings=sizes.layout.length,
    )


_CORE = {
    "eagle": DrafterKind(
        "eagle", lambda head, b: eagle_loss(head, b.teacher, b.settings.loss, b.settings.depth), _new_eagle
    ),
    "eagle3": DrafterKind(
        "eagle", lambda head, b: eagle3_loss(head, b.teacher, b.settings.loss, b.settings.depth), _new_eagle3
    ),
    "small": DrafterKind(
        "draft",
        lambda model, b: draft_model_loss(
            model, b.prepared, b.teacher, LOSSES[b.settings.loss], b.reference, b.settings.select or 1.0
        ),
        head=False,
    ),
}


class _Kinds(Mapping[str, DrafterKind]):
    """The kinds of the core and of the methods, which are imported when they are looked up."""

    def __getitem__(self, name: str) -> DrafterKind:
        found: DrafterKind = _CORE[name] if name in _CORE else resolve(TRAINED[name].where)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter((*_CORE, *(name for name, row in TRAINED.items() if not row.write)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


KINDS: Mapping[str, DrafterKind] = _Kinds()


# Drafters of the core whose features cannot be compared.
_NOUNS = {"small": "small model", "eagle3": "head of EAGLE-3"}


def check_loss(settings: TrainingSettings) -> None:
    """Checks that a kind of drafter can be trained with a loss.

    Raises:
        ArgumentError: If not.
    """
    row = TRAINED.get(settings.kind)
    if settings.loss == "smooth-l1+ce" and (drafter := row.noun if row else _NOUNS.get(settings.kind)):
        raise ArgumentError(f"--loss: 'smooth-l1+ce' compares features, which differ in a {drafter}; use kl or tvd")
    if settings.loss == LK and row is not None and not row.chain:
        raise ArgumentError(f"--loss: 'lk' is for heads that draft a chain, which a {row.noun} does not; use kl or tvd")
    if settings.loss == LK and settings.kind == "small":
        raise ArgumentError("--loss: 'lk' is for heads, which draft a chain in training; use kl or tvd")


def new_drafter(pipe: TrainablePipeline, settings: TrainingSettings) -> Any:
    """Builds an untrained drafter.

    Raises:
        ArgumentError: If the target cannot have a drafter of that kind.
    """
    kind = KINDS[settings.kind]
    if not kind.head:
        return pipe.new_small()
    prepared = settings.prepare(pipe, settings.held_out[:1], 1)
    if kind.build is not None:
        return kind.build(prepared, settings)
    target, new = feature_target(prepared), kind.new
    assert new is not None
    if settings.mask_token is not None and not (kind.mask_token and settings.mask_token < target.vocab_size):
        raise ArgumentError(
            f"--mask-token: {settings.mask_token} must be one of the model's {target.vocab_size} tokens, and requires "
            "--kind block"
        )
    with torch.no_grad():
        target.prefill()
        sizes = _sizes(target, target.features().shape[-1], prepared.layout, settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed % 2**63)
        head: Any = new(sizes, settings)
        kind.initialize(head, prepared)
        if settings.mask_token is not None:
            head.embed_tokens.requires_grad_(False)
    return head.to(target.device)


def _sizes(target: FeatureTarget, dim: int, layout: Layout, settings: TrainingSettings) -> HeadSizes:
    heads, hidden = head_sizes(dim)
    grid = isqrt(layout.length)
    square = settings.rotary == "auto" and layout.width == grid and grid * grid == layout.length
    theta, side = (100.0, grid) if square else (10000.0, None)
    return HeadSizes(target, layout, dim, settings.hidden or hidden, heads, theta, side)


def layer_ids(model: Any) -> tuple[int, ...]:
    """The target's layers that a drafter reads."""
    return getattr(model, "layer_ids", None) or ()


def evaluate_drafter(pipe: TrainablePipeline, model: nn.Module, settings: TrainingSettings) -> DrafterAcceptance:
    """Measures the acceptance of a drafter on the held-out prompts."""
    size = getattr(model, "codebooks", 1)  # the depth of a frame head counts frames
    recipe = parse(KINDS[settings.kind].recipe)
    if recipe.info.tree:
        recipe = recipe.with_knobs(branch="/".join(["1"] * settings.depth))
    else:
        recipe = recipe.with_knobs(window=settings.depth * size + 1)
    prepared = with_drafter(settings.prepare(pipe, settings.held_out, recipe.window), model, settings.kind)
    return measure_acceptance(prepared, recipe, [settings.seed - 1 - i for i in range(len(settings.held_out))])


def with_drafter(prepared: PreparedPrompts, model: Any, kind: str) -> PreparedPrompts:
    """The same prompts with this drafter in place of the pipeline's own."""
    if KINDS[kind].head:
        return replace(prepared, resources=replace(prepared.resources, heads={model.kind: model}))
    assert prepared.small_target is not None
    make = prepared.small_target
    return replace(prepared, resources=replace(prepared.resources, draft_model=lambda: make(model)))
