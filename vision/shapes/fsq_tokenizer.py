"""The image tokenizer of the shapes model: a small convolutional autoencoder with finite scalar quantisation (FSQ).

The encoder has no normalisation layers and, by default, reads one patch at a time, so that identical patches have
identical tokens; otherwise the transformer would have to learn every combination. The decoder also reads the neighbors
of a patch.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import nn
from torch.nn import functional as F

from mmspec.vision.component import Component, stores_arguments


class Residual(nn.Module):
    """A residual block over [B, C, h, w], initialised to the identity."""

    def __init__(self, channels: int, kernel: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, kernel, padding=kernel // 2)
        self.conv2 = nn.Conv2d(channels, channels, 1)
        for p in self.conv2.parameters():
            nn.init.zeros_(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv2(F.silu(self.conv1(F.silu(x))))


class FSQ(nn.Module):
    """Finite scalar quantisation: tanh, then rounding of each channel to its number of levels.

    A code in [0, prod(levels)) is the mixed-radix number of the levels of all channels, the first channel fastest.

    Args:
        levels: The number of levels of each channel.
    """

    levels: torch.Tensor
    strides: torch.Tensor

    def __init__(self, levels: tuple[int, ...]) -> None:
        super().__init__()
        sizes = torch.tensor(levels)
        strides = torch.cat([torch.ones(1, dtype=torch.long), sizes.cumprod(0)[:-1]])
        self.register_buffer("levels", sizes, persistent=False)
        self.register_buffer("strides", strides, persistent=False)

    def quantise(self, z: torch.Tensor) -> torch.Tensor:
        """Quantises features [..., D] to [-1, 1]; gradients are those of a straight-through estimator."""
        top = (self.levels - 1).to(z.dtype)
        scaled = (torch.tanh(z) + 1) / 2 * top  # [0, levels - 1]
        rounded = scaled + (scaled.round() - scaled).detach()
        return rounded / top * 2 - 1

    def to_codes(self, quantised: torch.Tensor) -> torch.Tensor:
        """Codes int64 [...] of quantised features [..., D]."""
        digits = ((quantised + 1) / 2 * (self.levels - 1)).round().long()
        return (digits * self.strides).sum(-1)

    def from_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """Quantised features float32 [..., D] of codes int64 [...]."""
        digits = (codes.unsqueeze(-1) // self.strides) % self.levels
        return digits.float() / (self.levels - 1) * 2 - 1


class FSQTokenizer(Component):
    """Encodes images [B, 3, H, W] in [-1, 1] to tokens int64 [B, H/4 * W/4] in raster order, and decodes them.

    Args:
        levels: Levels of each channel of the quantiser.
        vocab_size: The number of codes that are tokens; None for all.
        channels: Width of the layers.
        image_size: Pixels per side.
        kernel: Patches per side that each of the encoder's two residual blocks reads, an odd number.

    Attributes:
        book: int32 [vocab_size], the code of each token.
        factor: Pixels per side of a token.
        grid_size: Tokens per side of an image.
    """

    saved_as = "ShapesTokenizer"
    book: torch.Tensor

    @stores_arguments
    def __init__(
        self,
        levels: tuple[int, ...] = (5, 5, 5, 4, 4),
        vocab_size: int | None = None,
        channels: int = 96,
        image_size: int = 64,
        kernel: int = 1,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size or math.prod(levels)
        self.register_buffer("book", torch.arange(self.vocab_size, dtype=torch.int32))
        self._token_of: torch.Tensor | None = None
        self.factor = 4
        self.grid_size = image_size // self.factor
        self.fsq = FSQ(tuple(levels))
        half = channels // 2  # at half resolution; the full width is kept for the token grid
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(self.factor),
            nn.Conv2d(3 * self.factor**2, 2 * channels, 1),
            nn.SiLU(),
            nn.Conv2d(2 * channels, channels, 1),
            Residual(channels, kernel),
            Residual(channels, kernel),
            nn.SiLU(),
            nn.Conv2d(channels, len(levels), 1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(len(levels), channels, 3, padding=1),
            Residual(channels),
            Residual(channels),
            Residual(channels),
            nn.SiLU(),
            nn.Conv2d(channels, 4 * half, 1),
            nn.PixelShuffle(2),
            Residual(half),
            nn.SiLU(),
            nn.Conv2d(half, 12, 3, padding=1),
            nn.PixelShuffle(2),
        )

    @torch.no_grad()
    def reduced(self, used: torch.Tensor) -> Self:
        """The tokenizer restricted to the codes `used`, int64 [K], ascending."""
        arguments = {name: value for name, value in self.config.items() if not name.startswith("_")}
        model = type(self)(**arguments | {"vocab_size": len(used)})
        model.load_state_dict({**self.state_dict(), "book": used.int()})
        return model.eval()

    def token_of(self) -> torch.Tensor:
        """The token of each code, int64 [prod(levels)]: that of the nearest code in `book`."""
        if self._token_of is None or self._token_of.device != self.device:
            everything = torch.arange(int(self.fsq.levels.prod()), device=self.device)
            distance = torch.cdist(self.fsq.from_codes(everything), self.fsq.from_codes(self.book.long()))
            self._token_of = distance.argmin(1)
        return self._token_of

    def codebook(self) -> torch.Tensor:
        """The quantised features of each token, float32 [vocab_size, D]."""
        return self.fsq.from_codes(self.book.long())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Reconstructions of images [B, 3, H, W], for training; H and W are multiples of 4."""
        z = self.encoder(images).movedim(1, -1)
        return self.decoder(self.fsq.quantise(z.float()).movedim(-1, 1))

    @torch.no_grad()
    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Tokens int64 [B, N] of images [B, 3, H, W] in [-1, 1]."""
        z = self.encoder(images.to(self.dtype)).movedim(1, -1)
        return self.token_of()[self.fsq.to_codes(self.fsq.quantise(z.float()))].flatten(1)

    @torch.no_grad()
    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """Images [B, 3, H, W] in [-1, 1] of tokens int64 [B, N]."""
        grid = tokens.unflatten(1, (self.grid_size, self.grid_size))
        features = self.fsq.from_codes(self.book[grid].long()).to(self.dtype)
        return self.decoder(features.movedim(-1, 1)).clamp(-1, 1)
