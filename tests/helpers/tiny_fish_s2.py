"""A folder of a tiny Fish Audio S2 Pro in its published form, and a codec of its codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_chatterbox import MeanLevels
from tiny_xtts import fill
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

BOOKS, CODES, WIDTH = 3, 12, 32
WORDS = [
    "<unk>", "system", "user", "assistant", "convert", "the", "provided", "text", "to", "speech", "Text:", "Speech:",
    "<|speaker:0|>", "<|speaker:1|>", "one", "two", "three", "four.",
]  # fmt: skip
MARKS = ["<|im_start|>", "<|im_end|>", "<|voice|>", *(f"<|semantic:{i}|>" for i in range(CODES))]
IDS = {name: len(WORDS) + i for i, name in enumerate(MARKS)}
TEXTS = ["one two three", "two", "<|speaker:1|>three four."]
VOICE = [[1, 2, 3], [4, 5, 6], [7, 0, 11]]


def config() -> dict[str, Any]:
    shared = {
        "dim": WIDTH, "n_head": 2, "n_local_heads": 1, "head_dim": 16, "intermediate_size": 48, "norm_eps": 1e-6,
        "rope_base": 1_000_000, "dropout": 0.0, "attention_qkv_bias": False, "attention_o_bias": False,
        "use_moe": False, "initializer_range": 0.02,
    }  # fmt: skip
    slow = {"model_type": "fish_qwen3", "n_layer": 2, "vocab_size": 40, "max_seq_len": 1024, "attention_qk_norm": True}
    fast = {"model_type": "fish_qwen3_audio_decoder", "n_layer": 1, "vocab_size": CODES, "max_seq_len": BOOKS + 1}
    fast |= {"attention_qk_norm": False, "num_codebooks": BOOKS, "text_dim": WIDTH, "tie_word_embeddings": False}
    return {
        "model_type": "fish_qwen3_omni",
        "eos_token_id": IDS["<|im_end|>"],
        "pad_token_id": 0,
        "audio_pad_token_id": 0,
        "semantic_start_token_id": IDS["<|semantic:0|>"],
        "semantic_end_token_id": IDS[f"<|semantic:{CODES - 1}|>"],
        "text_config": shared | slow | {"tie_word_embeddings": True},
        "audio_decoder_config": shared | fast,
    }


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tags = Split(Regex(r"<\|speaker:\d+\|>"), "isolated")
    made.pre_tokenizer = Sequence([WhitespaceSplit(), tags])
    made.add_special_tokens([AddedToken(name, special=True) for name in MARKS])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def shapes() -> dict[str, list[int]]:
    """The published names of the weights, and their shapes."""
    qkv, found = 4 * 16, {"text_model.model.embeddings.weight": [40, WIDTH], "text_model.model.norm.weight": [WIDTH]}
    found |= {f"audio_decoder.{name}.weight": [CODES, WIDTH] for name in ("embeddings", "output")}
    found["audio_decoder.codebook_embeddings.weight"] = [CODES * BOOKS, WIDTH]
    found["audio_decoder.norm.weight"] = [WIDTH]
    for layer in ("text_model.model.layers.0", "text_model.model.layers.1", "audio_decoder.layers.0"):
        for name, shape in (
            ("attention.wqkv", [qkv, WIDTH]), ("attention.wo", [WIDTH, 32]), ("feed_forward.w1", [48, WIDTH]),
            ("feed_forward.w3", [48, WIDTH]), ("feed_forward.w2", [WIDTH, 48]), ("attention_norm", [WIDTH]),
            ("ffn_norm", [WIDTH]), ("attention.q_norm", [16]), ("attention.k_norm", [16]),
        ):  # fmt: skip
            if layer.startswith("text") or "_norm" not in name or name.startswith(("attention_norm", "ffn")):
                found[f"{layer}.{name}.weight"] = shape
    return found


def weights() -> dict[str, Tensor]:
    """Deterministic weights, with which rows end at different places."""
    parameters = {name: nn.Parameter(torch.empty(shape)) for name, shape in shapes().items()}
    fill(iter(parameters.items()), 0.9)
    state = {name: value.detach().clone() for name, value in parameters.items()}
    text = state["text_model.model.embeddings.weight"]
    first = IDS["<|semantic:0|>"]
    text[IDS["<|im_end|>"]] = 0.7 * text[first + 2] + 0.7 * text[first + 7]
    return state


Codec = partial(MeanLevels, BOOKS, CODES)


def fish_s2(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config()))
    tokenizer().save_pretrained(folder)
    state, names = weights(), sorted(shapes())
    for part, chosen in enumerate((names[::2], names[1::2])):
        save_file({name: state[name] for name in chosen}, folder / f"model-0000{part + 1}-of-00002.safetensors")
    return folder
