"""The kinds of drafters that can be trained: how each is built, which loss it has, which recipe measures it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmspec.decoding.layout import Layout
from mmspec.decoding.target import (
    EarlyExit,
    ExitFeatureTarget,
    FeatureTarget,
    LayerFeatureTarget,
    PromptTarget,
    RereadsWindows,
    reuses_updates,
)
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.errors import ArgumentError
from mmspec.heads.eagle import EagleHead
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.methods.block.head import BlockHead
from mmspec.methods.block.training import block_loss
from mmspec.methods.frame.head import FrameHead
from mmspec.methods.frame.training import FrameTeacherOutput, frame_loss, frame_teacher, run_frame_teacher
from mmspec.methods.grid.head import GridHead
from mmspec.methods.grid.training import grid_loss
from mmspec.methods.hydra.head import HydraHeads
from mmspec.methods.kangaroo.head import ExitAdapter
from mmspec.methods.medusa.head import MedusaHeads
from mmspec.methods.one_step.head import OneStepHead
from mmspec.methods.one_step.training import one_step_loss
from mmspec.methods.outer.head import OuterHead
from mmspec.methods.outer.training import outer_losses
from mmspec.methods.prompt.head import PromptTokens
from mmspec.methods.prompt.training import PLACES, prompt_loss
from mmspec.recipes import parse
from mmspec.training.acceptance_probe import DrafterAcceptance, measure_acceptance
from mmspec.training.objectives import (
    LOSSES,
    TeacherOutput,
    draft_model_loss,
    eagle3_loss,
    eagle_loss,
    feature_target,
    hydra_loss,
    kangaroo_loss,
    medusa_loss,
    run_teacher,
)
from mmspec.training.prepared import PreparedPrompts, TrainablePipeline
from mmspec.training.settings import TrainingSettings

FRAME_WIDTH = 512  # of a frame head, at most: its tables have 2 * K * V vectors of this width


@dataclass(frozen=True)
class Batch:
    """What a loss is computed from.

    Attributes:
        prepared: The prompts.
        teacher: The tokens, and what the target says about them: a `TeacherOutput`, or what the kind's `teach` returns.
        settings: The settings of the training.
        generator: Chooses the parts of the sequences that a block head, a grid head or prompt tokens are trained on.
        reference: The reference of a small model; see `mmspec.training.objectives.improvable`.
    """

    prepared: PreparedPrompts
    teacher: Any
    settings: TrainingSettings
    generator: torch.Generator
    reference: nn.Module | None = None


@dataclass(frozen=True)
class HeadSizes:
    """The sizes of a new head.

    Attributes:
        target: The target.
        layout: Layout of its sequences.
        dim: Width of its features.
        intermediate_size: Width of the head's MLP.
        heads: Number of attention heads.
        rope_theta: Base of the rotary embedding.
        grid_size: Tokens per image side, for a 2-D rotary embedding; None for a 1-D one.
    """

    target: FeatureTarget
    layout: Layout
    dim: int
    intermediate_size: int
    heads: int
    rope_theta: float
    grid_size: int | None


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


def _new_medusa(sizes: HeadSizes, settings: TrainingSettings) -> MedusaHeads:
    return MedusaHeads(sizes.target.vocab_size, sizes.dim, settings.depth)


def _new_hydra(sizes: HeadSizes, settings: TrainingSettings) -> HydraHeads:
    return HydraHeads(sizes.target.vocab_size, sizes.dim, sizes.intermediate_size, settings.depth)


def _new_prompts(sizes: HeadSizes, settings: TrainingSettings) -> PromptTokens:
    if not isinstance(sizes.target, PromptTarget):
        name = type(sizes.target).__name__
        raise ArgumentError(f"no drafter of kind 'prompt' can be trained for this model: {name} reads no prompt tokens")
    return PromptTokens(sizes.target.vocab_size, sizes.dim, settings.depth)


def _new_one_step(sizes: HeadSizes, settings: TrainingSettings) -> OneStepHead:
    return OneStepHead(
        sizes.target.vocab_size,
        sizes.dim,
        sizes.intermediate_size,
        sizes.heads,
        settings.layers,
        max_position_embeddings=sizes.layout.length,
    )


def _new_block(sizes: HeadSizes, settings: TrainingSettings) -> BlockHead:
    return BlockHead(
        sizes.target.vocab_size,
        sizes.dim,
        sizes.intermediate_size,
        sizes.heads,
        settings.layers,
        layer_ids=sizes.target.fused_layers if isinstance(sizes.target, LayerFeatureTarget) else (),
        block_size=settings.depth,
        sample_from_anchor=True,
        mask_token_id=settings.mask_token,
        markov_rank=settings.markov_rank,
        rope_theta=sizes.rope_theta,
        grid_size=sizes.grid_size,
        max_position_embeddings=sizes.layout.length + 1,
        # No layer has a window, but vLLM applies what this says to all of them.
        sliding_window_non_causal=True,
    )


def _new_outer(sizes: HeadSizes, settings: TrainingSettings) -> OuterHead:
    if not (isinstance(sizes.target, RereadsWindows) and reuses_updates(sizes.target)):
        name = type(sizes.target).__name__
        raise ArgumentError(f"no drafter of kind 'outer' can be trained for this model: {name} rereads no windows")
    if sizes.target.layers < 3:
        raise ArgumentError(f"--kind outer is for models of 3 layers or more; this one has {sizes.target.layers}")
    return OuterHead(sizes.target.vocab_size, sizes.dim, sizes.intermediate_size, sizes.heads, settings.layers)


def _new_grid(sizes: HeadSizes, settings: TrainingSettings) -> GridHead:
    if sizes.layout.width is None:
        raise ArgumentError("--kind grid is for images, whose tokens have rows; this model generates a stream")
    return GridHead(sizes.target.vocab_size, sizes.dim, sizes.intermediate_size, sizes.layout.width)


def _new_adapter(sizes: HeadSizes, settings: TrainingSettings) -> ExitAdapter:
    if not isinstance(sizes.target, ExitFeatureTarget):
        raise ArgumentError("no drafter of kind 'kangaroo' can be trained for this model: it has no early exit")
    EarlyExitTarget(sizes.target, EarlyExit(settings.layers, guided=True))  # refuses a number that is too large
    return ExitAdapter(
        sizes.target.vocab_size,
        sizes.dim,
        sizes.intermediate_size,
        sizes.heads,
        settings.layers,
        rope_theta=sizes.rope_theta,
        grid_size=sizes.grid_size,
        max_position_embeddings=sizes.layout.length,
    )


def _teach_tokens(
    prepared: PreparedPrompts,
    tokens: Tensor,
    features: Tensor | None,
    layers: Sequence[int],
    generator: torch.Generator,
) -> TeacherOutput:
    return run_teacher(prepared, tokens, features, layers)


def _teach_frames(
    prepared: PreparedPrompts,
    tokens: Tensor,
    features: Tensor | None,
    layers: Sequence[int],
    generator: torch.Generator,
) -> FrameTeacherOutput:
    return run_frame_teacher(prepared, tokens, generator)


@dataclass(frozen=True)
class DrafterKind:
    """A kind of drafter.

    Attributes:
        recipe: The recipe that measures its acceptance.
        loss: The loss of a batch.
        new: Builds a head on the features of tokens, before its weights are initialized; None for other kinds.
        teach: Runs the target on sequences int64 [B, N], given their features if they are stored, the layers that the
            drafter reads, and a generator that chooses parts of them.
        keeps_features: Whether the target's features may be stored with the sequences.
        head: Whether the drafter is a head; else it is a small model, which the pipeline builds.
        slack: Tokens that the loss reads past the end of a sequence, by the depth of the drafter.
        decodes: Yields the losses of a step, one update each, from windows that it decodes with the drafter; `loss` and
            `teach` are then not used, and no sequences are generated. None for other kinds.
    """

    recipe: str
    loss: Callable[[Any, Batch], Tensor]
    new: Callable[[HeadSizes, TrainingSettings], nn.Module] | None = None
    teach: Callable[[PreparedPrompts, Tensor, Tensor | None, Sequence[int], torch.Generator], Any] = _teach_tokens
    keeps_features: bool = True
    head: bool = True
    slack: Callable[[int], int] = lambda depth: 1
    decodes: Callable[[Any, Batch], Iterator[Tensor]] | None = None


KINDS = {
    "eagle": DrafterKind(
        "eagle", lambda head, b: eagle_loss(head, b.teacher, b.settings.loss, b.settings.depth), _new_eagle
    ),
    "eagle3": DrafterKind(
        "eagle", lambda head, b: eagle3_loss(head, b.teacher, b.settings.loss, b.settings.depth), _new_eagle3
    ),
    "medusa": DrafterKind("medusa", lambda head, b: medusa_loss(head, b.teacher, b.settings.loss), _new_medusa),
    "hydra": DrafterKind("hydra", lambda head, b: hydra_loss(head, b.teacher, b.settings.loss), _new_hydra),
    "block": DrafterKind(
        "block", lambda head, b: block_loss(head, b.teacher, b.settings.loss, b.generator), _new_block
    ),
    "grid": DrafterKind(
        "grid", lambda head, b: grid_loss(head, b.teacher, b.settings.loss, b.settings.depth, b.generator), _new_grid
    ),
    "kangaroo": DrafterKind(
        "kangaroo", lambda adapter, b: kangaroo_loss(adapter, b.prepared, b.teacher, b.settings.loss), _new_adapter
    ),
    "prompt": DrafterKind(
        "prompt",
        lambda prompts, b: prompt_loss(prompts, b.prepared, b.teacher, b.settings.loss, b.generator),
        _new_prompts,
        slack=lambda depth: PLACES * depth,
    ),
    "one-step": DrafterKind(
        "one-step",
        lambda head, b: one_step_loss(head, b.teacher, b.settings.loss, b.settings.depth, b.generator),
        _new_one_step,
    ),
    "outer": DrafterKind(
        "scd:refresh=outer,passes=2",
        lambda head, b: next(outer_losses(head, b.prepared, b.settings.depth + 1, b.settings.loss, b.generator)),
        _new_outer,
        slack=lambda depth: depth + 1,
        decodes=lambda head, b: outer_losses(head, b.prepared, b.settings.depth + 1, b.settings.loss, b.generator),
    ),
    "frame": DrafterKind(
        "frame",
        lambda head, b: frame_loss(head, b.teacher, b.settings.loss, b.settings.depth),
        teach=_teach_frames,
        keeps_features=False,
    ),
    "small": DrafterKind(
        "draft",
        lambda model, b: draft_model_loss(
            model, b.prepared, b.teacher, LOSSES[b.settings.loss], b.reference, b.settings.select or 1.0
        ),
        head=False,
    ),
}


def new_drafter(pipe: TrainablePipeline, settings: TrainingSettings) -> Any:
    """Builds an untrained drafter.

    Raises:
        ArgumentError: If the target cannot have a drafter of that kind.
    """
    if not KINDS[settings.kind].head:
        return pipe.new_small()
    prepared = settings.prepare(pipe, settings.held_out[:1], 1)
    new = KINDS[settings.kind].new
    if new is None:
        return _new_frame(prepared, settings)
    target = feature_target(prepared)
    if settings.mask_token is not None and (settings.kind != "block" or settings.mask_token >= target.vocab_size):
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
        if isinstance(head, MedusaHeads):
            return head.to(target.device)
        if isinstance(head, PromptTokens):
            head.init_weights(prepared.embedding)
            return head.to(target.device)
        head.init_weights()
        if prepared.embedding is not None and not isinstance(head, ExitAdapter | OuterHead):
            table = head.left if isinstance(head, GridHead) else head.embed_tokens
            table.weight.data[: len(prepared.embedding)].copy_(prepared.embedding)
        if settings.mask_token is not None:
            head.embed_tokens.requires_grad_(False)
    return head.to(target.device)


def _new_frame(prepared: PreparedPrompts, settings: TrainingSettings) -> FrameHead:
    target = frame_teacher(prepared)
    with torch.no_grad():
        target.prefill()
        dim = target.frame_features(np.zeros(len(prepared.samplings), dtype=np.int64)).shape[-1]
    width = min(dim, FRAME_WIDTH)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed % 2**63)
        head = FrameHead(target.vocab_size, dim, target.frame_size, width, settings.hidden or mlp_width(width))
        head.init_weights()
    return head.to(target.device)


def mlp_width(dim: int) -> int:
    """8/3 of the features' width, rounded up to a multiple of 32."""
    return -(-8 * dim // 3 // 32) * 32


def _sizes(target: FeatureTarget, dim: int, layout: Layout, settings: TrainingSettings) -> HeadSizes:
    heads, hidden = head_sizes(dim)
    grid = isqrt(layout.length)
    square = settings.rotary == "auto" and layout.width == grid and grid * grid == layout.length
    theta, side = (100.0, grid) if square else (10000.0, None)
    return HeadSizes(target, layout, dim, settings.hidden or hidden, heads, theta, side)


def head_sizes(dim: int) -> tuple[int, int]:
    """The number of attention heads of a head on features of width `dim`, and the width of its MLP."""
    return next(h for h in range(max(dim // 64, 1), 0, -1) if dim % (4 * h) == 0), mlp_width(dim)


def layer_ids(model: Any) -> tuple[int, ...]:
    """The target's layers that a drafter reads."""
    return (model.layer_ids or ()) if isinstance(model, BlockHead | Eagle3Head) else ()


def evaluate_drafter(pipe: TrainablePipeline, model: nn.Module, settings: TrainingSettings) -> DrafterAcceptance:
    """Measures the acceptance of a drafter on the held-out prompts."""
    size = model.codebooks if isinstance(model, FrameHead) else 1  # the depth of a frame head counts frames
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
