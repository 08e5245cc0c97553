"""The codec of Fish Audio S2 Pro: a causal DAC with transformers, 21.5 frames of ten codes per second.

Its file `codec.pth` has no configuration beside it: widths, rates and depths are read off the tensors, and what they do
not show is constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.audio.codecs.stepped_stream import SteppedStream
from mmspec.audio.codecs.streamed_layers import SlidingKeys, StreamState, streamed
from mmspec.audio.models.fish_s2.codec_modules import HEAD, FishCodecModel, read_sizes
from mmspec.audio.models.fish_s2.model import NAMES, halves
from mmspec.files.checkpoint import building, check_tensors, read_tensors

FILE = "codec.pth"
SAMPLING_RATE = 44100
CHUNK = 300  # frames that are decoded at a time
BUFFERS = (".freqs_cis", ".causal_mask")  # functions of the sizes, which the file has too
# Two forms of weight normalization in torch, of which the file has both: length and direction of each row.
LENGTHS = {".parametrizations.weight.original0": ".parametrizations.weight.original1", ".weight_g": ".weight_v"}
SCALES = {
    "attention_layer_scale.gamma": "self_attn_layer_scale.scale",
    "ffn_layer_scale.gamma": "mlp_layer_scale.scale",
}
_TRANSFORMER = re.compile(r"((?:encoder\.block\.\d+\.block\.5|quantizer\.(?:pre|post)_module)\.)(.*)")
_ENCODER_BLOCK = re.compile(r"encoder\.block\.(\d+)\.(?:block\.(\d+)\.)?")
_DECODER_BLOCK = re.compile(r"decoder\.model\.(\d+)\.(?:block\.(\d+)\.)?")
_CODEBOOK = re.compile(r"quantizer\.(semantic_)?quantizer\.quantizers\.(\d+)\.")


class FishCodec:
    """The codec. Everything in it is causal, so that a stream has no delay.

    Args:
        model: Its modules.
    """

    channels = 1
    sampling_rate = SAMPLING_RATE

    def __init__(self, model: FishCodecModel) -> None:
        self._model = model
        self.hop, self.codebooks = model.hop, len(model.quantizer.codebooks)
        self.codebook_size = len(self.tables()[0])  # that of the first codebook; the others are smaller

    def decode(self, codes: Tensor) -> Tensor:
        return self.stream().whole(codes, CHUNK)

    def stream(self) -> SteppedStream:
        return FishCodecStream(self._model)

    def tables(self) -> list[Tensor]:
        # In the space of the decoder: entries are projected from 8 dimensions to its width.
        return [book.table().detach().float() for book in self._model.quantizer.books()]

    @torch.inference_mode()
    def encode(self, audio: Tensor) -> Tensor:
        """Mono audio float32 [samples], at the codec's sampling rate, to frames int64 [F, codebooks]."""
        audio = F.pad(audio, (0, -len(audio) % self.hop)).to(self._model.device)
        codes: Tensor = self._model.quantizer.encode(self._model.encoder(audio[None, None]))
        return codes[0].T.cpu().clone()


class FishCodecStream(SteppedStream):
    """Streams the decoder: every layer keeps what it needs of the frames before.

    Args:
        model: The codec's modules.
    """

    def __init__(self, model: FishCodecModel) -> None:
        def build(state: StreamState) -> Callable[[Tensor], Tensor]:
            upsample, decoder = streamed(model.quantizer.upsample, state), streamed(model.decoder, state)
            after = model.quantizer.post_module
            keys = SlidingKeys(after.body, state)

            def decode(codes: Tensor) -> Tensor:
                audio: Tensor = decoder(upsample(after(model.quantizer.vectors(codes), keys)))
                return audio

            return decode

        super().__init__(model, build, 1, model.device)


def folded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights without weight normalization: each row has its length."""
    out = dict(state)
    for name, length in state.items():
        for short, long in LENGTHS.items():
            direction = state.get(name.removesuffix(short) + long)
            if name.endswith(short) and direction is not None and direction.ndim == length.ndim == 3:
                del out[name], out[name.removesuffix(short) + long]
                norm = direction.float().flatten(1).norm(dim=1)[:, None, None]
                out[name.removesuffix(short) + ".weight"] = direction.float() * (length.float() / norm)
    return out


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Published weights under the names of `FishCodecModel`."""
    out = dict[str, Tensor]()
    for name, tensor in folded(state).items():
        if name.endswith(BUFFERS):
            continue
        inside = _TRANSFORMER.fullmatch(name)
        tensors = {name: tensor} if inside is None else layer_tensors(inside[1] + "body.", inside[2], tensor)
        for own, value in tensors.items():
            own = _CODEBOOK.sub(lambda m: f"quantizer.codebooks.{int(m[2]) + (not m[1])}.", own)
            own = _ENCODER_BLOCK.sub(lambda m: f"encoder.{m[1]}." + (f"{m[2]}." if m[2] else ""), own)
            own = _DECODER_BLOCK.sub(lambda m: f"decoder.{m[1]}." + (f"{m[2]}." if m[2] else ""), own)
            out[own] = value
    return out


def layer_tensors(prefix: str, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A weight of a transformer under the names that transformers gives it."""
    for old, new in (NAMES | SCALES).items():
        name = name.replace(old, new)
    if name.endswith("attention.wqkv.weight") and tensor.ndim == 2 and len(tensor) % (3 * HEAD) == 0:
        q, k, v = tensor.chunk(3)
        place, heads = prefix + name.removesuffix("attention.wqkv.weight") + "self_attn.", len(q) // HEAD
        return {place + "q_proj.weight": halves(q, heads), place + "k_proj.weight": halves(k, heads)} | {
            place + "v_proj.weight": v
        }
    return {prefix + name: tensor}


def read_codec(folder: Path, device: str) -> FishCodec:
    """The codec in a published folder, in float32.

    Args:
        folder: Contains `codec.pth`.
        device: Where to put it.

    Raises:
        ModelError: If the file is missing, damaged or of another codec.
    """
    what = f"codec {str(folder / FILE)!r}"
    state = renamed(read_tensors(folder / FILE, "codec", wrappers=("generator",)))
    with building(what, "a codec of Fish S2"):
        sizes = read_sizes(state)
        check_tensors(what, state, FishCodecModel(sizes))
    model = FishCodecModel(sizes)
    model.load_state_dict({name: value.float() for name, value in state.items()})
    return FishCodec(model.requires_grad_(False).eval().to(device))
