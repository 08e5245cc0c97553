"""The decoder of the discrete Cosmos tokenizer, which SimpleAR uses: `decoder.jit` as published, in TorchScript."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.errors import ModelError
from mmspec.files.checkpoint import describe

FILE = "decoder.jit"
# The product of the quantizer's levels (8, 8, 8, 5, 5, 5).
CODES = 64000


def is_cosmos(path: Path) -> bool:
    """Whether a path is a TorchScript file, or a folder with `decoder.jit`."""
    return path.suffix == ".jit" or (path / FILE).is_file()


class CosmosDecoder(nn.Module):
    """Codes to pixels, for single images: one frame of a video.

    Args:
        script: Takes codes int64 [B, frames, h, w] and returns pixels [B, 3, frames, H, W] in -1..1.

    Attributes:
        vocab_size: The number of codes.
    """

    vocab_size = CODES

    def __init__(self, script: nn.Module) -> None:
        super().__init__()
        self.script = script

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.script.parameters()).device

    @torch.no_grad()
    def decode_grid(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Pixels [B, 3, H, W] of codes int64 [B, h * w] in raster order."""
        pixels: Tensor = self.script(tokens.unflatten(1, grid)[:, None])
        return pixels[:, :, 0]


def load_cosmos(path: Path) -> CosmosDecoder:
    """The decoder in a TorchScript file, or in a folder with `decoder.jit`, in bfloat16 as its own code runs it.

    Raises:
        ModelError: If the file cannot be read.
    """
    return CosmosDecoder(read_script(path if path.suffix == ".jit" else path / FILE))


def read_script(file: Path) -> nn.Module:
    """The module in a TorchScript file, in bfloat16.

    Raises:
        ModelError: If the file cannot be read.
    """
    try:
        with warnings.catch_warnings():
            for category in (DeprecationWarning, FutureWarning):  # of TorchScript, which the file is in
                warnings.filterwarnings("ignore", category=category)
            script: nn.Module = torch.jit.load(str(file), map_location="cpu")
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"tokenizer {str(file)!r} cannot be loaded: {describe(error)}") from None
    return script.to(torch.bfloat16).eval()
