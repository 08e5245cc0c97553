"""Windows of several frames: speculative decoding along the time axis of models with a depth decoder, as an option.

The tokens of all frames form one stream, and the model is a target of this stream. A window may span several frames: in
one call the backbone reads all frames that are complete in it, and in one call the depth decoder, given their codes,
reads all frames that it touches. The decoding loop is the usual one: a rejected token is resampled inside its frame,
which continues from there code by code.

If a frame ends its row, the first token of the next frame is an end token, internal to this module, with probability 1.
The end of a row is thus a function of the prefix, like every other distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.depth.depth_decoding import (
    FrameSpec,
    GivesCodes,
    given_constraint,
    refuse_entropy,
)
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.default_window import window_of
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.step import UNWATCHED, Watch
from mmspec.decoding.target import cache_bytes
from mmspec.decoding.window_policy import AdaptiveWindows
from mmspec.errors import ArgumentError
from mmspec.heads.head import Head
from mmspec.recipes import Recipe
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers, on_device, upload
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler

MAX_AHEAD = 16  # frames in a window
NO_HEADS: Mapping[str, Head] = MappingProxyType({})


def frames_ahead(ahead: int, size: int, recipe: Recipe, model: Any) -> int:
    """Frames in a window of a recipe; 0 keeps windows inside a frame.

    Args:
        ahead: The frames that the user asks for. A recipe that drafts with a frame head has at least its own window,
            or the default one if it names none, rounded up to whole frames.
        size: Tokens of a frame.
        model: The model that reads the windows.
    """
    if not recipe.drafts_frames:
        return ahead
    return max(ahead, min(max(-(-(window_of(recipe, model) - 1) // size), 1), MAX_AHEAD))


class FrameWindowModel(Protocol):
    """A model with its prompts given that reads several frames in a call; see `mmspec.decoding.rows.HoldsRows`.

    Attributes:
        codes: D, tokens of a frame after the first.
        vocab_size: V, of first tokens and codes alike.
        device: Where its tensors are.
    """

    codes: int
    vocab_size: int
    device: torch.device

    def start(self) -> Logits:
        """Reads the prompts and returns the logits of the first token of frame 0, [B, 1, V]."""
        ...

    def read(self, frames: Tensor, at: Numbers) -> Logits:
        """Reads frames and returns the logits of the first token after each, [B, n, V].

        Args:
            frames: int64 [B, n, 1 + D].
            at: [B], the number of each row's first frame; earlier reads of these and later frames are rolled
                back.
        """
        ...

    def hidden(self) -> Tensor:
        """The hidden states [B, n, width] after the n frames last read, from which the depth decoder starts.

        With guidance, those of a conditional and an unconditional row follow each other in `width`. After `start`, the
        last of them is that of the end of the prompt.
        """
        ...

    def rest(self, hidden: Tensor, frames: Tensor, at: NDArray[np.int64]) -> Logits:
        """The logits [B, n * D, V] of the codes of n frames, each given the tokens before it.

        Args:
            hidden: [B, n, width], the hidden states from which the frames start.
            frames: int64 [B, n, 1 + D].
            at: Host int64 [B], the number of each row's first frame, before which all frames have been read.
        """
        ...


@runtime_checkable
class ForcesFirsts(FrameWindowModel, Protocol):
    """A model whose first tokens before a frame may force that of the frame."""

    def forced_firsts(self, firsts: Tensor, counts: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The frames before number `at` have been read."""
        ...


class FrameTarget:
    """A model of frames as a target of the stream of their tokens; its logits include the sampling parameters.

    Token V is the end token, which follows the last frame of a row. It is a
    `mmspec.decoding.target.FrameFeatureTarget` and a `mmspec.training.frame_teacher.FrameTeacher`.

    Args:
        model: The model with its prompts given.
        spec: The frames to generate.
        batch_size: B.
        window: How far a window may reach past the end, in tokens.
    """

    ROWS = ("_model", "_tokens", "_hidden", "_samplers")
    SAME = ("_may_end",)

    def __init__(self, model: FrameWindowModel, spec: FrameSpec, batch_size: int, window: int) -> None:
        self.vocab_size = model.vocab_size + 1
        self.device = model.device
        self._model, self._ends, self._spec = model, spec.ends, spec
        self._may_end = spec.ends is not None
        self._size = self.frame_size = 1 + model.codes
        self._forces = isinstance(model, ForcesFirsts)
        warm = [spec.first.temperature or 1.0] + [spec.rest.temperature or 1.0] * model.codes
        self.temperatures = torch.tensor(warm, device=model.device)
        self._samplers = tuple(
            TokenSampler([sampling] * batch_size, None, model.device) for sampling in (spec.first, spec.rest)
        )
        room = spec.length + -(-window // self._size) + 1
        self._tokens = torch.zeros(batch_size, room * self._size, dtype=torch.int64, device=model.device)
        self._room = room
        self._hidden = torch.empty(0, device=model.device)  # [B, room, width], by the frame that starts from it
        self._end_only = torch.full((self.vocab_size,), -torch.inf, device=model.device)
        self._end_only[-1] = 0.0

    @property
    def forces_firsts(self) -> bool:
        return self._forces

    def prefill(self) -> Logits:
        z = self._log_probs(self._model.start(), self._samplers[0], 1)
        hidden = self._model.hidden()[:, -1:]
        self._hidden = F.pad(hidden, (0, 0, 0, self._room - 1))
        return Logits(z, None)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        size, positions = self._size, at[:, None] + np.arange(tokens.shape[1])
        first = at // size
        touched = int((positions[:, -1] // size - first).max()) + 1
        complete = int(((positions[:, -1] + 1) // size - first).max())
        # After a frame's last token comes the first one of the next frame, whose logits follow those of all codes.
        frame, code = np.divmod(positions - first[:, None] * size, size)
        codes = size - 1
        host = [
            positions,
            first[:, None] + np.arange(touched),
            first[:, None] + 1 + np.arange(complete),
            np.where(code < codes, frame * codes + code, touched * codes + frame),
        ]
        window = upload(host, self.device)
        there, numbers, after, index = (each.on(self.device) for each in window)
        self._tokens.scatter_(1, there, tokens.clamp(max=self.vocab_size - 2))
        frames = self._tokens.unflatten(1, (-1, size)).gather(1, numbers[..., None].expand(-1, -1, size))
        start = window[1].part(np.s_[:, 0])
        next_first = self._first_logits(frames[:, :complete], start, after)
        logits = torch.cat([self._code_logits(frames, first, numbers), *next_first], dim=1)
        return Logits(logits.gather(1, index[..., None].expand(-1, -1, self.vocab_size)), None)

    def frame_features(self, frames: NDArray[np.int64]) -> Tensor:
        index = on_device(frames, self.device)[:, None, None].expand(-1, 1, self._hidden.shape[2])
        return self._hidden.gather(1, index)[:, 0]

    def frame_logits(self, logits: Tensor, books: NDArray[np.int64]) -> Tensor:
        first, rest = (self._log_probs(Logits(logits, None), sampler) for sampler in self._samplers)
        return torch.where(on_device(books, self.device)[..., None] == 0, first, rest)

    def forced_firsts(self, firsts: Tensor, counts: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
        assert isinstance(self._model, ForcesFirsts), "forces_firsts says so"
        return self._model.forced_firsts(firsts, counts, at)

    def teach(self, frames: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        places = (self._spec.first, self._spec.rest)
        settings = [replace(s, temperature=s.temperature or 1.0, top_k=0, top_p=1.0) for s in places]
        warm = [TokenSampler([s] * len(frames), None, self.device) for s in settings]
        first, features = probs(self._model.start(), warm[0]), self._model.hidden()[:, -1:]
        frames = frames.clamp(max=self.vocab_size - 2)
        if end > 1:
            read = self._model.read(frames[:, : end - 1], Numbers(np.zeros(len(frames), dtype=np.int64)))
            first = torch.cat([first, probs(read, warm[0])], dim=1)
            features = torch.cat([features, self._model.hidden()], dim=1)
        features, taught = features[:, start:], frames[:, start:end]
        codes = self._model.rest(features, taught, np.full(len(frames), start))
        rest = probs(codes, warm[1]).unflatten(1, (end - start, -1))
        return features, F.pad(torch.cat([first[:, start:, None], rest], dim=2), (0, 1))

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._model)

    def _first_logits(self, frames: Tensor, first: Numbers, after: Tensor) -> list[Tensor]:
        """Logits [B, n, 1 + V] of the first token after each of n frames int64 [B, n, 1 + D]."""
        if not frames.shape[1]:
            return []
        z = self._log_probs(self._model.read(frames, first), self._samplers[0], 1)
        self._keep_hidden(after)
        return [z if self._ends is None else torch.where(self._ends(frames)[..., None], self._end_only, z)]

    def _keep_hidden(self, numbers: Tensor) -> None:
        """Stores the hidden states from which the frames of these numbers, int64 [B, n], start."""
        hidden = self._model.hidden()
        self._hidden.scatter_(1, numbers[..., None].expand(hidden.shape), hidden)

    def _code_logits(self, frames: Tensor, first: NDArray[np.int64], numbers: Tensor) -> Tensor:
        """The logits [B, n * D, 1 + V] of the codes of n frames of these numbers, the first of which the host has."""
        hidden = self._hidden.gather(1, numbers[..., None].expand(-1, -1, self._hidden.shape[2]))
        return self._log_probs(self._model.rest(hidden, frames, first), self._samplers[1], 1)

    def _log_probs(self, logits: Logits, sampler: TokenSampler, more: int = 0) -> Tensor:
        """Log-probabilities; the loop has one set of sampling parameters, but first tokens and codes have their own."""
        return sampler.ops.log_probs(sampler(logits, _no_positions(logits)), more)


def probs(logits: Logits, sampler: TokenSampler) -> Tensor:
    """Probabilities float32 [B, W, V] of logits."""
    return sampler.probs(logits, _no_positions(logits).host)


def _no_positions(logits: Logits) -> Numbers:
    return Numbers(np.zeros(logits.cond.shape[:2], dtype=np.int64))


@dataclass(frozen=True)
class PreparedFrameWindows(PreparedRows):
    """Rows that are ready to be decoded as streams of the tokens of their frames."""

    def batch(self, recipe: Recipe, seeds: Sequence[int], watch: Watch = UNWATCHED) -> RunningBatch:
        """The batch, before its first token.

        Raises:
            ArgumentError: If entropies are asked for.
        """
        refuse_entropy(watch)
        return super().batch(recipe, seeds, watch)


def prepare_frame_windows(
    model: FrameWindowModel,
    recipe: Recipe,
    spec: FrameSpec,
    count: int,
    ahead: int,
    draft: FrameWindowModel | None = None,
    adaptive_windows: AdaptiveWindows | None = None,
    heads: Mapping[str, Head] = NO_HEADS,
) -> PreparedFrameWindows:
    """A batch of `count` rows, ready to be decoded with `ahead` frames in a window.

    A target call is at most one call of the backbone and one of the depth decoder.

    Args:
        model: The model with its prompts given.
        recipe: How the tokens of all frames are decoded. A window has `ahead` frames, whatever the recipe's own window
            is; with `window=auto`, at most that many. The token "above" is the same codebook of the last frame.
        spec: The frames to generate.
        count: B.
        ahead: Frames in a window.
        draft: A smaller model with the same prompts, for recipes that use one.
        adaptive_windows: Window controllers of earlier runs of the model, for `window=auto`.
        heads: Draft heads by kind: a frame head drafts whole frames.

    Raises:
        ArgumentError: For a number of frames out of range.
    """
    if not 1 <= ahead <= MAX_AHEAD:
        raise ArgumentError(f"ahead={ahead!r} is not allowed; it must be 1 to {MAX_AHEAD} frames")
    size, end = 1 + model.codes, model.vocab_size
    widest = 1 + ahead * size
    if "window" in recipe.knobs and not recipe.auto:
        recipe = recipe.with_knobs(window=widest)
    slack = max(widest, recipe.window)

    def was_cut(row: int, tokens: Tensor) -> bool:
        """Whether a row is without an end; that of its last frame has no room for the end token."""
        last = tokens[-size:]
        return spec.ends is not None and bool(last[-1] != end) and not bool(spec.ends(last[None])[0])

    constraint = None
    if isinstance(model, GivesCodes):
        given = model.given_codes(np.tile(np.arange(spec.length), (count, 1)))
        constraint = given_constraint(
            np.pad(given, ((0, 0), (0, 0), (1, 0)), constant_values=-1), end + 1, model.device
        )
    layout = Layout(spec.length * size, width=size, constraint=constraint, eos=frozenset({end}), pad=end, cut=was_cut)
    resources = DraftResources(
        adaptive_windows={} if adaptive_windows is None else adaptive_windows, largest_window=widest, heads=heads
    )
    if draft is not None:
        draft_model = draft
        resources = replace(
            resources,
            draft_model=lambda: FrameTarget(draft_model, spec, count, slack),
            draft_sampling=[SamplingParams()] * count,
        )

    def frames(tokens: Tensor) -> Tensor:
        """The complete frames [F, 1 + D] of a stream int64 [n]."""
        rows = tokens[: len(tokens) // size * size].view(-1, size)
        return rows[: int((rows[:, 0] != end).long().cumprod(0).sum())]

    target = FrameTarget(model, spec, count, slack)
    samplings = [SamplingParams()] * count
    return PreparedFrameWindows(target, layout, samplings, resources, tokens=frames, recipe=recipe)
