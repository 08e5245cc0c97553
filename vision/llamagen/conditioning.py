"""The conditions of a LlamaGen: classes, or caption features padded on the left."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import check_text, shown
from mmspec.errors import ArgumentError, PromptError
from mmspec.vision.class_prompts import read_classes, read_labels
from mmspec.vision.llamagen.transformer import LlamaGenTransformer

log = logging.getLogger("mmspec.vision.llamagen")


@dataclass(frozen=True)
class Condition:
    """A batch of conditions.

    Attributes:
        features: Class ids int64 [B], or caption features [B, T, C].
        mask: [B, T], 0 on padded caption slots; None for classes.
    """

    features: Tensor
    mask: Tensor | None

    def repeat(self, times: int) -> Condition:
        """Repeats each condition `times` times, next to each other."""
        mask = None if self.mask is None else self.mask.repeat_interleave(times, dim=0)
        return Condition(self.features.repeat_interleave(times, dim=0), mask)

    def rows(self) -> list[Condition]:
        """Each condition as a batch of one."""
        masks = [None] * len(self.features) if self.mask is None else self.mask.split(1)
        return [Condition(features, mask) for features, mask in zip(self.features.split(1), masks, strict=True)]

    def to(self, device: torch.device) -> Condition:
        return Condition(self.features.to(device), None if self.mask is None else self.mask.to(device))


def join_conditions(conditions: Sequence[Condition]) -> Condition:
    """Several batches of conditions of one model as one."""
    masks = [condition.mask for condition in conditions if condition.mask is not None]
    features = torch.cat([condition.features for condition in conditions])
    return Condition(features, torch.cat(masks) if masks else None)


def from_classes(labels: int | Sequence[int] | Tensor, gpt: LlamaGenTransformer) -> Condition:
    """The condition of class labels.

    Raises:
        ArgumentError: If the model is text-conditional, or a label is out of range.
        PromptError: If there is no label.
    """
    if gpt.config.model_type != "c2i":
        raise ArgumentError("class_labels was given, but this model is text-conditional; pass prompt")
    ids = read_labels(labels)
    classes = gpt.config.num_classes
    if ids.numel() == 0:
        raise PromptError("class_labels=[] is empty; give at least one label")
    if bool(((ids < 0) | (ids >= classes)).any()):
        wrong = ids[(ids < 0) | (ids >= classes)][0].item()
        raise ArgumentError(f"class_labels has {wrong}, which is not allowed; labels are 0 to {classes - 1}")
    return Condition(ids, None)


def from_embeddings(embeds: Tensor, mask: Tensor | None, gpt: LlamaGenTransformer) -> Condition:
    """The condition of caption features.

    Args:
        embeds: [B, T, C] as a text encoder returns them, with the padding last.
        mask: [B, T], 0 on padding; None for no padding.
        gpt: The transformer.

    Raises:
        ArgumentError: If the model is class-conditional, or a shape does not fit.
    """
    slots, features = gpt.config.cls_token_num, gpt.config.caption_dim
    if gpt.config.model_type != "t2i":
        raise ArgumentError("prompt_embeds was given, but this model is class-conditional; pass class_labels")
    for name, value in (("prompt_embeds", embeds), ("prompt_attention_mask", mask)):
        if not isinstance(value, Tensor) and not (name == "prompt_attention_mask" and value is None):
            raise ArgumentError(f"{name}={shown(value)} is not allowed; it must be a tensor")
    if not embeds.is_floating_point():
        raise ArgumentError(f"prompt_embeds has dtype {embeds.dtype}; it must be floats")
    if embeds.ndim != 3 or embeds.shape[1:] != (slots, features):
        raise ArgumentError(f"prompt_embeds has shape {list(embeds.shape)}; it must be [B, {slots}, {features}]")
    mask = embeds.new_ones(embeds.shape[:2], dtype=torch.long) if mask is None else mask.to(embeds.device)
    if mask.shape != embeds.shape[:2]:
        raise ArgumentError(f"prompt_attention_mask has shape {list(mask.shape)}; it must be {list(embeds.shape[:2])}")
    return pad_left(embeds, mask)


def pad_left(embeds: Tensor, mask: Tensor) -> Condition:
    """Moves padding from after the caption to before it and zeroes it, as the published sampler does.

    Args:
        embeds: [B, T, C].
        mask: [B, T], 0 on padding.
    """
    rolled = [row.roll(-int(valid), dims=0) for row, valid in zip(embeds, mask.sum(1), strict=True)]
    flipped = mask.flip(-1)
    return Condition(torch.stack(rolled) * flipped[..., None].to(embeds.dtype), flipped)


def from_prompts(prompts: Sequence[Any], gpt: LlamaGenTransformer, encoder: Any, tokenizer: Any) -> Condition:
    """The condition of prompts, which are numbers of classes if the model has classes.

    Captions are cleaned first (`mmspec.vision.llamagen.captions`). Tokens of a prompt that exceed the caption slots are
    ignored, as in the original; this function warns about them.

    Args:
        gpt: The transformer.
        encoder: A T5 encoder, or a module with `encode(prompts) -> (features [B, T, C], mask [B, T])`.
        tokenizer: The tokenizer of the T5 encoder.

    Raises:
        PromptError: If there is no prompt, or one is empty or not a string.
        ArgumentError: If the encoder or its tokenizer is missing, or the features have another width.
    """
    if gpt.config.model_type != "t2i":
        return from_classes(read_classes(prompts, None, gpt.config.num_classes), gpt)
    if not prompts:
        raise PromptError("prompt=[] is empty; give at least one prompt")
    for prompt in prompts:
        if not check_text("prompt", prompt).strip():
            raise PromptError(f"prompt={prompt!r} is empty; describe an image")
    if encoder is None:
        raise ArgumentError("prompt was given, but this pipeline has no text_encoder; add one, or pass prompt_embeds")
    if hasattr(encoder, "encode"):
        return Condition(*encoder.encode(prompts))
    if tokenizer is None:
        raise ArgumentError("this pipeline has a text_encoder without its tokenizer; add it, or pass prompt_embeds")
    slots, features = gpt.config.cls_token_num, gpt.config.caption_dim
    # Imported here, as only models with a T5 need its packages.
    from mmspec.vision.llamagen.captions import clean_caption

    captions = [clean_caption(prompt) for prompt in prompts]
    for number, ids in enumerate(tokenizer(captions, verbose=False)["input_ids"]):
        if len(ids) > slots:  # a log has no prompts in it
            log.warning("prompt %d has %d tokens; the model reads %d, and the rest is ignored", number, len(ids), slots)
    encoded = tokenizer(captions, max_length=slots, padding="max_length", truncation=True, return_tensors="pt")
    ids, mask = encoded["input_ids"].to(encoder.device), encoded["attention_mask"].to(encoder.device)
    embeds = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    if embeds.shape[-1] != features:
        raise ArgumentError(f"text_encoder has {embeds.shape[-1]} features, the transformer requires {features}")
    return pad_left(embeds, mask)
