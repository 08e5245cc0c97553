"""A tiny MiniCPM-o 4.5, as a folder of the published layout, with tensors that are not read."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_models import scatter
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmspec.audio.models.codec_lm.minicpm_o import READ_ALOUD
from mmspec.audio.models.codec_lm.minicpm_o_model import MiniCPMO, read_minicpm_o_config

CODES = 30
MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|tts_bos|>", "<|tts_eos|>")
TEMPLATE = (
    "{% for turn in messages %}<|im_start|>{{ turn.role }}\n{{ turn.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% if use_tts_template %}<|tts_bos|>{% endif %}{% endif %}"
)
TTS: dict[str, Any] = {
    "llm_dim": 16, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 3, "num_audio_tokens": CODES + 1, "num_text_tokens": 150, "audio_bos_token_id": 140,
    "text_eos_token_id": 141, "num_vq": 1, "condition_type": "hidden_text_merge", "normalize_projected_hidden": True,
    "projector_type": "mlp", "backbone_model": "llama", "audio_tokenizer_type": "s3tokenizer",
}  # fmt: skip
SIZES: dict[str, Any] = {
    "vocab_size": 150, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 512, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    """Marks and letters."""
    names = ["<unk>", "<pad>", *MARKS, *string.ascii_letters, *string.digits, *"\n .,?!'-:;_<|>/", *READ_ALOUD[:-1]]
    made = Tokenizer(WordLevel({name: i for i, name in enumerate(dict.fromkeys(names))}, unk_token="<unk>"))
    made.pre_tokenizer = Split(Regex(r"<[/|\w]+>|[\s\S]"), "isolated")
    found = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", pad_token="<pad>")
    found.chat_template = TEMPLATE
    return found


def config() -> dict[str, Any]:
    return {"architectures": ["MiniCPMO"], "model_type": "minicpmo", "version": "4.5", **SIZES, "tts_config": TTS}


def state(seed: int = 0) -> dict[str, Tensor]:
    """The tensors that are read."""
    model = scatter(MiniCPMO(read_minicpm_o_config(config(), "it")), seed, 0.4)
    for p in model.parameters():
        if p.ndim == 1 and not p.any():
            p.data = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)) * 0.2
    lengths = model.tts.head_code[0].parametrizations.weight.original0.data
    lengths *= 6
    lengths[CODES] *= 2.2  # the end is likely
    return {name: value.contiguous() for name, value in model.state_dict().items()}


def minicpm_o(folder: Path) -> Path:
    """Writes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config()))
    unread = ("vpm.embeddings.x", "apm.conv1.weight", "llm.lm_head.weight", "tts.model.embed_tokens.weight")
    save_file({**state(), **{name: torch.zeros(2, 2) for name in unread}}, folder / "model.safetensors")
    tokenizer().save_pretrained(folder)
    return folder
