"""The interface of adapters: the request of a call of `generate`, and the plan of how a model decodes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.decoding.processed_target import LogitsProcessor
from mmspec.errors import ArgumentError
from mmspec.hf.causal_target import Backbone, Prompt, slice_head
from mmspec.hf.prepared_inputs import refuse_unknown_inputs
from mmspec.sampling.constraints import Constraint


@dataclass(frozen=True)
class Allowed:
    """The ids that each new token may have.

    Attributes:
        kind: The kind of each position, int64 [N], or [B, N] where rows differ.
        ids: bool [kinds, ids of the model], the ids that each kind allows.
        width: Tokens per line, if all lines of all rows have the same length, else None.
    """

    kind: Tensor
    ids: Tensor
    width: int | None


@dataclass(frozen=True)
class PlanRequest:
    """The arguments of `generate`, as transformers prepared them.

    Attributes:
        input_ids: int64 [B, T], padded on the left.
        mask: bool [B, T], False on padding.
        position_ids: int64 [B, T], or None.
        length: The number of new tokens.
        guidance_scale: None if the call does not set it.
        negative_ids: The unconditional prompts, or None.
        negative_mask: Their attention mask, or None.
        allowed: The ids that `prefix_allowed_tokens_fn` allows, or None.
        allowed_fn: That function, or None.
        processors: Logits processors that depend on the prefix, in order.
        all_logits: Whether they need the logits of all ids.
        config: The prepared `GenerationConfig`.
        inputs: All other inputs of the model.
        given: The keywords of the caller of `generate`; None if they are not known.
    """

    input_ids: Tensor
    mask: Tensor
    position_ids: Tensor | None
    length: int
    guidance_scale: float | None
    negative_ids: Tensor | None
    negative_mask: Tensor | None
    allowed: Allowed | None
    allowed_fn: Callable[[int, Tensor], Any] | None
    processors: tuple[LogitsProcessor, ...]
    all_logits: bool
    config: Any
    inputs: Mapping[str, Any]
    given: Collection[str] | None = None


@dataclass(frozen=True)
class Plan:
    """How a request is decoded.

    Attributes:
        backbone: The parts of the model; see `mmspec.hf.causal_target.CausalTarget`.
        uncond: The unconditional prompts; None without guidance.
        length: Tokens to generate; see `mmspec.decoding.layout.Layout`.
        width: Tokens per line of the image, or None; see `mmspec.decoding.layout.Layout`.
        constraint: Allowed tokens by position, or None; see `mmspec.decoding.layout.Layout`.
        guidance_scale: 1 is off.
        first_id: The model's id of the loop's token 0; the other tokens follow.
        ends: Whether end-of-sequence ids end a row.
        keep_prompt: Whether the result begins with the prompt.
        history: The prompt in the loop's tokens, int64 [B, T], for logits processors that read the prefix; None if
            prompts and images have different ids, so that such processors are refused.
        salt: One integer per row that is mixed into its seed, for models whose `generate` calls the loop several times.
    """

    backbone: Backbone
    cond: Prompt
    uncond: Prompt | None
    length: int
    width: int | None = None
    constraint: Constraint | None = None
    guidance_scale: float = 1.0
    first_id: int = 0
    ends: bool = True
    keep_prompt: bool = True
    history: Tensor | None = None
    salt: tuple[int, ...] | None = None


def refuse_inputs(model: Any, request: PlanRequest, *known: str) -> None:
    """Checks that the adapter supports every input of the model.

    Args:
        known: Names of the inputs that the adapter uses.

    Raises:
        ArgumentError: If there is another input, such as an image; see `mmspec.hf.prepared_inputs`.
    """
    inputs = {**request.inputs, "position_ids": request.position_ids}
    refuse_unknown_inputs(model, inputs, known, request.given, request.mask)


def refuse_guidance(model: Any, request: PlanRequest) -> None:
    """Checks that a request sets no guidance, for models whose own generate has none.

    Raises:
        ArgumentError: If the guidance scale is set and not 1.
    """
    if request.guidance_scale not in (None, 1):
        raise ArgumentError(
            f"guidance_scale={request.guidance_scale} is not allowed for {type(model).__name__}; leave it out"
        )


def negative_prompt(request: PlanRequest) -> tuple[Tensor, Tensor]:
    """Ids int64 [B, U] and mask bool [B, U] of the unconditional prompts, with the defaults of transformers.

    The default is the last token of each prompt, and a mask without padding.

    Raises:
        ArgumentError: If ids and batch, or ids and mask, differ in shape.
    """
    rows = len(request.input_ids)
    ids = request.input_ids[:, -1:] if request.negative_ids is None else request.negative_ids
    if len(ids) != rows:
        raise ArgumentError(f"negative_prompt_ids has {len(ids)} rows for a batch of {rows}; give one per row")
    mask = torch.ones_like(ids) if request.negative_mask is None else request.negative_mask
    if mask.shape != ids.shape:
        raise ArgumentError(
            f"negative_prompt_attention_mask has shape {tuple(mask.shape)}, negative_prompt_ids {tuple(ids.shape)}"
        )
    return ids.to(request.input_ids.device), mask.to(request.input_ids.device).bool()


def position_ids_of(mask: Tensor) -> Tensor:
    """Position ids int64 [1, B, T] that count the tokens of `mask`, bool [B, T]; padding on the left has position 0."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)[None]


def shared_vocabulary_plan(model: Any, decoder: Any, embed: Any, head: Any, request: PlanRequest) -> Plan:
    """The plan of a model whose prompts and images are ids of one vocabulary.

    Only the logits from the lowest to the highest allowed id are computed, unless a logits processor needs all.

    Args:
        embed: Ids int64 [B, T] to embeddings.
        head: Hidden states to logits over all ids; a linear layer.
    """
    low, high = 0, logits_size(head)
    constraint = width = None
    if request.allowed is not None:
        if not request.all_logits:
            used = request.allowed.ids.any(0).nonzero()[:, 0]
            low, high = int(used[0]), int(used[-1]) + 1
        constraint = Constraint(request.allowed.kind, request.allowed.ids[:, low:high].contiguous())
        width = request.allowed.width
    scale = 1.0 if request.guidance_scale is None else float(request.guidance_scale)
    positions = position_ids_of(request.mask) if request.position_ids is None else request.position_ids[None]
    uncond = None
    if scale != 1:
        ids, mask = negative_prompt(request)
        # transformers numbers the tokens of a negative prompt from 0, padding included.
        every = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)[None]
        uncond = Prompt(embed(ids), mask, every)
    device = request.input_ids.device
    return Plan(
        Backbone(decoder, lambda tokens: embed(tokens + low), slice_head(head, low, high), high - low, device),
        Prompt(embed(request.input_ids), request.mask, positions),
        uncond,
        request.length,
        width,
        constraint,
        scale,
        low,
        # Padding x is -2 - x: processors of transformers read the id, a repetition penalty skips it.
        history=torch.where(request.mask.cumsum(-1) > 0, request.input_ids - low, -2 - request.input_ids),
    )


def logits_size(head: Any) -> int:
    """The number of logits of a head."""
    return int(head.out_features if hasattr(head, "out_features") else head.weight.shape[0])
