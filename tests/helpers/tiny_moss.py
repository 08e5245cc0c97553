"""A folder of a tiny MOSS-TTS with delays in its published form, and a codec of its codes."""

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
from transformers import PreTrainedTokenizerFast

BOOKS, CODES, WIDTH = 3, 8, 32
WORDS = [
    "<unk>", "user", "assistant", "<user_inst>", "</user_inst>", "-", "Reference(s):", "Instruction:", "Tokens:",
    "Quality:", "Sound", "Event:", "Ambient", "Sound:", "Language:", "Text:", "None", "[S1]:", "French", "Slowly.",
    "one", "two", "three", "12",
]  # fmt: skip
MARKS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_user_slot|>", "<|gen_slot|>", "<|delay_slot|>",
    "<|audio_start|>", "<|audio_end|>",
]  # fmt: skip
IDS = {name: len(WORDS) + i for i, name in enumerate(MARKS)}
CHAT = (
    "{% for m in messages %}<|im_start|> {{ m.role }}\n{{ m.content }} <|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant\n{% endif %}"
)


def config() -> dict[str, Any]:
    language = {
        "vocab_size": len(WORDS) + len(MARKS), "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 1024,
    }  # fmt: skip
    return {
        "architectures": ["MossTTSDelayModel"],
        "model_type": "moss_tts_delay",
        "language_config": language,
        "n_vq": BOOKS,
        "audio_vocab_size": CODES,
        "audio_pad_code": CODES,
        "pad_token_id": IDS["<|endoftext|>"],
        "im_start_token_id": IDS["<|im_start|>"],
        "im_end_token_id": IDS["<|im_end|>"],
        "audio_user_slot_token_id": IDS["<|audio_user_slot|>"],
        "audio_assistant_gen_slot_token_id": IDS["<|gen_slot|>"],
        "audio_assistant_delay_slot_token_id": IDS["<|delay_slot|>"],
        "audio_start_token_id": IDS["<|audio_start|>"],
        "audio_end_token_id": IDS["<|audio_end|>"],
    }


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = WhitespaceSplit()
    made.add_special_tokens([AddedToken(name, special=True) for name in MARKS])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", chat_template=CHAT)


def fill_model(model: Any) -> Any:
    """The model with deterministic weights, of which those of the two slots are such that segments differ."""
    fill(model.named_parameters(), 0.9)
    with torch.no_grad():
        text = model.lm_heads[0].weight
        text[IDS["<|delay_slot|>"]] = text[IDS["<|gen_slot|>"]] - 2 * text[16]
    return model


Codec = partial(MeanLevels, BOOKS, CODES)


def moss(folder: Path) -> Path:
    from mmspec.audio.models.moss_tts.decoding import MossTTS, read_config

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config()))
    tokenizer().save_pretrained(folder)
    model = fill_model(MossTTS(read_config(config(), "tiny")))
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    names = sorted(state)
    for part, chosen in enumerate((names[::2], names[1::2])):
        save_file({name: state[name] for name in chosen}, folder / f"model-0000{part + 1}-of-00002.safetensors")
    return folder
