"""The decoder that LFM2.5-Audio comes with: a small LFM2 over codes, whose states are spectra; 24 kHz.

A frame is six steps of the LFM2, of which each attends to the latest ones. A step is a spectrum, and spectra become
audio by an inverse Fourier transform without padding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Lfm2Config, Lfm2Model
from transformers.models.lfm2.modeling_lfm2 import Lfm2RotaryEmbedding

from mmspec.audio.codec import CodecStream, OverlapStream
from mmspec.audio.config_file import integer_in
from mmspec.audio.models.flat.short_convolutions import ShortConvolutionLayers
from mmspec.decoding.attention_masks import additive_mask
from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_depths, load_tensors, read_model_tensors
from mmspec.hf.cache_name import run_decoder
from mmspec.hf.folder import BUFFERS, read_json
from mmspec.hf.slot_cache import SlotCache

FOLDER = "audio_detokenizer"
STEPS = 6  # per frame
OVERLAP = 4  # spectra that a sample is in, as a rule


class DetokenizerModel(nn.Module):
    """The modules, with the published names.

    Args:
        config: Of the LFM2, in which all layers without a convolution attend to the latest `window` steps.
        window: Their number.
        codes: Codes of all codebooks.
        bins: Of a spectrum.
    """

    window: Tensor

    def __init__(self, config: Lfm2Config, window: int, codes: int, bins: int) -> None:
        super().__init__()
        self.emb = nn.ModuleDict({"emb": nn.Embedding(codes, config.hidden_size)})
        self.lfm: Any = Lfm2Model(config)
        del self.lfm.embed_tokens
        self.lin = nn.Linear(config.hidden_size, 2 * bins)
        self.steps, self.size = window, 2 * (bins - 1)
        self.register_buffer("window", torch.hann_window(self.size), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Audio float32 [B, F * hop] of ids int64 [B, K, F] among those of all codebooks."""
        x = self.emb["emb"](ids).mean(1).repeat_interleave(STEPS, dim=1)
        step = torch.arange(x.shape[1], device=x.device)
        back = step[:, None] - step
        mask = additive_mask(((back >= 0) & (back < self.steps))[None], x.dtype)
        cache = SlotCache(len(step))
        cache.at(0, len(step))
        x = run_decoder(ShortConvolutionLayers(self.lfm), x, mask, step[None], cache)
        size, angle = self.lin(x).transpose(1, 2).chunk(2, dim=1)
        pieces = torch.fft.irfft(torch.polar(size.exp(), angle), self.size, dim=1) * self.window[:, None]
        weight = self.window.square()[None, :, None].expand(1, -1, pieces.shape[2])
        hop = self.size // OVERLAP
        cut = (self.size - hop) // 2
        return (overlapped(pieces, hop) / overlapped(weight, hop))[:, cut:-cut]


def overlapped(pieces: Tensor, hop: int) -> Tensor:
    """The sum [B, n] of pieces [B, size, N], each `hop` places after the one before."""
    size, count = pieces.shape[1:]
    summed = F.fold(pieces, (1, (count - 1) * hop + size), (1, size), stride=(1, hop))
    return summed[:, 0, 0]


class Detokenizer:
    """The decoder as a codec.

    Args:
        codebooks: K.
    """

    sampling_rate, channels = 24000, 1

    def __init__(self, model: DetokenizerModel, codebooks: int) -> None:
        table = model.emb["emb"].weight
        assert isinstance(table, Tensor)
        self._model, self._table, self.codebooks = model, table, codebooks
        self.codebook_size, self.hop = len(table) // codebooks, STEPS * model.size // OVERLAP

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        if not codes.shape[-1]:
            return torch.empty(len(codes), 1, 0)
        offsets = self.codebook_size * torch.arange(self.codebooks, device=self._table.device)
        audio: Tensor = self._model(codes.to(self._table.device) + offsets[:, None])
        return audio[:, None].float()

    def stream(self) -> CodecStream:
        config, layers = self._model.lfm.config, list(self._model.lfm.layers)
        attend = sum(layer.is_attention_layer for layer in layers)
        steps = attend * (self._model.steps - 1) + (len(layers) - attend) * (config.conv_L_cache - 1)
        # A sample is also in the spectra of two steps before its own and two after it.
        return OverlapStream(self, -(-(steps + 2) // STEPS), 1)

    def tables(self) -> list[Tensor]:
        return list(self._table.detach().float().chunk(self.codebooks))


def read_detokenizer(folder: Path, codebooks: int, device: str) -> Detokenizer:
    """The decoder in a published folder.

    Args:
        folder: Contains `config.json` and the weights.
        codebooks: K, of the model.

    Raises:
        ModelError: If files are missing, damaged or of another model.
    """
    what, found, state = f"codec {str(folder)!r}", read_json(folder / "config.json"), read_model_tensors(folder)
    check_depths(what, found, len(state))
    window = integer_in(found, what, "sliding_window", 30, least=1)
    kinds = found.get("layer_types")
    if isinstance(kinds, list):  # a window has a name of its own there
        found = {**found, "layer_types": ["full_attention" if kind == "sliding_attention" else kind for kind in kinds]}
    with building(what, "a decoder of LFM2.5-Audio"):
        codes, bins = len(state["emb.emb.weight"]), len(state["lin.weight"]) // 2
        if codes % codebooks or bins < 2 or 2 * (bins - 1) % (2 * OVERLAP):
            raise ModelError(f"{what} has {codes} codes for {codebooks} codebooks, and spectra of {bins} bins")
        model = DetokenizerModel(Lfm2Config(**found), window, codes, bins)
    unused = ("istft.window", "lfm.embed_tokens.weight")
    used = {name: value for name, value in state.items() if name not in unused and not BUFFERS.search(name)}
    load_tensors(what, used, model, device, torch.float32)
    model.lfm.rotary_emb = Lfm2RotaryEmbedding(model.lfm.config).to(device)  # not in the files, like the window
    model.window = torch.hann_window(model.size, device=device)
    return Detokenizer(model.requires_grad_(False).eval(), codebooks)
