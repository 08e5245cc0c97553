"""A folder of a tiny Kyutai TTS in its published form, its tokenizer, voices, and a codec of its codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_chatterbox import MeanLevels
from tiny_xtts import fill
from torch import Tensor

BOOKS, CODES, VOICE = 4, 8, 6


def config(**changed: Any) -> dict[str, Any]:
    """As published, but for the sizes (the names are those of github.com/kyutai-labs/moshi)."""
    return {
        "card": CODES, "n_q": BOOKS, "dep_q": BOOKS, "delays": [0, 0, 2, 2, 2], "dim": 32, "text_card": 20,
        "existing_text_padding_id": 3, "num_heads": 2, "num_layers": 2, "hidden_scale": 4.125, "causal": True,
        "layer_scale": None, "context": 12, "max_period": 10000, "gating": "silu", "norm": "rms_norm_f32",
        "positional_embedding": "rope", "depformer_dim": 16, "depformer_num_heads": 2, "depformer_num_layers": 2,
        "depformer_dim_feedforward": 48, "depformer_multi_linear": True, "depformer_pos_emb": "none",
        "depformer_weights_per_step": True, "depformer_weights_per_step_schedule": [0, 1, 2, 2],
        "depformer_low_rank_embeddings": 8, "depformer_gating": "silu", "demux_second_stream": True,
        "text_card_out": 5, "cross_attention": True,
        "conditioners": {
            "speaker_wavs": {"type": "tensor", "tensor": {"dim": VOICE}},
            "cfg": {"type": "lut", "lut": {"n_bins": 3, "dim": 4, "tokenizer": "noop",
                                           "possible_values": ["1.0", "1.5", "2.0"]}},
            "control": {"type": "lut", "lut": {"n_bins": 5, "dim": 4, "tokenizer": "noop"}},
        },
        "fuser": {"cross_attention_pos_emb": True, "cross_attention_pos_emb_scale": 0.5, "sum": ["control", "cfg"],
                  "prepend": [], "cross": ["speaker_wavs"]},
        "model_type": "tts", "tts_config": {"audio_delay": 0.24, "second_stream_ahead": 2},
        "moshi_name": "dsm_tts_tiny.safetensors", "mimi_name": "mimi.safetensors", "tokenizer_name": "text.model",
        "model_id": {"sig": "0000", "epoch": 1},
    } | changed  # fmt: skip


def prefix_config(**changed: Any) -> dict[str, Any]:
    """As `config`, of a model whose voice is the beginning of the audio; 0.75b is of this kind."""
    none: dict[str, Any] = {"conditioners": {}, "fuser": {"sum": [], "prepend": [], "cross": []}}
    return config(**{"cross_attention": False, **none, **changed})


# The same with a condition, whose unconditional rows read another vector.
CONTROL: dict[str, Any] = {
    "conditioners": {"control": config()["conditioners"]["control"]},
    "fuser": {"sum": ["control"], "prepend": [], "cross": []},
}


def prefix(frames: int, shift: int = 0) -> Tensor:
    """The codes of a voice, int64 [codebooks, frames]."""
    return (torch.arange(BOOKS * frames).view(BOOKS, frames) * 5 + shift) % CODES


class Words:
    """A tokenizer with the one method that is used: ids by the letters of a word."""

    def encode(self, word: str) -> list[int]:
        return [4 + sum(map(ord, word[i : i + 3])) % 16 for i in range(0, len(word), 3)]


def voice(shift: float = 0.0) -> Tensor:
    """The vectors of a voice as they are published, [1, width, S]."""
    return (torch.arange(VOICE * 3, dtype=torch.float32) * 1.7 + shift).sin().view(1, VOICE, 3)


def fill_model(model: Any) -> Any:
    """The model with deterministic weights."""
    fill(model.named_parameters(), 0.6)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.startswith("linears"):
                p *= 4
            if name.startswith("text_linear"):
                p *= 0.5
                p[0] = p[2] + 0.7 * p[1]  # a word is about as likely as the most likely other id
    return model


Codec = partial(MeanLevels, BOOKS, CODES)


def kyutai(folder: Path, **changed: Any) -> Path:
    return write(folder, config(**changed))


def write(folder: Path, settings: dict[str, Any]) -> Path:
    """Writes a model with this config."""
    from mmspec.audio.models.kyutai_tts.model import KyutaiTTS, read_config

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    model = fill_model(KyutaiTTS(read_config(settings, "tiny")))
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    # Files of the original have one tensor for the projections of all steps.
    for name in [name for name in state if "in_projs.0" in name]:
        stem = name.removesuffix("in_projs.0.weight")
        for kind, joined in (("in", "in_proj_weight"), ("out", "out_proj.weight")):
            own = [key for key in sorted(state) if key.startswith(f"{stem}{kind}_projs.")]
            state[stem + joined] = torch.cat([state.pop(key) for key in own])
    save_file(state, folder / "dsm_tts_tiny.safetensors")
    save_file({"speaker_wavs": voice()}, folder / "voice.safetensors")
    return folder
