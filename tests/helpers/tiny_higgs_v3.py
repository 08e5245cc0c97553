"""A folder of a tiny Higgs TTS 3 in its published form, and a codec of its codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_chatterbox import MeanLevels
from tiny_xtts import fill
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import PreTrainedTokenizerFast

BOOKS, CODES, WIDTH = 3, 8, 32
WORDS = ["<unk>", "one", "two", "three", "four."]
MARKS = [
    "<|endoftext|>", "<|tts|>", "<|ref_text|>", "<|ref_audio|>", "<|text|>", "<|audio|>", "<|emotion:amusement|>",
]  # fmt: skip
TEXTS = ["one two three", "<|emotion:amusement|>two one", "three four."]
VOICE = [[1, 2, 3], [4, 5, 6], [7, 0, 1]]
CODEC = "tied.embedding.modality_embeddings.0.model."


def config() -> dict[str, Any]:
    language = {
        "model_type": "qwen3", "vocab_size": 16, "hidden_size": WIDTH, "intermediate_size": 48, "rope_theta": None,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "max_position_embeddings": 1024, "tie_word_embeddings": True,
    }  # fmt: skip
    audio = {
        "encoder_type": "discrete", "num_codebooks": BOOKS, "vocab_size": CODES + 2, "out_dim": WIDTH,
        "tie_word_embeddings": True, "use_delay_pattern": True, "model_type": "higgs_audio_encoder",
    }  # fmt: skip
    return {
        "architectures": ["HiggsMultimodalQwen3ForConditionalGeneration"],
        "model_type": "higgs_multimodal_qwen3",
        "audio_token_id": -100,
        "text_config": language,
        "audio_encoder_config": audio,
    }


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = WhitespaceSplit()
    made.add_special_tokens([AddedToken(name, special=True) for name in MARKS])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def fill_parts(body: Any, codes: Any) -> None:
    """Deterministic weights of the Qwen3 and of the embedding of codes, with which rows end at different places."""
    fill(body.named_parameters(), 0.9)
    with torch.no_grad():
        n = torch.arange(codes.numel(), dtype=torch.float64)
        codes.copy_((((n * 7.137).sin() * 43758.5453 % 1 - 0.5) * 0.6).float().view(codes.shape))
        codes[CODES + 1] = 0.8 * codes[3] + 0.3 * codes[5]  # the end of the first codebook


Codec = partial(MeanLevels, BOOKS, CODES)


def higgs_v3(folder: Path, codec: dict[str, Tensor] | None = None) -> Path:
    """The folder, with the tensors of a codec in its files."""
    from mmspec.audio.models.higgs_v3.model import HiggsV3, read_config

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config()))
    tokenizer().save_pretrained(folder)
    model = HiggsV3(read_config(config(), "tiny"))
    fill_parts(model.body, model.codes.weight)
    state = {"tied.embedding.modality_embeddings.0.embedding.weight": model.codes.weight.detach()}
    for name, value in model.body.state_dict().items():
        own = "tied.embedding.text_embedding.weight" if name == "embed_tokens.weight" else f"body.{name}"
        state[own] = value
    state |= {CODEC + name: value for name, value in (codec or {"fc.weight": torch.zeros(1)}).items()}
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "model.safetensors")
    return folder
