"""Folders of audio models in the layout in which they are published, with small layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import published
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import EncodecFeatureExtractor, PreTrainedTokenizerFast

TINY = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
TINY_MIMI = {
    "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
    "num_hidden_layers": 1, "num_filters": 2, "upsample_groups": 16, "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8,
}  # fmt: skip


def csm_folder(folder: Path, codes: int = 8) -> Any:
    """A CSM folder of the published layout with small layers, and few codebooks.

    The model has 11 codes; the codec may have fewer, as published: a trained model keeps to those.
    """
    names, config = published.read("csm-1b", "tokenizer"), published.read("csm-1b", "config")
    small = {
        **TINY,
        "num_hidden_layers": 1,
        "num_codebooks": 3,
        "vocab_size": 11,
        "codebook_pad_token_id": 10,
        "depth_decoder_config": {
            **TINY,
            "num_hidden_layers": 1,
            "num_codebooks": 3,
            "vocab_size": 11,
            "backbone_hidden_size": 16,
        },
        "codec_config": {**TINY_MIMI, "codebook_size": codes, "num_quantizers": 3},
    }
    config = published.merged(config, small)
    model = published.save(folder, config, published.read("csm-1b", "generation_config"))
    # The config names the index of the weights; model.safetensors is the original code's.
    (folder / "model.safetensors").rename(folder / "transformers-00001-of-00001.safetensors")
    names_of = dict.fromkeys(model.state_dict(), "transformers-00001-of-00001.safetensors")
    index = {"metadata": {"total_size": 0}, "weight_map": names_of}
    (folder / config["transformers_weights"]).write_text(json.dumps(index))
    save_file({"backbone.norm.scale": torch.ones(16)}, folder / "model.safetensors")
    special = {name: names[name] for name in ("bos_token", "eos_token", "pad_token")}
    tokenizer = published.llama_tokenizer(names["special_tokens"], names["split"], names["single"], **special)
    tokenizer.save_pretrained(folder)
    EncodecFeatureExtractor(sampling_rate=24000).save_pretrained(folder)
    for file in ("preprocessor_config", "tokenizer_config"):
        path = folder / f"{file}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "processor_class": "CsmProcessor"}))
    return model


def bark_folder(folder: Path) -> None:
    """A Bark folder of the published layout with small layers, and two words."""
    config, small = published.read("bark", "config"), {"hidden_size": 8, "num_heads": 2, "num_layers": 1}
    codec = {"num_filters": 2, "hidden_size": 8, "codebook_dim": 8}
    stages = dict.fromkeys(("semantic_config", "coarse_acoustics_config", "fine_acoustics_config"), small)
    published.save(
        folder, published.merged(config, {**stages, "codec_config": codec}), published.read("bark", "generation_config")
    )
    made = Tokenizer(WordLevel({"[PAD]": 0, "[UNK]": 1, "one": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]")
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "processor_class": "BarkProcessor"}))
    presets: dict[str, Any] = {"repo_or_path": "suno/bark", "v2/en_speaker_6": {}}
    (folder / "speaker_embeddings" / "v2").mkdir(parents=True)
    draw = np.random.default_rng(0).integers
    codes = draw(0, 1024, (8, 75))
    for name, prompt in (("semantic", draw(0, 10000, 50)), ("coarse", codes[:2]), ("fine", codes)):
        file = f"speaker_embeddings/v2/en_speaker_6_{name}_prompt.npy"
        np.save(folder / file, prompt)
        presets["v2/en_speaker_6"][f"{name}_prompt"] = file
    (folder / "speaker_embeddings_path.json").write_text(json.dumps(presets))
