"""What tests of models with a depth decoder share: decoding their frames by a recipe, and a frame head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.audio.depth.depth_decoding import DecodedFrames, FrameSpec
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.depth.frame_windows import FrameTarget
from mmspec.methods.frame.head import FrameHead
from mmspec.recipes import parse


def random_head(codes: int, width: int, books: int) -> FrameHead:
    """A frame head of a model with `codes` codes, and of its width."""
    made, generator = FrameHead(codes + 2, width, books, 16, 32), torch.Generator().manual_seed(0)
    for p in made.parameters():
        p.data = torch.randn(p.shape, generator=generator) * 0.5
    return made.eval()


def frames_by(
    recipe: str, prompted: Callable[[], Any], spec: FrameSpec, ahead: int = 0, head: FrameHead | None = None
) -> Tensor:
    """The frames int64 [3, F, K] of three rows.

    Args:
        recipe: The recipe; the draft model of `draft` is the model itself.
        prompted: Makes the model with its prompts given.
        spec: The frames to generate.
        ahead: Frames in a window; 0 drafts along the depth alone.
        head: The frame head of the recipe `frame`.
    """
    heads = {"frame": head} if head is not None and recipe.startswith("frame") else {}
    draft = prompted() if recipe.startswith("draft") else None
    return decode_frames(prompted(), parse(recipe), spec, [0, 1, 2], draft, ahead=ahead, heads=heads).frames


def until(frames: Tensor, end: int) -> list[list[int]]:
    """Frames int64 [F, K] before the first that begins with `end`."""
    ends = (frames[:, 0] == end).nonzero()
    return (frames[: int(ends[0])] if len(ends) else frames).tolist()


def joint_of_two_frames(target: Callable[[], FrameTarget], seconds: int = 3) -> Tensor:
    """Probabilities of all sequences of 2 frames of 2 codes or of the end, from whole passes, float64 [n * n].

    Its last frame is one that ends where the length does; a frame after the end is the end.

    Args:
        target: Makes a target of n rows of one prompt, a row for each frame.
        seconds: Second codes; the first one is of 3.
    """
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(seconds))
    frames = torch.cat([pairs, torch.tensor([[3, 0]])])
    count = len(frames)
    total, at = torch.zeros(count, count, dtype=torch.float64), np.zeros(count, dtype=np.int64)
    begun = target()
    first = begun.prefill().cond.exp()[:, -1, :4].double()
    after = begun.forward(frames, at).cond.exp()[..., :4].double()
    for i, frame in enumerate(frames.tolist()):
        begins = first[0, frame[0]] * (1.0 if frame[0] == 3 else after[i, 0, frame[1]])
        if frame[0] == 3:
            total[i, -1] = begins
            continue
        second = target()
        second.prefill()
        probs = second.forward(torch.cat([torch.tensor([frame] * count), frames], dim=1), at).cond.exp()
        probs = probs[..., :4].double()
        for j, other in enumerate(frames.tolist()):
            total[i, j] = begins * probs[j, 1, other[0]] * (1.0 if other[0] == 3 else probs[j, 2, other[1]])
    return total.flatten()


def distance_of_two_frames(made: DecodedFrames, expected: Tensor, seconds: int = 3) -> float:
    """The total variation between rows of 2 frames and `joint_of_two_frames`."""
    frames, end = made.frames, 3 * seconds
    number = torch.where(frames[..., 0] == 3, end, frames[..., 0] * seconds + frames[..., 1])
    both = number[:, 0] * (end + 1) + number[:, 1]
    shares = torch.bincount(both, minlength=(end + 1) ** 2).double() / len(frames)
    return float((shares - expected).abs().sum() / 2)
