"""Rows whose tokens are frames with a depth decoder, as the speech adapters of such models prepare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.nn.utils.rnn import pad_sequence

from mmspec.audio.depth.depth_decoding import DecodedFrames, FrameSpec
from mmspec.audio.depth.frame_batch import PreparedFrames
from mmspec.audio.depth.frame_windows import NO_HEADS, PreparedFrameWindows, frames_ahead, prepare_frame_windows
from mmspec.batching.call import decode_rows
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.step import OnStats, OnStep, Watch
from mmspec.decoding.window_policy import AdaptiveWindows, adaptive_windows_of
from mmspec.heads.head import Head
from mmspec.recipes import Recipe


def prepare_frame_rows(
    recipe: Recipe,
    model: Any,
    rows: int,
    prompted: Callable[[Any, int], Any],
    spec: FrameSpec,
    codebooks: int,
    ahead: int = 0,
    draft_model: Any = None,
    heads: Mapping[str, Head] = NO_HEADS,
) -> PreparedFrames | PreparedFrameWindows:
    """Rows that are ready to be decoded: along the depth of one frame at a time, or in windows of several frames.

    Args:
        recipe: How they are decoded.
        model: The model, whose window controllers runs share.
        rows: B.
        prompted: Takes a model, which is this one or the draft model, and the frames in a window. It returns the model
            with the prompts given: a `mmspec.audio.depth.depth_decoding.FrameModel` and
            `mmspec.audio.depth.frame_windows.FrameWindowModel`.
        spec: The frames to generate.
        codebooks: Tokens of a frame.
        ahead: Frames in a window that the user asks for, see `mmspec.audio.depth.frame_windows.frames_ahead`.
        draft_model: A smaller model; None refuses recipes that need one.
        heads: Draft heads by kind.
    """
    ahead, windows = frames_ahead(ahead, codebooks, recipe, model), adaptive_windows_of(model)
    draft = None
    if recipe.needs_draft_model and draft_model is not None:
        draft = prompted(draft_model, ahead)
    begun = prompted(model, ahead)
    return _prepared(begun, recipe, spec, rows, draft, windows, ahead, heads)


def decode_frames(
    model: Any,
    recipe: Recipe,
    spec: FrameSpec,
    seeds: Sequence[int],
    draft: Any = None,
    on_step: OnStep | None = None,
    adaptive_windows: AdaptiveWindows | None = None,
    ahead: int = 0,
    heads: Mapping[str, Head] = NO_HEADS,
    on_stats: OnStats | None = None,
) -> DecodedFrames:
    """Decodes the rows of a call.

    Args:
        model: The model with its prompts given.
        recipe: How they are decoded; the token "above" is the same codebook of the last frame.
        spec: The frames to generate.
        seeds: One per row. A row's frames depend on its seed and prompt alone.
        draft: A smaller model with the same prompts, for recipes that use one.
        on_step: Called after every frame or window; the tokens of its `Step` are frames.
        adaptive_windows: Window controllers of earlier runs of the model, for `window=auto`.
        ahead: Frames in a window; 0 keeps windows inside a frame.
        heads: Draft heads by kind.
        on_stats: Called with the statistics at the end.

    Raises:
        ArgumentError: For a number of frames out of range, and for a recipe with trees.
    """
    windows = {} if adaptive_windows is None else adaptive_windows
    prepared = _prepared(model, recipe, spec, len(seeds), draft, windows, ahead, heads)
    rows, stats = decode_rows(prepared, recipe, seeds, Watch(on_step, on_stats=on_stats))
    frames = pad_sequence(rows, batch_first=True, padding_value=spec.pad)
    return DecodedFrames(frames.to(model.device), stats)


def _prepared(
    model: Any,
    recipe: Recipe,
    spec: FrameSpec,
    rows: int,
    draft: Any,
    windows: AdaptiveWindows,
    ahead: int,
    heads: Mapping[str, Head],
) -> PreparedFrames | PreparedFrameWindows:
    if not ahead:
        return PreparedFrames(model, spec, DraftResources(adaptive_windows=windows), draft)
    return prepare_frame_windows(model, recipe, spec, rows, ahead, draft, windows, heads)
