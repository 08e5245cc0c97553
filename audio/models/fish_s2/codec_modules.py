"""The modules of Fish Audio S2 Pro's codec: causal convolutions, residual codebooks, and transformers around them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCode2WavTransformerModel,
    Qwen3OmniMoeConvNeXtBlock,
)

from mmspec.audio.codecs.qwen3_tts import TransposedConvolution
from mmspec.audio.codecs.snac import Snake
from mmspec.audio.codecs.streamed_layers import SlidingKeys
from mmspec.audio.rounded_rotary import RoundedRotary

HEAD = 64  # dimensions of an attention head
ENCODER_WINDOW, WINDOW = 512, 128  # positions that the transformers see, in the encoder and beside the quantizer
ROPE_BASE, NORM_EPS = 10000.0, 1e-5
DILATIONS = (1, 3, 9)


@dataclass(frozen=True)
class Block:
    """A block of the encoder or the decoder.

    Attributes:
        before: Width of its inputs.
        after: Width of its outputs.
        rate: By which it lowers or raises the rate.
        layers: Of the transformer at its end.
        inner: The width inside these layers.
    """

    before: int
    after: int
    rate: int
    layers: int = 0
    inner: int = 1


@dataclass(frozen=True)
class Sizes:
    """The sizes of a codec, which its tensors show.

    Attributes:
        encoder: The blocks of the encoder.
        decoder: The blocks of the decoder.
        latent: Width of what is quantized.
        rates: By which the quantizer lowers the rate, step by step.
        books: Codes of each codebook.
        book: Width of the vectors in the codebooks.
        layers: Of the transformers before and after the quantizer.
        inner: The widths inside these layers.
    """

    encoder: Sequence[Block]
    decoder: Sequence[Block]
    latent: int
    rates: Sequence[int]
    books: Sequence[int]
    book: int
    layers: tuple[int, int]
    inner: tuple[int, int]


def read_sizes(state: Mapping[str, Tensor]) -> Sizes:
    """The sizes of a codec with these tensors, as `FishCodecModel` names them.

    Raises:
        KeyError, IndexError, ZeroDivisionError: If it is no such codec.
    """

    def shape(name: str) -> torch.Size:
        return state[name].shape

    def count(prefix: str, rest: str) -> int:
        return next(n for n in range(len(state) + 1) if f"{prefix}{n}{rest}" not in state)

    def inner(prefix: str) -> tuple[int, int]:
        layers = count(prefix + ".body.layers.", ".mlp.up_proj.weight")
        return layers, shape(f"{prefix}.body.layers.0.mlp.up_proj.weight")[0] if layers else 1

    encoder, decoder = list[Block](), list[Block]()
    while (down := f"encoder.{len(encoder) + 1}.4.conv.weight") in state:
        after, before, kernel = shape(down)
        encoder.append(Block(before, after, kernel // 2, *inner(f"encoder.{len(encoder) + 1}.5")))
    while (up := f"decoder.{len(decoder) + 1}.1.conv.weight") in state:
        before, after, kernel = shape(up)
        decoder.append(Block(before, after, kernel // 2))
    books = count("quantizer.codebooks.", ".codebook.weight")
    tables = [shape(f"quantizer.codebooks.{n}.codebook.weight") for n in range(books)]
    rates = count("quantizer.downsample.", ".0.conv.weight")
    before_it, after_it = inner("quantizer.pre_module"), inner("quantizer.post_module")
    return Sizes(
        encoder,
        decoder,
        latent=shape(f"encoder.{len(encoder) + 2}.conv.weight")[0],
        rates=[shape(f"quantizer.downsample.{n}.0.conv.weight")[2] for n in range(rates)],
        books=[table[0] for table in tables],
        book=tables[0][1],
        layers=(before_it[0], after_it[0]),
        inner=(before_it[1], after_it[1]),
    )


class Transformer(nn.Module):
    """Causal layers that see a window: those of Qwen3-Omni's decoder, with rounded rotary embeddings.

    Args:
        width: Of its inputs and outputs, a multiple of 64.
        inner: Of its layers in between.
        layers: How many.
        window: Positions that each one sees.
    """

    def __init__(self, width: int, inner: int, layers: int, window: int) -> None:
        super().__init__()
        config = Qwen3OmniMoeCode2WavConfig(
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=width // HEAD,
            num_key_value_heads=width // HEAD,
            head_dim=HEAD,
            attention_bias=False,
            sliding_window=window,
            rms_norm_eps=NORM_EPS,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
        )
        self.body = Qwen3OmniMoeCode2WavTransformerModel(config)
        self.body.rotary_emb = RoundedRotary(config)

    def forward(self, x: Tensor, keys: SlidingKeys | None = None) -> Tensor:
        """Positions [B, width, n], which with `keys` follow those of the last call, to as many outputs."""
        inputs = x.transpose(1, 2)
        out = self.body(inputs_embeds=inputs, **({"use_cache": False} if keys is None else keys.next(inputs)))
        hidden: Tensor = out.last_hidden_state
        return hidden.transpose(1, 2)


class ResidualUnit(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        wide = Qwen3OmniMoeCausalConvNet(width, width, 7, dilation)
        self.block = nn.Sequential(Snake(width), wide, Snake(width), Qwen3OmniMoeCausalConvNet(width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.block(x)
        return y


def encoder_of(blocks: Sequence[Block], latent: int) -> nn.Sequential:
    """Audio [B, 1, samples] to [B, latent, samples / product of the rates]."""
    layers: list[nn.Module] = [Qwen3OmniMoeCausalConvNet(1, blocks[0].before, 7)]
    for block in blocks:
        units = [ResidualUnit(block.before, dilation) for dilation in DILATIONS]
        down = Qwen3OmniMoeCausalConvNet(block.before, block.after, 2 * block.rate, stride=block.rate)
        seen = [Transformer(block.after, block.inner, block.layers, ENCODER_WINDOW)] if block.layers else []
        layers.append(nn.Sequential(*units, Snake(block.before), down, *seen))
    return nn.Sequential(*layers, Snake(blocks[-1].after), Qwen3OmniMoeCausalConvNet(blocks[-1].after, latent, 3))


def decoder_of(blocks: Sequence[Block], latent: int) -> nn.Sequential:
    """[B, latent, n] to audio [B, 1, n * product of the rates] in -1..1."""
    layers: list[nn.Module] = [Qwen3OmniMoeCausalConvNet(latent, blocks[0].before, 7)]
    for block in blocks:
        up = TransposedConvolution(block.before, block.after, 2 * block.rate, block.rate)
        units = [ResidualUnit(block.after, dilation) for dilation in DILATIONS]
        layers.append(nn.Sequential(Snake(block.before), up, *units))
    width = blocks[-1].after
    return nn.Sequential(*layers, Snake(width), Qwen3OmniMoeCausalConvNet(width, 1, 7), nn.Tanh())


class Codebook(nn.Module):
    """A codebook whose vectors are compared by direction.

    Args:
        size: How many vectors.
        inner: Their width.
        width: The width of what is quantized.
    """

    def __init__(self, size: int, inner: int, width: int) -> None:
        super().__init__()
        self.in_proj, self.out_proj = nn.Conv1d(width, inner, 1), nn.Conv1d(inner, width, 1)
        self.codebook = nn.Embedding(size, inner)

    def nearest(self, latents: Tensor) -> Tensor:
        """The codes int64 [B, n] of latents [B, width, n]."""
        found = F.normalize(self.in_proj(latents).transpose(1, 2), dim=-1)
        codes: Tensor = (found @ F.normalize(self.codebook.weight, dim=-1).T).argmax(-1)
        return codes

    def table(self) -> Tensor:
        """What the codes stand for, [codes, width]."""
        projected: Tensor = self.out_proj(self.codebook.weight.T[None])
        return projected[0].T

    def forward(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, n] to vectors [B, width, n]; a code that does not exist counts as the last one."""
        known = codes.clamp(max=self.codebook.num_embeddings - 1)
        vectors: Tensor = self.out_proj(self.codebook(known).transpose(1, 2))
        return vectors


class Quantizer(nn.Module):
    """Residual codebooks at a lower rate, between two transformers.

    Args:
        sizes: The codec's.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.latent
        self.downsample = nn.Sequential(
            *(
                nn.Sequential(
                    Qwen3OmniMoeCausalConvNet(width, width, rate, stride=rate), Qwen3OmniMoeConvNeXtBlock(width)
                )
                for rate in sizes.rates
            )
        )
        self.upsample = nn.Sequential(
            *(
                nn.Sequential(TransposedConvolution(width, width, rate, rate), Qwen3OmniMoeConvNeXtBlock(width))
                for rate in reversed(sizes.rates)
            )
        )
        self.codebooks = nn.ModuleList(Codebook(size, sizes.book, width) for size in sizes.books)
        self.pre_module, self.post_module = (
            Transformer(width, inner, layers, WINDOW) for layers, inner in zip(sizes.layers, sizes.inner, strict=True)
        )

    def books(self) -> list[Codebook]:
        """The codebooks, coarse to fine."""
        return [book for book in self.codebooks if isinstance(book, Codebook)]

    def encode(self, latents: Tensor) -> Tensor:
        """Latents [B, width, n] of the encoder to codes int64 [B, K, F]."""
        rest, codes = self.pre_module(self.downsample(latents)), []
        for book in self.books():
            codes.append(book.nearest(rest))
            rest = rest - book(codes[-1])
        return torch.stack(codes, dim=1)

    def vectors(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, K, F] to what the transformer after the quantizer reads, [B, width, F]."""
        return torch.stack([book(codes[:, k]) for k, book in enumerate(self.books())]).sum(0)


class FishCodecModel(nn.Module):
    """Encoder, quantizer and decoder."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.hop = math.prod(block.rate for block in sizes.decoder) * math.prod(sizes.rates)
        self.encoder = encoder_of(sizes.encoder, sizes.latent)
        self.quantizer = Quantizer(sizes)
        self.decoder = decoder_of(sizes.decoder, sizes.latent)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device
