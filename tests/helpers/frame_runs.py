"""Runs of frames in windows of several frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmspec.audio.depth import frame_rows
from mmspec.audio.depth.depth_decoding import DecodedFrames, FrameSpec
from mmspec.audio.depth.frame_windows import NO_HEADS
from mmspec.decoding.adaptive_window import AdaptiveWindows
from mmspec.decoding.step import OnStep
from mmspec.heads.head import Head
from mmspec.recipes import Recipe


def decode_frame_windows(
    model: Any,
    recipe: Recipe,
    spec: FrameSpec,
    seeds: Sequence[int],
    ahead: int,
    draft: Any = None,
    on_step: OnStep | None = None,
    adaptive_windows: AdaptiveWindows | None = None,
    heads: Mapping[str, Head] = NO_HEADS,
) -> DecodedFrames:
    """`decode_frames` with `ahead` frames in a window."""
    return frame_rows.decode_frames(model, recipe, spec, seeds, draft, on_step, adaptive_windows, ahead, heads)
