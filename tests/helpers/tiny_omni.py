"""Tiny random Omni models of Qwen with their thinkers, and calls of their own `generate`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeForConditionalGeneration,
)

START, USER, ASSISTANT, END, NEWLINE = 40, 41, 42, 45, 44
MEDIA = {"audio": 50, "image": 51, "video": 52}
# Turns of a user of different lengths, padded on the left.
TURNS = ([3, 4, 5, 6], [3, 9], [7, 7, 7, 8, 8, 9])
TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
AUDIO = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "output_dim": 32}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}


def filled(model: Any, seed: int, spread: float) -> Any:
    """The model with all of its weights random; the classes leave those of experts as they are in memory."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) * spread if p.ndim > 1 else torch.ones_like(p)
    return model


def text_config() -> dict[str, Any]:
    """A copy of `TEXT`; configurations write into the dictionaries that they are given."""
    return copy.deepcopy(TEXT)


def qwen3(seed: int = 0, codes: int = 20, codebooks: int = 4, spread: float = 0.2) -> Any:
    """A Qwen3-Omni; its talker has `codes` first tokens, the last of which is the end, and at most 16 other codes."""
    ids = {f"{name}_token_id": value for name, value in MEDIA.items()}
    experts = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    rest = min(codes - 1, 16)
    config = Qwen3OmniMoeConfig(
        thinker_config={
            **ids,
            "text_config": {**text_config(), **experts, "decoder_sparse_step": 1},
            "audio_config": {**AUDIO, "num_mel_bins": 16, "downsample_hidden_size": 8},
            "vision_config": {**VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": []},
            "position_id_per_seconds": 13,
            "vision_start_token_id": 54,
            "audio_start_token_id": 53,
            "user_token_id": USER,
        },
        talker_config={
            **ids,
            "spatial_merge_size": 2,
            "thinker_hidden_size": 32,
            "num_code_groups": codebooks,
            "codec_eos_token_id": codes - 1,
            "codec_nothink_id": codes + 1,
            "codec_think_bos_id": codes + 2,
            "codec_think_eos_id": codes + 3,
            "codec_pad_id": codes + 4,
            "codec_bos_id": codes + 5,
            "speaker_id": {"ethan": codes + 6, "aiden": codes + 7},
            "accept_hidden_layer": 1,
            "text_config": {
                **text_config(),
                **experts,
                "vocab_size": 1024 + codes,
                "shared_expert_intermediate_size": 16,
                "eos_token_id": codes - 1,
            },
            "code_predictor_config": {
                **{name: value for name, value in TEXT.items() if name != "rope_parameters"},
                "vocab_size": rest,
                "head_dim": 8,
                "num_code_groups": codebooks,
            },
        },
        code2wav_config={
            "codebook_size": 16,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_quantizers": codebooks,
            "upsample_rates": [3, 2],
            "upsampling_ratios": [2],
            "decoder_dim": 16,
            "sliding_window": 4,
            "max_position_embeddings": 64,
        },
        im_start_token_id=START,
        im_end_token_id=END,
        user_token_id=USER,
        assistant_token_id=ASSISTANT,
        system_token_id=43,
        tts_pad_token_id=46,
        tts_bos_token_id=47,
        tts_eos_token_id=48,
    )
    return filled(Qwen3OmniMoeForConditionalGeneration(config).eval(), seed, spread)


def qwen2_5(seed: int = 0, codes: int = 20, layers: int = 2, spread: float = 0.2) -> Any:
    """A Qwen2.5-Omni whose talker has `codes` codes, and after them pad, start, end and mask."""
    ids = {f"{name}_token_index": value for name, value in MEDIA.items()}
    marks = {"vision_start_token_id": 58, "audio_start_token_id": 53, "audio_end_token_id": 54}
    config = Qwen2_5OmniConfig(
        thinker_config={
            **ids,
            **marks,
            "text_config": text_config(),
            "audio_config": {**AUDIO, "num_mel_bins": 16},
            "vision_config": VISION,
            "position_id_per_seconds": 25,
            "user_token_id": USER,
        },
        talker_config={
            **text_config(),
            **ids,
            **marks,
            "num_hidden_layers": layers,
            "vocab_size": codes + 4,
            "hidden_size": 16,
            "intermediate_size": 24,
            "head_dim": 8,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "embedding_size": 32,
            "tts_text_start_token_id": 55,
            "tts_text_end_token_id": 56,
            "tts_text_pad_token_id": 57,
            "tts_codec_pad_token_id": codes,
            "tts_codec_start_token_id": codes + 1,
            "tts_codec_end_token_id": codes + 2,
            "tts_codec_mask_token_id": codes + 3,
            "spatial_merge_size": 2,
            "position_id_per_seconds": 25,
            "seconds_per_chunk": 2,
        },
        token2wav_config={
            "dit_config": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "head_dim": 8,
                "ff_mult": 1,
                "emb_dim": 8,
                "num_embeds": codes + 4,
                "mel_dim": 8,
                "block_size": 4,
                "look_ahead_layers": [],
                "look_backward_layers": [],
                "enc_dim": 8,
                "enc_emb_dim": 8,
                "enc_channels": [8, 8, 8, 8, 24],
                "enc_attention_channels": 4,
                "enc_res2net_scale": 2,
                "enc_se_channels": 4,
            },
            "bigvgan_config": {
                "mel_dim": 8,
                "upsample_initial_channel": 8,
                "resblock_kernel_sizes": [3],
                "resblock_dilation_sizes": [[1, 3, 5]],
                "upsample_rates": [2, 2],
                "upsample_kernel_sizes": [4, 4],
            },
        },
    )
    model = filled(Qwen2_5OmniForConditionalGeneration(config).eval(), seed, spread)
    generator = torch.Generator().manual_seed(seed)
    model.speaker_map["chelsie"] = {
        "bos_token": 59,
        "cond": torch.randn(1, 8, generator=generator),
        "ref_mel": torch.randn(1, 6, 8, generator=generator),
    }
    return model


def prompts(turns: Any = TURNS) -> dict[str, Tensor]:
    """The arguments `input_ids` and `attention_mask` of a user's turns."""
    rows = [[START, USER, *turn, END, START, ASSISTANT, NEWLINE] for turn in turns]
    longest = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[0] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]),
    }


class Spy:
    """Keeps what a talker's `generate` returned and what it was called with."""

    def __init__(self, model: Any) -> None:
        self._model, self._own = model, model.talker.generate
        model.talker.generate = self

    def __call__(self, **given: Any) -> Any:
        self.given = given
        self.found = self._own(**given)
        return self.found

    def frames(self) -> Tensor:
        """The frames int64 [B, N - 1, K] of a Qwen3-Omni."""
        return torch.stack([state[-1] for state in self.found.hidden_states if state[-1] is not None], dim=1)
