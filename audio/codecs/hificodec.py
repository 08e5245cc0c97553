"""HiFi-Codec (Yang et al. 2023, arXiv 2305.02765): residual codes of groups, decoded by a HiFi-GAN.

A vector of 512 numbers is cut into G groups, each with a codebook of its own; a second layer of G codebooks codes what
is left. A frame has the G codes of the first layer, then those of the second. Source: `yangdongchao/AcademiCodec` at
b6ac134 (MIT, by its readme). The encoder is not loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from mmspec.audio.codec import CodecStream
from mmspec.audio.codecs.convolution import receptive_field
from mmspec.audio.codecs.overlap_graphs import overlap_stream
from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_tensors, read_weights
from mmspec.hf.folder import read_json

WIDTH, LAYERS, SLOPE = 512, 2, 0.1  # the published code has no others
PARTS = ("quantizer", "generator")
REQUIRED = (
    "n_code_groups", "n_codes", "sampling_rate", "resblock", "upsample_rates", "upsample_kernel_sizes",
    "upsample_initial_channel", "resblock_kernel_sizes", "resblock_dilation_sizes",
)  # fmt: skip
WEIGHT_PARTS = {".weight_g": ".parametrizations.weight.original0", ".weight_v": ".parametrizations.weight.original1"}


class HiFiCodec:
    """A HiFi-Codec as a codec, of 2 G codebooks.

    Args:
        model: The codebooks and the generator, see `read_hificodec`.
        sampling_rate: Samples per second.
    """

    channels = 1

    def __init__(self, model: HiFiCodecModel, sampling_rate: int) -> None:
        self._model = model
        self.sampling_rate = sampling_rate
        self.hop = model.generator.hop
        self.codebooks = LAYERS * model.groups
        self.codebook_size = model.codes

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        audio: Tensor = self._model(codes.to(self._model.books()[0].device))
        return audio.float()

    def stream(self) -> CodecStream:
        overlap = receptive_field(self._model.generator) // 2 + 1  # on each side: all convolutions are centered
        return overlap_stream(self, self._model, overlap, overlap)

    def tables(self) -> list[Tensor]:
        return [book.detach().float() for book in self._model.books()]


class HiFiCodecModel(nn.Module):
    """The codebooks and the generator, with the parameter names of the published parts."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.groups, self.codes = int(config["n_code_groups"]), int(config["n_codes"])

        def layer() -> nn.ModuleList:
            width = WIDTH // self.groups
            return nn.ModuleList(
                nn.ModuleDict({"embedding": nn.Embedding(self.codes, width)}) for _ in range(self.groups)
            )

        self.quantizer = nn.ModuleDict({"quantizer_modules": layer(), "quantizer_modules2": layer()})
        self.generator = Generator(config)

    def books(self) -> list[Tensor]:
        """The codebooks, each [codes, 512 / G], in the order of a frame's codes."""
        layers: list[Any] = [self.quantizer["quantizer_modules"], self.quantizer["quantizer_modules2"]]
        return [group["embedding"].weight for layer in layers for group in layer]

    def forward(self, codes: Tensor) -> Tensor:
        """Audio [B, 1, F * hop] of codes int64 [B, 2 G, F]."""
        found = [F.embedding(codes[:, k], book) for k, book in enumerate(self.books())]
        layers = (torch.cat(found[i : i + self.groups], dim=-1) for i in (0, self.groups))
        audio: Tensor = self.generator(sum(layers).transpose(1, 2))  # type: ignore[union-attr]
        return audio


class Generator(nn.Module):
    """HiFi-GAN (Kong et al. 2020, arXiv 2010.05646), from latents [B, 512, F] to audio [B, 1, F * hop]."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        rates, kernels = config["upsample_rates"], config["upsample_kernel_sizes"]
        units = list(zip(config["resblock_kernel_sizes"], config["resblock_dilation_sizes"], strict=True))
        width, self.hop, self.units = int(config["upsample_initial_channel"]), math.prod(rates), len(units)
        self.conv_pre = conv(WIDTH, width, 7, 1)
        self.ups, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for rate, kernel in zip(rates, kernels, strict=True):
            up = nn.ConvTranspose1d(width, width // 2, kernel, rate, padding=(kernel - rate) // 2)
            self.ups.append(weight_norm(up))
            width //= 2
            twice = str(config["resblock"]) == "1"
            self.resblocks.extend(ResidualBlock(width, kernel, dilations, twice) for kernel, dilations in units)
        self.conv_post = conv(width, 1, 7, 1)

    def forward(self, latents: Tensor) -> Tensor:
        x = self.conv_pre(latents)
        for i, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, SLOPE))
            blocks = self.resblocks[i * self.units : (i + 1) * self.units]
            x = torch.stack([block(x) for block in blocks]).mean(0)
        audio: Tensor = self.conv_post(F.leaky_relu(x, SLOPE)).tanh()
        return audio


class ResidualBlock(nn.Module):
    """Dilated convolutions, each with a residual connection, and each followed by a plain one if `twice`."""

    def __init__(self, width: int, kernel: int, dilations: Sequence[int], twice: bool) -> None:
        super().__init__()
        first = nn.ModuleList(conv(width, width, kernel, dilation) for dilation in dilations)
        self.twice = twice
        if twice:
            self.convs1 = first
            self.convs2 = nn.ModuleList(conv(width, width, kernel, 1) for _ in dilations)
        else:
            self.convs = first

    def forward(self, x: Tensor) -> Tensor:
        pairs = zip(self.convs1, self.convs2, strict=True) if self.twice else ((each,) for each in self.convs)
        for layers in pairs:
            hidden = x
            for layer in layers:
                hidden = layer(F.leaky_relu(hidden, SLOPE))
            x = x + hidden
        return x


def conv(wide: int, narrow: int, kernel: int, dilation: int) -> nn.Module:
    """A convolution that keeps the length, with weight normalization as in the published state."""
    padding = (kernel * dilation - dilation) // 2
    return weight_norm(nn.Conv1d(wide, narrow, kernel, padding=padding, dilation=dilation))


def config_of(folder: Path) -> Path | None:
    """The configuration of a HiFi-Codec in a folder, such as `config_24k_320d.json`; None if there is none."""
    files = sorted(folder.glob("config_*d.json"))
    return next((file for file in files if "n_code_groups" in read_json(file)), None)


def as_list(value: Any) -> list[Any]:
    """A list as it is, or one with another value."""
    return value if isinstance(value, list) else [value]


def read_hificodec(folder: Path, device: str = "cpu") -> HiFiCodec:
    """The codec in a folder with the published configuration and its checkpoint, such as `HiFi-Codec-24k-320d`.

    Raises:
        ModelError: For missing or broken files.
    """
    file = config_of(folder)
    if file is None:
        raise ModelError(f"codec {str(folder)!r} is not a HiFi-Codec: it has no config_*d.json with 'n_code_groups'")
    config = read_json(file)
    if missing := [name for name in REQUIRED if name not in config]:
        raise ModelError(f"codec {str(folder)!r} is not a HiFi-Codec: {file.name} has no {missing[0]!r}")
    sizes = config["sampling_rate"], *as_list(config["upsample_rates"]), *as_list(config["upsample_kernel_sizes"])
    odd = any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes)
    pairs = zip(as_list(config["upsample_kernel_sizes"]), as_list(config["upsample_rates"]), strict=False)
    if odd or any(kernel < rate or (kernel - rate) % 2 for kernel, rate in pairs):
        raise ModelError(
            f"codec {str(folder)!r} is not a HiFi-Codec: sampling_rate, upsample_rates and upsample_kernel_sizes of "
            f"{file.name} must be integers above 0, and kernels longer than their rates by an even number"
        )
    found = sorted(folder.glob("HiFi-Codec*"))
    if len(found) != 1:
        raise ModelError(f"codec {str(folder)!r} must have one checkpoint HiFi-Codec*, and has {len(found)}")
    content, what = read_weights(found[0], "codec"), f"codec '{found[0]}'"
    parts = {name: content.get(name) if isinstance(content, dict) else None for name in PARTS}
    state = dict[str, Tensor]()
    for part, tensors in parts.items():
        if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
            raise ModelError(f"{what} is not a HiFi-Codec: it has no {part!r} of tensors")
        for name, value in tensors.items():
            stem, dot, leaf = str(name).rpartition(".")
            state[f"{part}.{stem}{WEIGHT_PARTS.get(dot + leaf, dot + leaf)}"] = value
    with building(what, f"a HiFi-Codec as {file.name} describes"):
        model = HiFiCodecModel(config)
    check_tensors(what, state, model)
    model.load_state_dict({name: value.float() for name, value in state.items()}, assign=True)
    for layer in model.modules():
        if isinstance(layer, (nn.Conv1d, nn.ConvTranspose1d)):
            remove_parametrizations(layer, "weight")
    return HiFiCodec(model.to(device).eval(), int(config["sampling_rate"]))
