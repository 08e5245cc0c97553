"""Between a call of `generate` and the loop: what was asked for, and how a model class decodes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.decoding.processed_target import LogitsProcessor
from mmspec.errors import ArgumentError
from mmspec.hf.causal_target import Backbone, Prompt, columns
from mmspec.sampling.constraints import Constraint


@dataclass(frozen=True)
class Allowed:
    """Ids each new token may have.

    Attributes:
        kind: int64 [N], the kind of each position, or [B, N] where rows differ.
        ids: bool [kinds, ids of the model], what each kind allows.
        width: Tokens per line, where lines are known and of one length in all rows.
    """

    kind: Tensor
    ids: Tensor
    width: int | None


@dataclass(frozen=True)
class PlanRequest:
    """What transformers prepared from the arguments of `generate`.

    Attributes:
        input_ids: int64 [B, T], padded on the left.
        mask: bool [B, T], False on padding.
        position_ids: int64 [B, T], or None.
        length: Tokens asked for.
        guidance_scale: None when nothing was said.
        negative_ids: The unconditional prompts, or None.
        negative_mask: Their mask, or None.
        allowed: Of `prefix_allowed_tokens_fn`, or None.
        allowed_fn: That function.
        rules: Of the prefix, in order.
        whole: Whether they need the logits of all ids.
        config: The prepared `GenerationConfig`.
        inputs: What else the model was given.
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
    rules: tuple[LogitsProcessor, ...]
    whole: bool
    config: Any
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """How a request is decoded.

    Attributes:
        backbone: See `CausalTarget`; no `uncond` without guidance.
        cond: See `CausalTarget`; no `uncond` without guidance.
        uncond: See `CausalTarget`; no `uncond` without guidance.
        length: Of the sequence, see `mmspec.decoding.layout.Layout`.
        width: Of the sequence, see `mmspec.decoding.layout.Layout`.
        constraint: Of the sequence, see `mmspec.decoding.layout.Layout`.
        guidance_scale: 1 is off.
        first_id: The model's id of the loop's token 0; the others follow.
        ends: Whether end-of-sequence ids end a row.
        keep_prompt: Whether the result begins with the prompt.
        history: int64 [B, T], the prompt as prefix rules see it, in the loop's tokens; None where they have no place.
        salt: Mixed into the seeds of the rows, where one call of the user's makes several of this plan.
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
    """Checks that the adapter reads every input of the model.

    Raises:
        ArgumentError: For an input of the model, such as an image, that its adapter does not read.
    """
    for name, value in request.inputs.items():
        empty = value is None or (isinstance(value, dict) and all(part is None for part in value.values()))
        if name not in known and not empty:
            # transformers encodes images in the prompt before it calls a generation loop.
            name = "pixel_values" if name == "mm_encoder_outputs" else name
            raise ArgumentError(f"{name} is not supported by mmspec for {type(model).__name__}; leave it out")


def refuse_guidance(model: Any, request: PlanRequest) -> None:
    """Checks that no guidance is asked for.

    Raises:
        ArgumentError: When guidance is asked of a model whose own generate has none.
    """
    if request.guidance_scale not in (None, 1):
        raise ArgumentError(
            f"guidance_scale={request.guidance_scale} is not allowed for {type(model).__name__}; leave it out"
        )


def negative_prompt(request: PlanRequest) -> tuple[Tensor, Tensor]:
    """Ids int64 and mask bool [B, U] of the unconditional side, by the rules of transformers.

    Without a negative prompt it is the last token of the prompt; without a mask every token of it counts.

    Raises:
        ArgumentError: When it does not have one row per row of the batch.
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
    """Positions int64 [1, B, T] that count what `mask` (bool [B, T]) shows."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)[None]


def shared_vocabulary_plan(model: Any, decoder: Any, embed: Any, head: Any, request: PlanRequest) -> Plan:
    """The plan of a model that writes its image as ids of one vocabulary, in which prompts are written too.

    Of the vocabulary only the stretch between the lowest and the highest allowed id is ever computed, unless rules of
    the prefix need the rest.
    """
    low, high = 0, logits_size(head)
    constraint = width = None
    if request.allowed is not None:
        if not request.whole:
            used = request.allowed.ids.any(0).nonzero()[:, 0]
            low, high = int(used[0]), int(used[-1]) + 1
        constraint = Constraint(request.allowed.kind, request.allowed.ids[:, low:high].contiguous())
        width = request.allowed.width
    scale = 1.0 if request.guidance_scale is None else float(request.guidance_scale)
    positions = position_ids_of(request.mask) if request.position_ids is None else request.position_ids[None]
    uncond = None
    if scale != 1:
        ids, mask = negative_prompt(request)
        # A negative prompt without a mask of its own counts every slot, padding or not.
        every = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)[None]
        uncond = Prompt(embed(ids), mask, every)
    device = request.input_ids.device
    return Plan(
        Backbone(decoder, lambda tokens: embed(tokens + low), columns(head, low, high), high - low, device),
        Prompt(embed(request.input_ids), request.mask, positions),
        uncond,
        request.length,
        width,
        constraint,
        scale,
        low,
        # Padding that transformers' own processors see, and a penalty leaves out.
        history=torch.where(request.mask.cumsum(-1) > 0, request.input_ids - low, -2 - request.input_ids),
    )


def logits_size(head: Any) -> int:
    """How many logits a head gives."""
    return int(head.out_features if hasattr(head, "out_features") else head.weight.shape[0])
