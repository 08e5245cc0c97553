"""The tokens of a decoding job: their number, and the codes of the image among them."""

from __future__ import annotations

from torch import Tensor

from mmspec.decoding.batch import Step
from mmspec.errors import ModelError, PromptError
from mmspec.vision.hf.image_adapter import DecodingJob, ImageAdapter
from mmspec.vision.previews import complete


def new_tokens(sequences: Tensor, job: DecodingJob) -> Tensor:
    """The new tokens int64 [B, length] of the result of `generate`, which has the prompts in front or not.

    Raises:
        ModelError: If an image has ended early.
    """
    prompt = job.arguments["input_ids"].shape[1]
    if sequences.shape[1] not in (job.length, prompt + job.length):
        raise ModelError(
            "the model ended its images early, by an end-of-sequence id; model.generation_config.eos_token_id must not "
            "be a code of an image"
        )
    return sequences[:, -job.length :]


def codes_so_far(adapter: ImageAdapter, job: DecodingJob, step: Step) -> Tensor:
    """The codes of a step, int64 [B, h * w], with -1 where they are missing."""
    rows = [adapter.codes(tokens[job.image[job.image < len(tokens)].to(tokens.device)]) for tokens in step.tokens]
    return complete(rows, len(job.image), adapter.codebook_size)


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
