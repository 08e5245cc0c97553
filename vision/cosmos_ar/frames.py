"""Frames that a video begins with, as pixels for the tokenizer, and its pixels as frames."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from mmspec.arguments import shown
from mmspec.errors import ArgumentError
from mmspec.media.images import rgb_frames, to_frames, to_rgb

# Frames that the published models continue: 1, the first latent frame, or 9, the first two.
CONTEXTS = (1, 9)
ALLOWED = "an image, a list of images, a tensor [frames, 3, height, width] in 0..1, or an array of frames"


def read_frames(video: Any) -> Tensor:
    """Frames float32 [F, 3, H, W] in 0..1.

    Args:
        video: An image of PIL, moving or not, a list of images of one size, or a tensor or array of frames; see
            `mmspec.media.images.to_frames`.

    Raises:
        ArgumentError: If it is something else.
    """
    if isinstance(video, Image.Image):
        video = [frame for frame, _ in rgb_frames(video, "video")]
    if isinstance(video, (Tensor, np.ndarray)):
        return torch.from_numpy(np.ascontiguousarray(to_frames(video, "video")))
    if not isinstance(video, Sequence) or not video or not all(isinstance(frame, Image.Image) for frame in video):
        raise ArgumentError(f"video={shown(video)} is not allowed; give {ALLOWED}")
    frames = [np.asarray(to_rgb(frame, f"video[{i}]")) for i, frame in enumerate(video)]
    if len({frame.shape for frame in frames}) > 1:
        raise ArgumentError("video has frames of several sizes; they must have one")
    return torch.from_numpy(np.ascontiguousarray(to_frames(np.stack(frames), "video")))


def for_tokenizer(frames: Tensor, context: int, total: int, size: tuple[int, int]) -> Tensor:
    """Pixels [3, total, H, W] in -1..1 of the last `context` frames, the last of them repeated, as in the original.

    Args:
        frames: [F, 3, h, w] in 0..1, with F at least `context`.
        context: Frames that are continued.
        total: Frames of a video.
        size: Height and width of a video; frames are scaled to cover it, and cropped around the center.
    """
    kept = frames[-context:] * 2 - 1
    scale = max(size[0] / kept.shape[2], size[1] / kept.shape[3])
    covering = (ceil(scale * kept.shape[2]), ceil(scale * kept.shape[3]))
    scaled = F.interpolate(kept, covering, mode="bilinear", align_corners=False, antialias=True)
    top, left = (round((have - want) / 2) for have, want in zip(covering, size, strict=True))
    cropped = scaled[:, :, top : top + size[0], left : left + size[1]]
    return torch.cat([cropped, cropped[-1:].expand(total - context, -1, -1, -1)]).transpose(0, 1)


def as_frames(pixels: Tensor, output_type: str) -> Any:
    """Videos of an output type other than "latent".

    Args:
        pixels: [B, 3, F, H, W], in about -1..1.
        output_type: "pil", "np" or "pt"; see `VideoOutput.frames`.
    """
    frames = (pixels * 0.5 + 0.5).clamp(0, 1).transpose(1, 2)
    if output_type == "pt":
        return frames
    array = frames.permute(0, 1, 3, 4, 2).cpu().numpy()
    if output_type == "np":
        return array
    return [[Image.fromarray(frame) for frame in (video * 255).astype("uint8")] for video in array]
