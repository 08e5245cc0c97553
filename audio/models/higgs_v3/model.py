"""Higgs TTS 3 (Boson AI): a Qwen3, one embedding of all codes, which is the head too, and the codec in its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import HiggsAudioV2TokenizerConfig, HiggsAudioV2TokenizerModel, Qwen3Config, Qwen3Model

from mmspec.arguments import shown
from mmspec.audio.codecs.higgs import HiggsCodec
from mmspec.audio.config_file import integer_in
from mmspec.audio.rounded_rotary import RoundedRotary
from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_depths, check_tensors, load_tensors, read_model_tensors
from mmspec.hf.folder import BUFFERS, read_json

ROPE_THETA = 1_000_000.0  # of a Qwen3 whose configuration leaves it open
TEXT = "tied.embedding.text_embedding."
CODES, HEAD = "tied.embedding.modality_embeddings.0.embedding.", "tied.head.modality_heads.0."
CODEC, TEXT_HEAD = "tied.embedding.modality_embeddings.0.model.", "tied.head.text_head."
# The codec's configuration, which is not among the files: that of bosonai/higgs-audio-v2-tokenizer. Its other values
# are those of the class.
CODEC_CONFIG: Mapping[str, Any] = {
    "acoustic_model_config": {
        "model_type": "dac",
        "encoder_hidden_size": 64,
        "decoder_hidden_size": 1024,
        "downsampling_ratios": [8, 5, 4, 2, 3],
        "upsampling_ratios": [8, 5, 4, 2, 3],
        "hidden_size": 256,
        "hop_length": 960,
        "sampling_rate": 16000,
    },
    "target_bandwidths": [0.5, 1, 1.5, 2],
}
# How earlier releases of torch name the parts of a normalized weight.
WEIGHT_PARTS = {".weight_g": ".parametrizations.weight.original0", ".weight_v": ".parametrizations.weight.original1"}


@dataclass(frozen=True)
class HiggsV3Config:
    """The part of `config.json` that decoding needs.

    Attributes:
        language: The config of the Qwen3.
        codebooks: K.
        codes: Codes of a codebook. The next id stands in the cells before a codebook begins, the one after it ends.
        tied: Whether the head of codes is their embedding.
    """

    language: Qwen3Config
    codebooks: int
    codes: int
    tied: bool

    @property
    def begin(self) -> int:
        """The code in cells before their codebook begins."""
        return self.codes

    @property
    def end(self) -> int:
        """The code with which the first codebook ends."""
        return self.codes + 1


def read_config(found: Mapping[str, Any], what: str) -> HiggsV3Config:
    """Reads a `config.json`; missing values are those of the published model.

    Raises:
        ModelError: If a value is missing or not allowed.
    """
    audio, language = found.get("audio_encoder_config", {}), found.get("text_config")
    if not isinstance(language, Mapping) or not isinstance(audio, Mapping):
        raise ModelError(f"{what} has no text_config or no audio_encoder_config in its config.json")
    if (kind := audio.get("encoder_type", "discrete")) != "discrete":
        raise ModelError(f"{what} has encoder_type={shown(kind)}; 'discrete' is supported, which speaks")

    value = partial(integer_in, audio, what)
    own = {name: setting for name, setting in language.items() if setting is not None}
    rope = own.get("rope_parameters")
    if isinstance(rope, Mapping) and rope.get("rope_theta", 0) is None:
        own["rope_parameters"] = {**rope, "rope_theta": ROPE_THETA}
    elif not any(name in own for name in ("rope_theta", "rope_parameters", "rope_scaling")):
        own["rope_theta"] = ROPE_THETA
    qwen3 = Qwen3Config(**own)
    if (width := value("out_dim", qwen3.hidden_size, 1)) != qwen3.hidden_size:
        raise ModelError(f"{what} has codes of width {width} for a width of {qwen3.hidden_size}; they must be the same")
    tied = bool(audio.get("tie_word_embeddings", True))
    return HiggsV3Config(qwen3, value("num_codebooks", 8, 3), value("vocab_size", 1026, 3) - 2, tied)


class HiggsV3(nn.Module):
    """A Higgs TTS 3 without its codec.

    Args:
        config: Its configuration.
    """

    def __init__(self, config: HiggsV3Config) -> None:
        super().__init__()
        self.config = config
        ids, width = config.codebooks * (config.codes + 2), config.language.hidden_size
        self.body = Qwen3Model(config.language)
        self.codes = nn.Embedding(ids, width)
        self.head = None if config.tied else nn.Linear(width, ids, bias=False)

    @property
    def device(self) -> torch.device:
        return self.codes.weight.device

    def embed_columns(self, columns: Tensor) -> Tensor:
        """Columns int64 [..., K] to embeddings [..., D]: the sum of those of their codes."""
        ids = self.config.codes + 2
        offsets = ids * torch.arange(self.config.codebooks, device=columns.device)
        embeds: Tensor = self.codes(columns.clamp(0, ids - 1) + offsets)
        return embeds.sum(-2)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., D] to logits [..., K, codes + 3]: codes, the two marks, and the end of a row at -inf."""
        weight = self.codes.weight if self.head is None else self.head.weight
        z = F.linear(hidden, weight).unflatten(-1, (self.config.codebooks, -1))
        return F.pad(z, (0, 1), value=-torch.inf)


def renamed(state: Mapping[str, Tensor], tied: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Published weights under the names of `HiggsV3`, and those of the codec under its own.

    The head of texts is left out, and that of codes where it is tied.
    """
    model, codec = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in state.items():
        if name.startswith(CODEC):
            own = name.removeprefix(CODEC)
            for old, new in WEIGHT_PARTS.items():
                own = own.removesuffix(old) + new if own.endswith(old) else own
            codec[own] = tensor
        elif name.startswith(TEXT):
            model["body.embed_tokens." + name.removeprefix(TEXT)] = tensor
        elif name.startswith(CODES):
            model["codes." + name.removeprefix(CODES)] = tensor
        elif name.startswith(HEAD):
            if not tied:
                model["head." + name.removeprefix(HEAD)] = tensor
        elif not name.startswith(TEXT_HEAD) and not BUFFERS.search(name):
            model[name] = tensor
    return model, codec


def read_model(folder: Path, device: str, dtype: torch.dtype | str) -> tuple[HiggsV3, dict[str, Tensor]]:
    """The model in a published folder, and the tensors of the codec in its files."""
    what, found, state = f"model {str(folder)!r}", read_json(folder / "config.json"), read_model_tensors(folder)
    check_depths(what, found, len(state))
    with building(what, "a Higgs TTS 3"):
        model = HiggsV3(read_config(found, what))
    used, codec = renamed(state, model.config.tied)
    load_tensors(what, used, model, device, dtype)
    model.body.rotary_emb = RoundedRotary(model.config.language).to(device)  # it has no weights in the files
    return model.requires_grad_(False).eval(), codec


def read_codec(state: Mapping[str, Tensor], what: str, device: str) -> HiggsCodec:
    """The codec whose tensors lie in a model's files, in float32.

    Raises:
        ModelError: If there are none, or they are those of another codec.
    """
    if not state:
        raise ModelError(f"{what} has no codec in its files; pass one as tokenizer= or config={{'codec': codec}}")
    config = HiggsAudioV2TokenizerConfig(**CODEC_CONFIG)
    with building(what, "a codec of Higgs TTS 3"):
        model = HiggsAudioV2TokenizerModel(config)
    # The embedding of masked places, which training alone reads.
    used = {name: value for name, value in state.items() if name != "semantic_model.masked_spec_embed"}
    check_tensors(f"the codec of {what}", used, model)
    floats = {name: value.float() if value.is_floating_point() else value for name, value in used.items()}
    model.load_state_dict({name: value.to(device) for name, value in floats.items()}, assign=True)
    return HiggsCodec(model.requires_grad_(False).eval())
