"""VAR's tokenizer: an image is the sum of token maps of growing size; its decoder is that of VQGAN.

Of the published file only what decoding needs is loaded: the codebook, the convolutions of the maps, and the decoder.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.models.autoencoders.vae import Decoder
from torch import Tensor, nn

_SHARE = 0.5  # of a map's convolution in what is added to the image


class VARTokenizer(ModelMixin, ConfigMixin):
    """Codebook and decoder.

    Args:
        sides: Tokens per side of each map, ascending.
        vocab_size: V.
        code_dim: C, numbers per code.
        channels: Channels of the decoder by level, the image's first.
        blocks: Residual blocks per level of the encoder; the decoder has one more.
        convolutions: Number of convolutions that the maps share.
        groups: Groups of the decoder's norms.
    """

    config_name = "config.json"

    @register_to_config
    def __init__(
        self,
        sides: Sequence[int],
        vocab_size: int = 4096,
        code_dim: int = 32,
        channels: Sequence[int] = (160, 160, 320, 320, 640),
        blocks: int = 2,
        convolutions: int = 4,
        groups: int = 32,
    ) -> None:
        super().__init__()
        self.sides = tuple(sides)
        self.embedding = nn.Embedding(vocab_size, code_dim)
        self.quant_resi = nn.ModuleList(nn.Conv2d(code_dim, code_dim, 3, padding=1) for _ in range(convolutions))
        self.post_quant_conv = nn.Conv2d(code_dim, code_dim, 3, padding=1)
        self.decoder = Decoder(
            in_channels=code_dim,
            out_channels=3,
            up_block_types=("AttnUpDecoderBlock2D", *("UpDecoderBlock2D",) * (len(channels) - 1)),
            block_out_channels=tuple(channels),
            layers_per_block=blocks,
            norm_num_groups=groups,
        )

    def added(self, index: int, tokens: Tensor) -> Tensor:
        """What a map adds to the latent image, float32 [B, C, side, side] of the largest map.

        Args:
            index: The map.
            tokens: int64 [B, n * n].
        """
        side, largest = self.sides[index], self.sides[-1]
        h = self.embedding(tokens).float().transpose(1, 2).unflatten(2, (side, side))
        if index < len(self.sides) - 1:
            h = F.interpolate(h, size=(largest, largest), mode="bicubic")
        mixed: Tensor = self.quant_resi[self._convolution(index)](h.to(self.dtype))
        return h * (1 - _SHARE) + mixed.float() * _SHARE

    def _convolution(self, index: int) -> int:
        """The convolution of a map: the one whose center in 0..1 is nearest to the map's place."""
        count = len(self.quant_resi)
        edge = 1 / 3 / count if count == 4 else 1 / 2 / count
        place = index / max(len(self.sides) - 1, 1)
        return int(np.argmin(np.abs(np.linspace(edge, 1 - edge, count) - place)))

    def input_of(self, index: int, image: Tensor) -> Tensor:
        """The input of a map, float32 [B, n * n, C], from the latent image of the maps before it."""
        side = self.sides[index]
        return F.interpolate(image, size=(side, side), mode="area").flatten(2).transpose(1, 2)

    def empty(self, batch_size: int) -> Tensor:
        """The latent image before the first map, zeros float32 [B, C, side, side]."""
        side = self.sides[-1]
        return torch.zeros(batch_size, self.config.code_dim, side, side, device=self.device)

    def latents(self, tokens: Tensor) -> Tensor:
        """The latent image of the maps int64 [B, L], concatenated; those that are missing, or -1, add nothing."""
        image, first = self.empty(len(tokens)), 0
        for index, side in enumerate(self.sides):
            if first + side**2 > tokens.shape[1]:
                break
            tokens_of_map = tokens[:, first : first + side**2]
            known = (tokens_of_map >= 0).all(1)[:, None, None, None]
            image = image + self.added(index, tokens_of_map.clamp(min=0)) * known
            first += side**2
        return image

    def pixels(self, image: Tensor) -> Tensor:
        """Images float32 [B, 3, H, W] in -1..1 of latent images."""
        out: Tensor = self.decoder(self.post_quant_conv(image.to(self.dtype)))
        return out.float().clamp(-1, 1)
