"""SNAC (Siuzdak et al. 2024, arXiv 2410.14411): residual codes of several rates, convolutions that look both ways.

transformers has no class of it. The decoder and the codebooks are read from the published files, `config.json` and
`pytorch_model.bin`; what encodes is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from mmspec.audio.codec import CodecStream, OverlapStream
from mmspec.audio.codecs.convolution import reach
from mmspec.errors import ModelError
from mmspec.hf.folder import read_json
from mmspec.sampling.rng import CounterRNG

BROKEN = (OSError, RuntimeError, TypeError, ValueError, EOFError, UnpicklingError, BadZipFile)
NEEDED = ("sampling_rate", "decoder_dim", "decoder_rates", "codebook_size", "codebook_dim", "vq_strides")


class Snac:
    """A SNAC as a codec. A frame is one of its coarsest codebook, and the finer codes of that time as well.

    With strides 4, 2, 1 there are 7 codes in a frame: a coarse one; then, for each half of the frame, one of the second
    codebook and both of the third. That is the order in which Orpheus writes them.

    Its layers add noise to what they make. Here it belongs to the place in the sound, so that codes have one sound.

    Args:
        model: What `read_snac` reads.
        sampling_rate: Samples per second.
        strides: Of each codebook, in the finest frames.
    """

    channels = 1

    def __init__(self, model: SnacDecoder, sampling_rate: int, strides: Sequence[int]) -> None:
        self._model = model
        self._strides = strides
        self._slots = slots(strides)
        self.sampling_rate = sampling_rate
        self.hop = model.decoder.hop * strides[0]
        self.codebooks = len(self._slots)
        self.codebook_size = model.quantizer.quantizers[0].codebook.num_embeddings

    def decode(self, codes: Tensor) -> Tensor:
        return self.sound(codes, 0)

    def stream(self) -> CodecStream:
        # Half of what it looks at lies on each side; a frame of ours is several of the decoder's.
        far = -(-(reach(self._model.decoder) // 2 + 1) // self._strides[0])
        return SnacStream(self, far)

    def tables(self) -> list[Tensor]:
        # Codes are compared as the decoder sees them: entries are projected from 8 dimensions to its own.
        books = [part.out_proj(part.codebook.weight.T[None])[0].T for part in self._model.quantizer.quantizers]
        return [books[book].detach().float() for book in self._slots]

    @torch.inference_mode()
    def sound(self, codes: Tensor, first: int) -> Tensor:
        """As `decode`, of frames whose first one is number `first` of the whole."""
        model, device = self._model, self._model.quantizer.quantizers[0].codebook.weight.device
        books = [
            torch.stack([codes[:, k] for k, own in enumerate(self._slots) if own == book], dim=-1).flatten(1)
            for book in range(len(self._strides))
        ]
        latents = model.quantizer([book.to(device) for book in books])
        return model.decoder(latents, first * self._strides[0]).float()


class SnacStream:
    """Decodes in overlapping parts. Frames carry their number, by which the noise of a part is found."""

    def __init__(self, codec: Snac, far: int) -> None:
        self._parts = OverlapStream(Numbered(codec), far, far)
        self._count = 0

    def push(self, codes: Tensor) -> Tensor:
        number = torch.arange(self._count, self._count + codes.shape[-1], device=codes.device)
        self._count += codes.shape[-1]
        return self._parts.push(torch.cat([codes, number.expand(len(codes), 1, -1)], dim=1))

    def finish(self) -> Tensor:
        return self._parts.finish()


class Numbered:
    """What `OverlapStream` runs: codes int64 [B, K + 1, F], of which the last row counts frames."""

    channels = 1

    def __init__(self, codec: Snac) -> None:
        self._codec = codec
        self.hop = codec.hop

    def decode(self, codes: Tensor) -> Tensor:
        return self._codec.sound(codes[:, :-1], int(codes[0, -1, 0]))


def slots(strides: Sequence[int]) -> list[int]:
    """Which codebook each code of a frame belongs to: a code, then what it is refined by, part by part."""

    def below(book: int) -> list[int]:
        if book + 1 == len(strides):
            return [book]
        return [book] + below(book + 1) * (strides[book] // strides[book + 1])

    return below(0)


class SnacDecoder(nn.Module):
    """The codebooks and the decoder, under the names of the published state."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        rates, strides = list(config["decoder_rates"]), list(config["vq_strides"])
        width = config.get("latent_dim") or config["encoder_dim"] * 2 ** len(config["encoder_rates"])
        size, dim = config["codebook_size"], config["codebook_dim"]
        self.quantizer = Quantizer(width, size, dim, strides)
        noise, depthwise = config.get("noise", True), config.get("depthwise", True)
        self.decoder = Decoder(width, config["decoder_dim"], rates, noise, depthwise)


class Quantizer(nn.Module):
    """Codes int64 [B, F / stride] of each codebook to latents [B, D, F]."""

    quantizers: Any

    def __init__(self, width: int, size: int, dim: int, strides: Sequence[int]) -> None:
        super().__init__()
        self.strides = strides
        self.quantizers = nn.ModuleList([Codes(width, size, dim) for _ in strides])

    def forward(self, books: Sequence[Tensor]) -> Tensor:
        parts = [
            part.out_proj(part.codebook(codes).transpose(1, 2)).repeat_interleave(stride, dim=-1)
            for part, codes, stride in zip(self.quantizers, books, self.strides, strict=True)
        ]
        return torch.stack(parts).sum(0)


class Codes(nn.Module):
    """One codebook, and what projects its entries."""

    def __init__(self, width: int, size: int, dim: int) -> None:
        super().__init__()
        self.out_proj = conv(dim, width, 1)
        self.codebook = nn.Embedding(size, dim)


class Decoder(nn.Module):
    """Latents [B, D, F] to sound [B, 1, F * hop]."""

    def __init__(self, width: int, channels: int, rates: Sequence[int], noise: bool, depthwise: bool) -> None:
        super().__init__()
        self.hop = math.prod(rates)
        layers: list[nn.Module] = [conv(width, width, 7, width), conv(width, channels, 1)]
        if not depthwise:
            layers = [conv(width, channels, 7)]
        for rate in rates:
            channels //= 2
            layers.append(Upsample(2 * channels, channels, rate, noise, channels if depthwise else 1))
        self.model = nn.Sequential(*layers, Snake(channels), conv(channels, 1, 7), nn.Tanh())

    def forward(self, latents: Tensor, first: int) -> Tensor:
        """`first` is the number of the first frame."""
        hidden, place = latents, first
        for i, layer in enumerate(self.model):
            if isinstance(layer, Upsample):
                place *= layer.rate
                hidden = layer(hidden, place, i)
            else:
                hidden = layer(hidden)
        return hidden


class Upsample(nn.Module):
    """`rate` samples of every one, noise on them, three residual units."""

    def __init__(self, wide: int, narrow: int, rate: int, noise: bool, groups: int) -> None:
        super().__init__()
        self.rate = rate
        up = nn.ConvTranspose1d(wide, narrow, 2 * rate, rate, math.ceil(rate / 2), output_padding=rate % 2)
        added = [NoiseLayer(narrow)] if noise else []
        units = [Unit(narrow, dilation, groups) for dilation in (1, 3, 9)]
        self.block = nn.Sequential(Snake(wide), weight_norm(up), *added, *units)

    def forward(self, x: Tensor, place: int, stream: int) -> Tensor:
        """`place` is the number of the first sample that comes out; `stream` tells noises apart."""
        for layer in self.block:
            x = layer(x, place, stream) if isinstance(layer, NoiseLayer) else layer(x)
        return x


class NoiseLayer(nn.Module):
    """Noise that is as loud as the layer says, the same in all channels and rows."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = weight_norm(nn.Conv1d(channels, channels, 1, bias=False))

    def forward(self, x: Tensor, place: int, stream: int) -> Tensor:
        return x + normals(stream, place, x.shape[-1]).to(x) * self.linear(x)


class Unit(nn.Module):
    """A residual unit."""

    def __init__(self, channels: int, dilation: int, groups: int) -> None:
        super().__init__()
        first = nn.Conv1d(channels, channels, 7, padding=3 * dilation, dilation=dilation, groups=groups)
        self.block = nn.Sequential(Snake(channels), weight_norm(first), Snake(channels), conv(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class Snake(nn.Module):
    """x + sin(alpha x)**2 / alpha (Ziyin et al. 2020)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.alpha * x).sin().square() / (self.alpha + 1e-9)


def conv(wide: int, narrow: int, kernel: int, groups: int = 1) -> nn.Module:
    """A convolution that keeps the length, its weights in parts of length and direction as they are published."""
    return weight_norm(nn.Conv1d(wide, narrow, kernel, padding=kernel // 2, groups=groups))


def normals(stream: int, first: int, count: int) -> Tensor:
    """Standard normal numbers float32 [count] of places `first` and on, whoever asks."""
    blocks = np.arange(first // 4, (first + count - 1) // 4 + 1)[None]
    made = CounterRNG([stream], torch.device("cpu")).normals(blocks, 4).flatten()
    return made[first % 4 : first % 4 + count]


def is_snac(folder: Path) -> bool:
    """Whether a folder holds a published SNAC."""
    return "vq_strides" in read_json(folder / "config.json")


def read_snac(folder: Path, device: str = "cpu") -> Snac:
    """The codec in a folder with `config.json` and `pytorch_model.bin`, as `hubertsiuzdak/snac_24khz` is published.

    Raises:
        ModelError: For files that are not what they claim to be, and for the variants with attention (32 and 44 kHz),
            which know no sound but in whole windows of theirs.
    """
    config = read_json(folder / "config.json")
    if missing := [name for name in NEEDED if name not in config]:
        raise ModelError(f"codec {str(folder)!r} is no SNAC: config.json has no {missing[0]!r}")
    if config.get("attn_window_size") is not None:
        raise ModelError(
            f"codec {str(folder)!r} has attn_window_size={config['attn_window_size']}, which is not supported; take "
            "hubertsiuzdak/snac_24khz"
        )
    file = folder / "pytorch_model.bin"
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        model = SnacDecoder(config)
        wanted = model.state_dict()
        model.load_state_dict({name: state[name] for name in wanted})
    except KeyError as error:
        raise ModelError(f"codec '{file}' is incomplete; missing: {error.args[0]}") from None
    except BROKEN as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"codec '{file}' cannot be loaded: {type(error).__name__}: {reason}") from None
    for layer in model.modules():
        if isinstance(layer, (nn.Conv1d, nn.ConvTranspose1d)):
            remove_parametrizations(layer, "weight")
    return Snac(model.to(device).eval(), int(config["sampling_rate"]), list(config["vq_strides"]))
