"""The discrete video tokenizer of Cosmos: `encoder.jit` and `decoder.jit` as published, in TorchScript."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.errors import ModelError
from mmspec.vision.hf.cosmos_decoder import CODES, FILE, read_script

ENCODER = "encoder.jit"
VIDEO_FRAMES = 33  # of the published tokenizer


class VideoTokenizer(nn.Module):
    """Frames to codes and back.

    Args:
        encoder: Takes pixels [B, 3, F, H, W] in -1..1 and returns codes [B, T, h, w] first; None if it is missing.
        decoder: Takes codes int64 [B, T, h, w] and returns pixels [B, 3, F, H, W] in -1..1.
        frames: Frames of a video, F.
        factor: Pixels per code, along a side.

    Attributes:
        vocab_size: The number of codes.
    """

    vocab_size = CODES

    def __init__(
        self, encoder: nn.Module | None, decoder: nn.Module, frames: int = VIDEO_FRAMES, factor: int = 16
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.frames = frames
        self.factor = factor

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.decoder.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return next(self.decoder.parameters()).dtype

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """The codes int64 [B, T, h, w] of pixels [B, 3, F, H, W] in -1..1.

        Raises:
            ModelError: If the encoder is missing.
        """
        if self.encoder is None:
            raise ModelError(f"tokenizer has no {ENCODER}, which reads frames; load it from a folder with that file")
        codes: Tensor = self.encoder(pixels.to(self.device, self.dtype))[0]
        return codes.long()

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """The pixels float32 [B, 3, F, H, W] in about -1..1 of codes int64 [B, T, h, w]."""
        pixels: Tensor = self.decoder(codes.to(self.device))
        return pixels.float()


def load_video_tokenizer(path: Path) -> VideoTokenizer:
    """The tokenizer in a folder with `decoder.jit` and, to read frames, `encoder.jit`, in bfloat16 as published.

    Raises:
        ModelError: If a file cannot be read.
    """
    folder = path if path.is_dir() else path.parent
    encoder = read_script(folder / ENCODER) if (folder / ENCODER).is_file() else None
    return VideoTokenizer(encoder, read_script(folder / FILE), VIDEO_FRAMES)


def save_video_tokenizer(tokenizer: VideoTokenizer, folder: Path) -> None:
    """Writes `decoder.jit` and, if there is one, `encoder.jit`, for `load_video_tokenizer`.

    Parts that are no TorchScript, which cannot be written, are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in ((ENCODER, tokenizer.encoder), (FILE, tokenizer.decoder)):
        if isinstance(part, torch.jit.ScriptModule):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # TorchScript is deprecated; the published files are in it
                torch.jit.save(part, str(folder / name))
