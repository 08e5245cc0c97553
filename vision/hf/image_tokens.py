"""The tokens of a decoding job: their number, and the codes of the image among them."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.decoding.step import Step
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.vision.hf.image_adapter import DecodingJob, ImageAdapter
from mmspec.vision.outputs import complete


def check_whole(codes: Tensor, job: DecodingJob) -> None:
    """Checks that images, int64 [B, n], have all their codes.

    Raises:
        ModelError: If one has ended early.
    """
    if codes.shape[1] < len(job.image):
        raise ModelError(
            "the model ended its images early, by an end-of-sequence id; model.generation_config.eos_token_id must not "
            "be a code of an image"
        )


def codes_so_far(adapter: ImageAdapter, job: DecodingJob, step: Step) -> Tensor:
    """The codes of a step, int64 [B, h * w], with -1 where they are missing."""
    rows = [adapter.codes(tokens[job.image[job.image < len(tokens)].to(tokens.device)]) for tokens in step.tokens]
    return complete(rows, len(job.image), adapter.codebook_size)


def sequences_of(codes: Tensor, adapter: ImageAdapter, job: DecodingJob, layout: Layout, first_id: int) -> Tensor:
    """The loop's tokens of whole images, int64 [B, N], the reverse of `ImageAdapter.codes`.

    Args:
        codes: int64 [B, h * w].
        adapter: The adapter of the model.
        job: The request that the images are of.
        first_id: The model's id of the loop's token 0.

    Raises:
        ArgumentError: If the codes are not those of such images, or do not tell all tokens.
    """
    if codes.ndim != 2 or codes.shape[1] != len(job.image):
        raise ArgumentError(f"tokens has shape {list(codes.shape)}; images have {len(job.image)} codes")
    codes, image = codes.cpu(), job.image.cpu()
    free, tokens = torch.arange(adapter.codebook_size), torch.full((len(codes), job.length), -1)
    if layout.constraint is not None:
        kinds, allowed = layout.constraint.kind.cpu(), layout.constraint.allowed.cpu()
        free = allowed[kinds[..., image].unique()].any(0).nonzero().flatten()
        tokens[:] = torch.from_numpy(layout.constraint.forced.tokens[..., : job.length])
    token_of = torch.full((adapter.codebook_size,), -1)
    token_of[adapter.codes((free + first_id)[None])[0]] = free
    tokens[:, image] = token_of[codes]
    if (tokens < 0).any():
        raise ArgumentError("the codes of these images do not tell the tokens between them, which a drafter learns")
    return tokens


def check_length(job: DecodingJob, max_length: int) -> None:
    """Checks that the longest prompt and the image have at most `max_length` tokens, and the longest negative prompt.

    Raises:
        PromptError: If they have more.
    """
    for name, mask in (("prompt", "attention_mask"), ("negative_prompt", "negative_prompt_attention_mask")):
        longest = int(job.arguments[mask].sum(1).max()) if mask in job.arguments else 0
        if longest + job.length > max_length:
            raise PromptError(
                f"{name} has {longest} tokens, which is too long: the image has {job.length} and the model "
                f"{max_length} positions, so a prompt may have at most {max(max_length - job.length, 0)} tokens"
            )
