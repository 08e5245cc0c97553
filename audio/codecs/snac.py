"""SNAC (Siuzdak et al. 2024, arXiv 2410.14411): residual codes of several rates, non-causal convolutions.

transformers has no class for it. The decoder and the codebooks are read from the published files, `config.json` and
`pytorch_model.bin`; the encoder is not loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from mmspec.audio.codec import CodecStream, OverlapStream
from mmspec.audio.codecs.convolution import receptive_field
from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_tensors, listed, read_tensors
from mmspec.hf.folder import read_json
from mmspec.sampling.rng import CounterRNG

MAX_STRIDE = 64
REQUIRED = ("sampling_rate", "decoder_dim", "decoder_rates", "codebook_size", "codebook_dim", "vq_strides")


class Snac:
    """A SNAC as a codec. A frame is one code of the coarsest codebook and the finer codes of the same time.

    With strides 4, 2, 1 a frame has 7 codes: a coarse one; then, for each half of the frame, one of the second codebook
    and two of the third. This is the order in which Orpheus writes them.

    The decoder's layers add noise to their outputs. Here the noise is a function of the position in the audio, so that
    decoding is deterministic.

    Args:
        model: The codebooks and the decoder, see `read_snac`.
        sampling_rate: Samples per second.
        strides: Stride of each codebook, in frames of the finest one.
    """

    channels = 1

    def __init__(self, model: SnacModel, sampling_rate: int, strides: Sequence[int]) -> None:
        self._model = model
        self._strides = strides
        self._slots = codebook_slots(strides)
        self.sampling_rate = sampling_rate
        self.hop = model.decoder.hop * strides[0]
        self.codebooks = len(self._slots)
        self.codebook_size = model.quantizer.quantizers[0].codebook.num_embeddings

    def decode(self, codes: Tensor) -> Tensor:
        return self.decode_from(codes, 0)

    def stream(self) -> CodecStream:
        # Half of the receptive field lies on each side; a frame here is `strides[0]` frames of the decoder.
        overlap = -(-(receptive_field(self._model.decoder) // 2 + 1) // self._strides[0])
        return SnacStream(self, overlap)

    def tables(self) -> list[Tensor]:
        # In the decoder's space: entries are projected from 8 dimensions to its width.
        books = [each.out_proj(each.codebook.weight.T[None])[0].T for each in self._model.quantizer.quantizers]
        return [books[book].detach().float() for book in self._slots]

    @torch.inference_mode()
    def decode_from(self, codes: Tensor, first: int) -> Tensor:
        """Decodes like `decode` frames of which the first is number `first` of the whole audio."""
        model, device = self._model, self._model.quantizer.quantizers[0].codebook.weight.device
        books = [
            torch.stack([codes[:, k] for k, own in enumerate(self._slots) if own == book], dim=-1).flatten(1)
            for book in range(len(self._strides))
        ]
        latents = model.quantizer([book.to(device) for book in books])
        return model.decoder(latents, first * self._strides[0]).float()


class SnacStream:
    """Decodes overlapping chunks. The number of each frame travels with its codes, because the noise depends on it.

    Args:
        overlap: Frames on each side that a frame depends on.
    """

    def __init__(self, codec: Snac, overlap: int) -> None:
        self._chunks = OverlapStream(NumberedFrames(codec), overlap, overlap)
        self._count = 0

    def push(self, codes: Tensor) -> Tensor:
        number = torch.arange(self._count, self._count + codes.shape[-1], device=codes.device)
        self._count += codes.shape[-1]
        return self._chunks.push(torch.cat([codes, number.expand(len(codes), 1, -1)], dim=1))

    def finish(self) -> Tensor:
        return self._chunks.finish()


class NumberedFrames:
    """A `mmspec.audio.codec.FrameDecoder` of codes int64 [B, K + 1, F], of which the last row counts frames."""

    channels = 1

    def __init__(self, codec: Snac) -> None:
        self._codec = codec
        self.hop = codec.hop

    def decode(self, codes: Tensor) -> Tensor:
        return self._codec.decode_from(codes[:, :-1], int(codes[0, -1, 0]))


def codebook_slots(strides: Sequence[int]) -> list[int]:
    """The codebook of each code of a frame: a code, then, for each part of its time, the codes that refine it."""

    def below(book: int) -> list[int]:
        if book + 1 == len(strides):
            return [book]
        return [book] + below(book + 1) * (strides[book] // strides[book + 1])

    return below(0)


class SnacModel(nn.Module):
    """The codebooks and the decoder, with the parameter names of the published state."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        rates, strides = list(config["decoder_rates"]), list(config["vq_strides"])
        width = config.get("latent_dim") or config["encoder_dim"] * 2 ** len(config["encoder_rates"])
        size, dim = config["codebook_size"], config["codebook_dim"]
        self.quantizer = SnacQuantizer(width, size, dim, strides)
        noise, depthwise = config.get("noise", True), config.get("depthwise", True)
        self.decoder = SnacDecoder(width, config["decoder_dim"], rates, noise, depthwise)


class SnacQuantizer(nn.Module):
    """Maps codes int64 [B, F / stride] of each codebook to latents [B, D, F]."""

    quantizers: Any

    def __init__(self, width: int, size: int, dim: int, strides: Sequence[int]) -> None:
        super().__init__()
        self.strides = strides
        self.quantizers = nn.ModuleList([SnacCodebook(width, size, dim) for _ in strides])

    def forward(self, books: Sequence[Tensor]) -> Tensor:
        latents = [
            each.out_proj(each.codebook(codes).transpose(1, 2)).repeat_interleave(stride, dim=-1)
            for each, codes, stride in zip(self.quantizers, books, self.strides, strict=True)
        ]
        return torch.stack(latents).sum(0)


class SnacCodebook(nn.Module):
    """One codebook and the projection of its entries."""

    def __init__(self, width: int, size: int, dim: int) -> None:
        super().__init__()
        self.out_proj = conv(dim, width, 1)
        self.codebook = nn.Embedding(size, dim)


class SnacDecoder(nn.Module):
    """Maps latents [B, D, F] to audio [B, 1, F * hop]."""

    def __init__(self, width: int, channels: int, rates: Sequence[int], noise: bool, depthwise: bool) -> None:
        super().__init__()
        self.hop = math.prod(rates)
        layers: list[nn.Module] = [conv(width, width, 7, width), conv(width, channels, 1)]
        if not depthwise:
            layers = [conv(width, channels, 7)]
        for rate in rates:
            channels //= 2
            layers.append(DecoderBlock(2 * channels, channels, rate, noise, channels if depthwise else 1))
        self.model = nn.Sequential(*layers, Snake(channels), conv(channels, 1, 7), nn.Tanh())

    def forward(self, latents: Tensor, first: int) -> Tensor:
        """Decodes latents whose first frame is number `first` of the whole audio."""
        hidden, position = latents, first
        for i, layer in enumerate(self.model):
            if isinstance(layer, DecoderBlock):
                position *= layer.rate
                hidden = layer(hidden, position, i)
            else:
                hidden = layer(hidden)
        return hidden


class DecoderBlock(nn.Module):
    """Upsampling by `rate`, noise, and three residual units."""

    def __init__(self, wide: int, narrow: int, rate: int, noise: bool, groups: int) -> None:
        super().__init__()
        self.rate = rate
        up = nn.ConvTranspose1d(wide, narrow, 2 * rate, rate, math.ceil(rate / 2), output_padding=rate % 2)
        added = [NoiseLayer(narrow)] if noise else []
        units = [ResidualUnit(narrow, dilation, groups) for dilation in (1, 3, 9)]
        self.block = nn.Sequential(Snake(wide), weight_norm(up), *added, *units)

    def forward(self, x: Tensor, position: int, stream: int) -> Tensor:
        """Upsamples x.

        Args:
            x: [B, wide, n].
            position: The number of the first sample that comes out.
            stream: RNG stream of the noise, one per block.
        """
        for layer in self.block:
            x = layer(x, position, stream) if isinstance(layer, NoiseLayer) else layer(x)
        return x


class NoiseLayer(nn.Module):
    """Adds noise with a learned amplitude, the same noise in all channels and rows."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = weight_norm(nn.Conv1d(channels, channels, 1, bias=False))

    def forward(self, x: Tensor, position: int, stream: int) -> Tensor:
        return x + normals(stream, position, x.shape[-1]).to(x) * self.linear(x)


class ResidualUnit(nn.Module):
    """A dilated convolution and a pointwise one, with a residual connection."""

    def __init__(self, channels: int, dilation: int, groups: int) -> None:
        super().__init__()
        first = nn.Conv1d(channels, channels, 7, padding=3 * dilation, dilation=dilation, groups=groups)
        self.block = nn.Sequential(Snake(channels), weight_norm(first), Snake(channels), conv(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class Snake(nn.Module):
    """The activation x + sin(alpha x)**2 / alpha (Ziyin et al. 2020)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.alpha * x).sin().square() / (self.alpha + 1e-9)


def conv(wide: int, narrow: int, kernel: int, groups: int = 1) -> nn.Module:
    """A convolution that keeps the length, with weight normalization as in the published state."""
    return weight_norm(nn.Conv1d(wide, narrow, kernel, padding=kernel // 2, groups=groups))


def normals(stream: int, first: int, count: int) -> Tensor:
    """Standard normal numbers float32 [count] of positions `first` and on, a function of stream and position alone."""
    blocks = np.arange(first // 4, (first + count - 1) // 4 + 1)[None]
    made = CounterRNG([stream], torch.device("cpu")).normals(blocks, 4).flatten()
    return made[first % 4 : first % 4 + count]


def is_snac(folder: Path) -> bool:
    """Whether a folder holds a SNAC in its published form."""
    return "vq_strides" in read_json(folder / "config.json")


def read_snac(folder: Path, device: str = "cpu") -> Snac:
    """The codec in a folder with `config.json` and `pytorch_model.bin`, as `hubertsiuzdak/snac_24khz` is published.

    Raises:
        ModelError: For missing or broken files, and for the variants with attention (32 and 44 kHz), which decode whole
            attention windows only.
    """
    config = read_json(folder / "config.json")
    if missing := [name for name in REQUIRED if name not in config]:
        raise ModelError(f"codec {str(folder)!r} is not a SNAC: config.json has no {missing[0]!r}")
    if config.get("attn_window_size") is not None:
        raise ModelError(
            f"codec {str(folder)!r} has attn_window_size={config['attn_window_size']}, which is not supported; take "
            "hubertsiuzdak/snac_24khz"
        )
    file = folder / "pytorch_model.bin"
    strides = config["vq_strides"]
    if not isinstance(strides, list) or not all(isinstance(n, int) and 1 <= n <= MAX_STRIDE for n in strides):
        raise ModelError(f"codec {str(folder)!r} has vq_strides={strides!r}; they must be integers, 1 to {MAX_STRIDE}")
    state = read_tensors(file, "codec")
    with building(f"codec '{file}'", "a SNAC as config.json describes"):
        model = SnacModel(config)
    wanted = model.state_dict()
    if missing := [name for name in wanted if name not in state]:
        raise ModelError(f"codec '{file}' is incomplete; {listed({'missing': missing})}")
    # The file has an encoder, and projections to codes, that decoding does not need.
    check_tensors(f"codec '{file}'", {name: state[name] for name in wanted}, model)
    model.load_state_dict({name: state[name].float() for name in wanted}, assign=True)
    for layer in model.modules():
        if isinstance(layer, (nn.Conv1d, nn.ConvTranspose1d)):
            remove_parametrizations(layer, "weight")
    return Snac(model.to(device).eval(), int(config["sampling_rate"]), list(config["vq_strides"]))
