"""What tests of models with a depth decoder share: decoding their frames by a recipe, and a frame head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from frame_runs import decode_frame_windows
from torch import Tensor

from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_rows import decode_frames
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
    if ahead:
        heads = {"frame": head} if head is not None and recipe.startswith("frame") else {}
        return decode_frame_windows(prompted(), parse(recipe), spec, [0, 1, 2], ahead, heads=heads).frames
    draft = prompted() if recipe.startswith("draft") else None
    return decode_frames(prompted(), parse(recipe), spec, [0, 1, 2], draft).frames


def until(frames: Tensor, end: int) -> list[list[int]]:
    """Frames int64 [F, K] before the first that begins with `end`."""
    ends = (frames[:, 0] == end).nonzero()
    return (frames[: int(ends[0])] if len(ends) else frames).tolist()
