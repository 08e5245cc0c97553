"""A tiny HPSv3: weights by name, a tokenizer of bytes, an instruction, images and prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

INSTRUCTION = "\nRate the image. Its text:\n{text_prompt}\n\n"
QUESTION = "\nThe rating: <|Reward|>\n\nEND\n"
PROMPTS = ["a red dog", "The cats on the {moon}, unknown", " ".join(["a dog"] * 30)]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
VOCABULARY = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL]
CONFIG: Mapping[str, Any] = {
    "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "vocab_size": len(VOCABULARY) + 9,
    "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "attention_dropout": 0.0, "use_sliding_window": False,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "image_token_id": VOCABULARY.index("<|image_pad|>"), "vision_start_token_id": VOCABULARY.index("<|vision_start|>"),
    "vision_end_token_id": VOCABULARY.index("<|vision_end|>"), "video_token_id": 0, "vision_token_id": 1,
    "bos_token_id": 0, "eos_token_id": 0,
    "vision_config": {
        "depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
        "in_chans": 3, "in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2, "spatial_patch_size": 14,
        "hidden_act": "quick_gelu", "model_type": "qwen2_vl",
    },
}  # fmt: skip


def values(name: str, shape: torch.Size) -> torch.Tensor:
    """The parameter of a name, alike in all versions of torch."""
    draws = torch.Generator().manual_seed(sum(map(ord, name)))
    found = torch.randn(shape, generator=draws) * (0.15 if len(shape) > 1 else 0.1)
    return found + 1 if ("norm" in name or "ln_q" in name) and name.endswith("weight") else found


def images() -> list[Any]:
    """uint8 [H, W, 3] of three sizes: the first and the last are enlarged, the second is made smaller."""
    rng = np.random.default_rng(5)
    return [
        (np.kron(rng.integers(0, 256, (h, w, 3)), np.ones((scale, scale, 1)))).astype(np.uint8)
        for h, w, scale in ((10, 14, 7), (20, 31, 25), (13, 8, 9))
    ]


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={text: n for n, text in enumerate(VOCABULARY)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": SPECIAL[0], "eos_token": SPECIAL[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind), encoding="utf-8")


def write_collator(folder: Path) -> None:
    """The file of the package, as far as it is read; running it would fail."""
    text = f'import absent\n\nINSTRUCTION = """{INSTRUCTION}"""\n\nprompt_with_special_token = """{QUESTION}"""\n'
    (folder / "data_collator_qwen.py").write_text(f"{text}\n\nclass Other(absent.Base):\n    x = 1\n", encoding="utf-8")
