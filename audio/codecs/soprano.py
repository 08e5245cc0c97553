"""The decoder of Soprano: a Vocos that reads the hidden states of the language model instead of codes.

A token is 2048 samples at 32 kHz. The hidden state that a token is sampled from is its feature; features are
interpolated to four frames per token, and frames become audio by an inverse Fourier transform. Source: `soprano-tts`
(Apache License 2.0); Vocos is arXiv 2306.00814.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.audio.codec import CodecStream
from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_tensors, count_blocks, read_tensors
from mmspec.hf.cache_name import cache_input, cache_of

FILE = "decoder.pth"
FRAMES, HOP, BINS = 4, 512, 1025  # frames per token, samples per frame, and bins of a frame
LOUDEST = 100.0  # of a bin


class SopranoDecoder(nn.Module):
    """The modules, with the published names.

    Args:
        width: Of the hidden states.
        inner: Of the decoder.
        hidden: Of its blocks.
        layers: Its blocks.
        kernel: Frames that a block sees, odd.
        first: Frames that its first convolution sees, odd.
    """

    window: Tensor

    def __init__(self, width: int, inner: int, hidden: int, layers: int, kernel: int, first: int) -> None:
        super().__init__()
        self.width, self.reach = width, layers * (kernel // 2) + first // 2
        self.decoder = Vocos(width, inner, hidden, layers, kernel, first)
        self.head = nn.ModuleDict({"out": nn.Linear(inner, 2 * BINS)})
        self.register_buffer("window", torch.hann_window(2 * (BINS - 1)), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Audio float32 [B, (F - 1) * 2048] of features [B, F, width]."""
        count = FRAMES * (features.shape[1] - 1) + 1
        frames = F.interpolate(features.transpose(1, 2), size=count, mode="linear", align_corners=True)
        size, phase = self.head["out"](self.decoder(frames)).transpose(1, 2).chunk(2, dim=1)
        spectrum = torch.polar(size.exp().clamp(max=LOUDEST), phase)
        spectrum[:, [0, -1]] = 0
        return torch.istft(spectrum, 2 * (BINS - 1), HOP, window=self.window, center=True)


class Vocos(nn.Module):
    """ConvNeXt blocks over frames [B, width, N]; returns [B, N, inner]."""

    def __init__(self, width: int, inner: int, hidden: int, layers: int, kernel: int, first: int) -> None:
        super().__init__()
        self.embed = nn.Conv1d(width, inner, first, padding=first // 2)
        self.norm = nn.LayerNorm(inner, eps=1e-6)
        self.convnext = nn.ModuleList([ConvNeXtBlock(inner, hidden, kernel) for _ in range(layers)])
        self.final_layer_norm = nn.LayerNorm(inner, eps=1e-6)

    def forward(self, frames: Tensor) -> Tensor:
        x: Tensor = self.norm(self.embed(frames).transpose(1, 2))
        for block in self.convnext:
            x = block(x)
        normed: Tensor = self.final_layer_norm(x)
        return normed


class ConvNeXtBlock(nn.Module):
    """A residual block on [B, N, inner]."""

    def __init__(self, inner: int, hidden: int, kernel: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(inner, inner, kernel, padding=kernel // 2, groups=inner)
        self.norm = nn.LayerNorm(inner, eps=1e-6)
        self.pwconv1 = nn.Linear(inner, hidden)
        self.pwconv2 = nn.Linear(hidden, inner)
        self.gamma = nn.Parameter(torch.ones(inner))

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.norm(self.dwconv(x.transpose(1, 2)).transpose(1, 2))
        return x + self.gamma * self.pwconv2(F.gelu(self.pwconv1(mixed)))


class Soprano:
    """The decoder as a codec, which reads a language model with the prompt of a part; see `of_part`.

    Args:
        model: Its modules.
        language_model: The language model, or None for a codec that is not bound to one.
        prompt: int64 [1, T], the ids of the part's prompt.

    Attributes:
        hop: Samples per token; the last token of a part has none.
    """

    sampling_rate, channels, hop, codebooks = 32000, 1, FRAMES * HOP, 1
    codebook_size = 2**31 - 1

    def __init__(self, model: SopranoDecoder, language_model: Any = None, prompt: Tensor | None = None) -> None:
        self._model, self._language_model, self._prompt = model, language_model, prompt

    def of_part(self, language_model: Any, prompt: Tensor) -> Soprano:
        """The codec of a part of a text.

        Args:
            language_model: A model of transformers with a head.
            prompt: int64 [T], the ids of the prompt.

        Raises:
            ModelError: If its hidden states have another width.
        """
        width = language_model.config.hidden_size
        if width != self._model.width:
            raise ModelError(f"the codec reads hidden states of width {self._model.width}, the model's have {width}")
        return Soprano(self._model, language_model, prompt[None])

    def decode(self, codes: Tensor) -> Tensor:
        """Audio float32 [1, 1, (F - 1) * hop] of the ids int64 [1, 1, F] that follow the prompt."""
        stream = self.stream()
        return torch.cat([stream.push(codes), stream.finish()], dim=-1)

    def stream(self) -> CodecStream:
        return SopranoStream(self._model, *self._bound())

    def tables(self) -> list[Tensor]:
        """Refuses: ids have no vectors here.

        Raises:
            ModelError: Always.
        """
        raise ModelError("Soprano's decoder reads hidden states and has no codebook; rules of code similarity need one")

    def _bound(self) -> tuple[Any, Tensor]:
        if self._language_model is None or self._prompt is None:
            raise ModelError("Soprano's decoder reads hidden states; use a pipeline, or `of_part` for a prompt")
        return self._language_model, self._prompt


class SopranoStream:
    """Reads the tokens with the language model as they arrive, and decodes their features in overlapping chunks.

    Args:
        model: The decoder.
        prompt: int64 [1, T].
    """

    def __init__(self, model: SopranoDecoder, language_model: Any, prompt: Tensor) -> None:
        self._model, self._language_model = model, language_model
        self._unread, self._past = prompt, None  # ids that come before the next token, and what has been read
        self._features = torch.empty(1, 0, model.width)
        self._first = 0  # the token of the first kept feature
        self._returned = 0  # tokens whose audio has been returned
        # A sample depends on the frames of the convolutions, on two of the Fourier transform, and on two tokens.
        self._reach = math.ceil((model.reach + BINS // HOP) / FRAMES) + 1

    @torch.inference_mode()
    def push(self, codes: Tensor) -> Tensor:
        tokens = codes[:, 0]
        count = tokens.shape[1]
        if count:
            unread = self._unread.to(tokens.device)
            out = self._language_model.base_model(
                input_ids=torch.cat([unread, tokens[:, :-1]], dim=1).to(self._language_model.device),
                use_cache=True,
                **cache_input(self._language_model.base_model, self._past),
            )
            self._past, self._unread = cache_of(out), tokens[:, -1:]
            new = out.last_hidden_state[:, -count:].float()
            self._features = torch.cat([self._features.to(new.device), new], dim=1)
        return self._decode(self._first + self._features.shape[1] - 1 - self._reach)

    @torch.inference_mode()
    def finish(self) -> Tensor:
        return self._decode(self._first + self._features.shape[1] - 1)

    def _decode(self, until: int) -> Tensor:
        """The audio of the tokens before `until` that has not been returned."""
        if until <= self._returned:
            return torch.empty(1, 1, 0)
        hop = FRAMES * HOP
        audio = self._model(self._features.to(self._model.window.device))
        made = audio[:, None, (self._returned - self._first) * hop : (until - self._first) * hop]
        dropped = max(until - self._reach - self._first, 0)
        self._features, self._first = self._features[:, dropped:], self._first + dropped
        self._returned = until
        return made


def is_soprano(folder: Path) -> bool:
    """Whether a folder holds the decoder of a Soprano."""
    return (folder / FILE).is_file()


def read_soprano(folder: Path, device: str = "cpu") -> Soprano:
    """The decoder in a published folder; sizes are read off its tensors.

    Raises:
        ModelError: For a missing, broken or other file.
    """
    file = folder / FILE
    what = f"codec {str(file)!r}"
    state = read_tensors(file, "codec")
    state.pop("head.istft.window", None)
    known = ("decoder.embed.weight", "decoder.convnext.0.dwconv.weight", "decoder.convnext.0.pwconv1.weight")
    if any(name not in state or state[name].ndim != dims for name, dims in zip(known, (3, 3, 2), strict=True)):
        raise ModelError(f"{what} is not the decoder of a Soprano")
    embed, depthwise, wide = (state[name] for name in known)
    if not embed.shape[-1] % 2 or not depthwise.shape[-1] % 2:
        raise ModelError(f"{what} has convolutions of an even number of frames, which no Soprano has")
    with building(what, "the decoder of a Soprano"), torch.device("meta"):
        layers = count_blocks(state, "decoder.convnext")
        model = SopranoDecoder(embed.shape[1], len(embed), len(wide), layers, depthwise.shape[-1], embed.shape[-1])
    check_tensors(what, state, model)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, assign=True)
    model.window = torch.hann_window(2 * (BINS - 1))
    return Soprano(model.to(device).eval())
