"""Frames ahead: speculation along the time of models with a depth decoder, as an option.

The codes of all frames are one stream of tokens, and a model of frames is a target of that stream: a window may reach
over several frames, of which the backbone reads in one call all that are whole in it, and the depth decoder, given
their codes, all that it touches, in one call too. Everything else is the loop as it is: what fails is resampled inside
its frame, and the frame goes on from there code by code.

Where a frame ends its row, the first token of the next one is a mark that only this module knows, so that an end is a
function of the prefix like any other distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.depth.depth_decoding import DecodedFrames, Frames
from mmspec.decoding.adaptive_window import AdaptiveWindows
from mmspec.decoding.batch import Step
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import OnStep
from mmspec.decoding.resources import DraftResources
from mmspec.engine import run
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler

MOST = 16  # frames


class FrameReader(Protocol):
    """A model with its prompts given, that reads several frames in a call.

    Attributes:
        codes: Tokens of a frame after its first, D.
        vocab_size: V, of first tokens and codes alike.
    """

    codes: int
    vocab_size: int
    device: torch.device

    def start(self) -> Logits:
        """Reads the prompts; the logits of the first token of frame 0, [B, 1, V]."""
        ...

    def read(self, frames: Tensor, at: NDArray[np.int64]) -> Logits:
        """Reads frames int64 [B, n, 1 + D], the first of each row being number `at` (host int64 [B]).

        The logits of the first token after each, [B, n, V]. What was read of those places before is forgotten.
        """
        ...

    def hidden(self) -> Tensor:
        """What the depth decoder starts from, after what was last read: [B, n, width]; after a prompt n is 1."""
        ...

    def rest(self, hidden: Tensor, frames: Tensor) -> Tensor:
        """The logits [R, D, V] of the codes of frames int64 [R, 1 + D], each after those before it."""
        ...

    def select_rows(self, row_ids: list[int]) -> None:
        """Drops all rows but these."""
        ...


class FrameStream:
    """A model of frames as a target of the stream of their tokens. Its logits are those of finished distributions.

    Token V stands after the end of a row, where a frame would begin.

    Args:
        model: With its prompts given.
        frames: What is to be made.
        batch_size: B.
        window: How far a window may reach past the end, in tokens.
    """

    def __init__(self, model: FrameReader, frames: Frames, batch_size: int, window: int) -> None:
        self.vocab_size = model.vocab_size + 1
        self.device = model.device
        self._model, self._ends = model, frames.ends
        self._size = 1 + model.codes
        self._samplers = [TokenSampler([how] * batch_size, None, model.device) for how in (frames.first, frames.rest)]
        room = frames.length + -(-window // self._size) + 1
        self._tokens = torch.zeros(batch_size, room * self._size, dtype=torch.int64, device=model.device)
        self._room = room
        self._hidden = torch.empty(0, device=model.device)  # [B, room, width], by the frame that starts from it

    def prefill(self) -> Logits:
        z = F.pad(self._finished(self._model.start().cond, self._samplers[0]), (0, 1), value=-torch.inf)
        hidden = self._model.hidden()[:, -1:]
        self._hidden = F.pad(hidden, (0, 0, 0, self._room - 1))
        return Logits(z, None)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        size, places = self._size, at[:, None] + np.arange(tokens.shape[1])
        self._tokens.scatter_(1, self._on(places), tokens.clamp(max=self.vocab_size - 2))
        first = at // size
        touched = int((places[:, -1] // size - first).max()) + 1
        here = self._on(first[:, None] + np.arange(touched))
        frames = self._tokens.unflatten(1, (-1, size)).gather(1, here[..., None].expand(-1, -1, size))
        begins = self._begin(frames, first, int(((places[:, -1] + 1) // size - first).max()))
        logits = torch.cat([self._go_on(frames, here), begins], dim=2).flatten(1, 2)
        wanted = self._on(places - first[:, None] * size)
        return Logits(logits.gather(1, wanted[..., None].expand(-1, -1, self.vocab_size)), None)

    def select_rows(self, row_ids: list[int]) -> None:
        self._model.select_rows(row_ids)
        self._tokens, self._hidden = self._tokens[row_ids], self._hidden[row_ids]
        for sampler in self._samplers:
            sampler.select_rows(torch.tensor(row_ids, device=self.device))

    def _begin(self, frames: Tensor, first: NDArray[np.int64], whole: int) -> Tensor:
        """The logits [B, n, 1, 1 + V] after n frames, of which the backbone reads the first `whole`."""
        logits = torch.zeros(*frames.shape[:2], self.vocab_size, device=self.device)
        if whole:
            read = frames[:, :whole]
            z = F.pad(self._finished(self._model.read(read, first).cond, self._samplers[0]), (0, 1), value=-torch.inf)
            self._remember(first[:, None] + 1 + np.arange(whole))
            if self._ends is not None:
                mark = torch.arange(self.vocab_size, device=self.device) == self.vocab_size - 1
                certain = torch.zeros_like(z).masked_fill(~mark, -torch.inf)
                z = torch.where(self._ends(read)[..., None], certain, z)
            logits[:, :whole] = z
        return logits[:, :, None]

    def _remember(self, frames: NDArray[np.int64]) -> None:
        """Keeps what the frames of these numbers, host int64 [B, n], start from."""
        hidden = self._model.hidden()
        self._hidden = self._hidden.scatter(1, self._on(frames)[..., None].expand(hidden.shape), hidden)

    def _go_on(self, frames: Tensor, here: Tensor) -> Tensor:
        """The logits [B, n, D, 1 + V] of the codes of n frames, which are number `here` (int64 [B, n])."""
        hidden = self._hidden.gather(1, here[..., None].expand(-1, -1, self._hidden.shape[2]))
        logits = self._model.rest(hidden.flatten(0, 1), frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        z = self._finished(logits.flatten(1, 2), self._samplers[1]).unflatten(1, (frames.shape[1], -1))
        return F.pad(z, (0, 1), value=-torch.inf)

    def _finished(self, logits: Tensor, sampler: TokenSampler) -> Tensor:
        """Logarithms of the distribution, as settings differ between the first token of a frame and the others."""
        return sampler(Logits(logits, None), np.zeros(logits.shape[:2], dtype=np.int64)).log()

    def _on(self, index: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(index).to(self.device)


def decode_ahead(
    model: FrameReader,
    recipe: Recipe,
    frames: Frames,
    seeds: Sequence[int],
    ahead: int,
    draft: FrameReader | None = None,
    on_step: OnStep | None = None,
    adaptive_windows: AdaptiveWindows | None = None,
) -> DecodedFrames:
    """Decodes a batch of rows, as `mmspec.audio.depth.depth_decoding.decode_frames` does, `ahead` frames in a window.

    A target call is at most one of the backbone and one of the depth decoder.

    Args:
        recipe: Its window is that of so many frames, whatever it says; the guess "above" is the same codebook one frame
            ago.
        draft: A smaller model with the same prompts, for the recipe `draft`.

    Raises:
        ArgumentError: For a number of frames out of range, and for a recipe with trees.
    """
    if not 1 <= ahead <= MOST:
        raise ArgumentError(f"ahead={ahead!r} is not allowed; it must be 1 to {MOST} frames")
    size, count, end = 1 + model.codes, len(seeds), model.vocab_size
    widest = 1 + ahead * size
    if "window" in recipe.knobs and not recipe.auto:
        recipe = recipe.with_knobs(window=widest)
    slack = max(widest, recipe.window)
    layout = Layout(frames.length * size, width=size, eos=frozenset({end}), pad=end)
    resources = DraftResources(
        adaptive_windows={} if adaptive_windows is None else adaptive_windows, largest_window=widest
    )
    if draft is not None:
        small = draft
        resources = replace(
            resources,
            draft_model=lambda: FrameStream(small, frames, count, slack),
            draft_sampling=[SamplingParams()] * count,
        )

    def whole(step: Step) -> None:
        assert on_step is not None
        rows = [row[: len(row) // size * size].view(-1, size) for row in step.tokens]
        on_step(replace(step, tokens=rows))

    target = FrameStream(model, frames, count, slack)
    observe = None if on_step is None else whole
    decoded = run(target, recipe, layout, [SamplingParams()] * count, seeds, resources, observe)
    made = decoded.tokens.unflatten(1, (-1, size))
    there = made[..., :1] != end
    longest = int(there.sum(1).max())
    return DecodedFrames(torch.where(there, made, frames.pad)[:, :longest], decoded.stats)
