"""A folder of a tiny MOSS-TTS-Local v1.5 in its published form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_moss import IDS, MARKS, WORDS, tokenizer
from tiny_xtts import fill

BOOKS, CODES, WIDTH = 3, 8, 32
END = 0.3 * (5.2 * torch.arange(WIDTH)).sin()  # what tells the end from another frame


def config(**changed: Any) -> dict[str, Any]:
    language = {
        "vocab_size": len(WORDS) + len(MARKS), "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 1024,
        "rope_theta": 1000000.0,
    }  # fmt: skip
    local = {
        "n_embd": WIDTH, "n_layer": 1, "n_head": 2, "n_inner": 40, "activation_function": "silu",
        "layer_norm_epsilon": 1e-6, "position_embedding_type": "absolute",
    }  # fmt: skip
    return {
        "architectures": ["MossTTSLocalModel"],
        "model_type": "moss_tts_local",
        "qwen3_config": language,
        "gpt2_config": local,
        "n_vq": BOOKS,
        "audio_vocab_size": CODES,
        "audio_pad_token_id": CODES,
        "pad_token_id": IDS["<|endoftext|>"],
        "im_start_token_id": IDS["<|im_start|>"],
        "im_end_token_id": IDS["<|im_end|>"],
        "audio_user_slot_token_id": IDS["<|audio_user_slot|>"],
        "audio_assistant_slot_token_id": IDS["<|gen_slot|>"],
        "audio_start_token_id": IDS["<|audio_start|>"],
        "audio_end_token_id": IDS["<|audio_end|>"],
        "local_text_head_mode": "binary",
    } | changed


# Of the recorded models: as published by default, and with the other kinds of positions and of the head of the end.
KINDS: dict[str, dict[str, Any]] = {
    "binary": {},
    "rope": {
        "local_text_head_mode": "full_vocab",
        "gpt2_config": config()["gpt2_config"] | {"position_embedding_type": "rope"},
    },
}


def fill_model(model: Any) -> Any:
    """The model with deterministic weights, of which those of the end are such that rows end early."""
    fill(((name, p) for name, p in model.named_parameters() if "lm_head" not in name), 0.9)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.startswith("audio_embeddings"):
                p *= 2
            if name.endswith("bias") or "wpe" in name:
                p *= 0.1
        if model.local_text_lm_head is not None:
            model.local_text_lm_head.weight.copy_(torch.stack([torch.zeros(WIDTH), END]))
        else:
            text = model.transformer.embed_tokens.weight
            text[IDS["<|audio_end|>"]] = text[IDS["<|gen_slot|>"]] + END
    return model


def moss_local(folder: Path, **changed: Any) -> Path:
    from mmspec.audio.models.moss_local.model import MossLocal, read_config

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(**changed)))
    tokenizer().save_pretrained(folder)
    model = fill_model(MossLocal(read_config(config(**changed), "tiny")))
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    names = sorted(state)
    for part, chosen in enumerate((names[::2], names[1::2])):
        save_file({name: state[name] for name in chosen}, folder / f"model-0000{part + 1}-of-00002.safetensors")
    return folder
