"""A tiny OuteTTS 1.0, as a folder."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

from tiny_models import scatter
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MARKS = (
    "im_start", "im_end", "text_start", "text_end", "audio_start", "audio_end", "word_start", "word_end", "features",
    "code", "t_0.20", "t_0.33", "energy_3", "energy_10", "spectral_centroid_15", "pitch_45", "pitch_0",
)  # fmt: skip
SPEAKER: dict[str, Any] = {
    "text": "The cat",
    "words": [
        {
            "word": "The",
            "duration": 0.2,
            "c1": [720, 3],
            "c2": [658, 1],
            "features": {"energy": 10, "spectral_centroid": 15, "pitch": 45},
        },
        {"word": "cat", "duration": 0.33, "c1": [0], "c2": [1023], "features": {"energy": 3, "spectral_centroid": 15}},
    ],
}


def tokenizer() -> PreTrainedTokenizerFast:
    """Marks, codes, and letters."""
    letters = ["<unk>", "\n", *string.ascii_letters, *string.digits, *" .,?!'-:;"]
    made = Tokenizer(WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="<unk>"))
    made.pre_tokenizer = Split("", "isolated")
    found = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    names = [*MARKS, *(f"{book}_{code}" for book in ("c1", "c2") for code in range(1025))]
    found.add_tokens([AddedToken(f"<|{name}|>", special=True, normalized=False) for name in names])
    return found


def model(seed: int = 0) -> Any:
    words = tokenizer()
    end = words.convert_tokens_to_ids("<|im_end|>")
    config = LlamaConfig(
        vocab_size=len(words) + 6, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=8192, bos_token_id=None, eos_token_id=end, pad_token_id=None,
    )  # fmt: skip
    made = scatter(LlamaForCausalLM(config), seed, 0.3)
    for name in ("<|word_start|>", "<|c1_5|>", "<|c2_1024|>", "<|c2_7|>"):  # likely, so that they are repeated
        made.lm_head.weight.data[words.convert_tokens_to_ids(name)] *= 2.5
    return made


def outetts(folder: Path) -> Path:
    """Writes the folder."""
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
