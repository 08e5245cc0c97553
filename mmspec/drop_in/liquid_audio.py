"""The generators of `liquid-audio`: codes of frames are drafted; texts, prompts and the LFM2 stay the package's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mmspec.arguments import check_integer
from mmspec.audio.depth.depth_decoding import DepthDecoding, frame_numbers
from mmspec.decoding.assembly import window_policy, with_window
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Meter
from mmspec.decoding.window_policy import WindowPolicy, adaptive_windows_of
from mmspec.drop_in.replacement import Replacement, found_on
from mmspec.errors import ArgumentError
from mmspec.hf.generate import choose_recipe
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.seeds import row_seeds


class FrameCodes:
    """The codes of one frame as a target; slot k of its cache reads the code before code k.

    The layers return their keys and values, from which those of rejected drafts are cut.

    Args:
        model: The `LFM2AudioModel`.
        inputs: [K, D], what the slots read besides the codes.
        start: The position of the first code.
    """

    ROWS = ("_inputs",)

    def __init__(self, model: Any, inputs: Tensor, start: int) -> None:
        self.vocab_size, self.device = int(model.audio_vocab_size), inputs.device
        self._model, self._inputs, self._start = model, inputs[None], start
        self._cache: list[tuple[Tensor, Tensor]] | None = None

    def prefill(self) -> Logits:
        return self._read(self._inputs[0, :1], np.zeros(1, dtype=np.int64))

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        # What lies past the last code is not used.
        slots = (int(at[0]) - self._start + 1 + np.arange(tokens.shape[1])).clip(max=self._inputs.shape[1] - 1)
        tables, codes = self._model.depth_embeddings, tokens[0, :, None].unbind()
        before = torch.cat([tables[slot - 1](code) for slot, code in zip(slots, codes, strict=True)])
        assert self._cache is not None
        first = int(at[0]) - self._start + 1
        self._cache = [(keys[:, :first], values[:, :first]) for keys, values in self._cache]
        return self._read(self._inputs[0, slots] + before, slots)

    def _read(self, x: Tensor, slots: NDArray[np.int64]) -> Logits:
        """The logits [1, W, V] of the codes of slots, host int64 [W], that read x [W, D]."""
        heads = self._model.depth_embeddings
        # The layers keep their rotary frequencies, which training may read later.
        with torch.inference_mode(False), torch.no_grad():
            hidden, self._cache = self._model.depthformer.forward_cached(x[None], self._cache)
            rows = [heads[slot].get_logits(own) for slot, own in zip(slots, hidden[0], strict=True)]
        return Logits(torch.stack(rows)[None], None)


class DraftedFrames:
    """A model as its generators see it in one call: all its own but for what makes a frame of a hidden state.

    Attributes:
        codes: K, the codes of a frame.
        device: Where the model is.
        reader: What reads the windows.
    """

    def __init__(self, model: Any, method: Generator, frames: int) -> None:
        self.codes, self.device = int(model.codebooks), model.depth_linear.weight.device
        self.reader = nn.ModuleList([model.depthformer, *model.depth_embeddings])
        self._model, self._method, self._most, self._frame = model, method, frames, 0
        self._recipe = with_window(choose_recipe(method.settings.recipe, None), self)
        self._meter = Meter(self.device, 1, window=self._recipe.window)
        self._policy: WindowPolicy | None = None  # of the whole call, from its first frame on
        self._seed, self._drafts = 0, True
        self._before: Tensor | None = None  # the codes of the latest frame, int64 [1, K]
        self._inputs = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def depth(self, first: Tensor, start: int, window: int) -> FrameCodes:
        return FrameCodes(self._model, self._inputs, start)

    def keep_stats(self) -> None:
        """Gives the method the statistics of the call, if it had a frame."""
        if self._frame:
            self._method.forget()  # those of a call that began later, and has ended
            self._method.keep([self._meter.stats(0)], self._recipe)

    def _sample_audio_frame(
        self, embedding: Tensor, *, temperature: float | None = None, top_k: int | None = None
    ) -> Tensor:
        if self._drafts:
            random = torch.get_rng_state()
            try:
                return self._drafted(embedding, sampling_of(temperature, top_k, int(self._model.audio_vocab_size)))
            except ArgumentError as error:  # of the first frame: all have the same recipe and sampling
                self._method.note(str(error))
                self._drafts = False
                torch.set_rng_state(random)
        own: Tensor = self._model._sample_audio_frame(embedding, temperature=temperature, top_k=top_k)
        return own

    def _drafted(self, embedding: Tensor, sampling: SamplingParams) -> Tensor:
        """The codes int64 [K] of the next frame, of the hidden state [D] that it is made of."""
        if self._policy is None:
            resources = DraftResources(adaptive_windows=adaptive_windows_of(self._model))
            self._policy = window_policy(self._recipe, [sampling], 1, resources, self._most * self.codes)
            self._seed = row_seeds(None, 1)[0]
        self._inputs = self._model.depth_linear(embedding).view(self.codes, -1)
        number, start = np.array([self._frame]), 0 if self._before is None else self.codes
        numbers = Numbers(frame_numbers(np.array([self._seed]), number, start))
        sampler = TokenSampler([sampling], None, self.device)
        decoding = DepthDecoding(self, None, self._recipe, [sampling], sampler, numbers, self._policy, number)
        first = torch.zeros(1, 1, dtype=torch.int64, device=self.device)  # the prompt of a frame has no code
        self._before, _ = decoding.decode(first, self._before, self._meter, np.zeros(1, dtype=np.int64))
        self._frame += 1
        return self._before[0].clone()


def sampling_of(temperature: float | None, top_k: int | None, codes: int) -> SamplingParams:
    """The sampling of frames with so many codes, as the package reads its arguments.

    Raises:
        ArgumentError: For values that the package or mmspec does not take.
    """
    if temperature is None or temperature <= 0 or top_k == 1:
        return SamplingParams(0.0)
    if top_k is not None:
        check_integer("audio_top_k", top_k, 1, codes)
    return SamplingParams(temperature, top_k or 0)


class Generator(Replacement):
    """A generator of texts and frames of an `LFM2AudioModel`; see `mmspec.accelerate`."""

    def __call__(self, *positional: Any, **named: Any) -> Iterator[Tensor]:
        """Yields what the package's own generator yields, as it is decoded."""
        self.forget()
        try:
            self._check()
            frames = DraftedFrames(self.owner, self, int(named.get("max_new_tokens", 20)))
        except ArgumentError as error:
            self.note(str(error))
            yield from self.__wrapped__(*positional, **named)
            return
        try:
            yield from getattr(type(self.owner), self.NAME)(frames, *positional, **named)
        finally:
            frames.keep_stats()

    def forget(self) -> None:
        """Leaves no statistics of earlier calls of the model's generators."""
        for kind in GENERATORS:
            if (other := found_on(self.owner, kind.NAME)) is not None:
                other.stats = None

    def _check(self) -> None:
        """Refuses what would have no effect, and methods that are not the package's own."""
        given = self.settings
        if given.draft_model is not None or given.heads or given.table is not None:
            raise ArgumentError("draft_model, heads and table are not possible: codes are drafted along a frame")
        own = type(self.owner)
        methods = getattr(own, self.NAME), own._sample_audio_frame
        replaced = self._previous or "_sample_audio_frame" in vars(self.owner)
        if replaced or not all(each.__module__.startswith("liquid_audio.") for each in methods):
            raise ArgumentError(
                f"another package has set {self.NAME} or _sample_audio_frame, which mmspec would pass by"
            )


class Sequential(Generator):
    """`generate_sequential`."""

    NAME = "generate_sequential"


class Interleaved(Generator):
    """`generate_interleaved`."""

    NAME = "generate_interleaved"


GENERATORS = Sequential, Interleaved
