"""Tiny random speech models whose tokens are latents, and processors of transformers with a vocabulary of few words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn
from transformers import (
    GradiumPhononTTSConfig,
    GradiumPhononTTSForConditionalGeneration,
    PocketTTSAudioTokenizerConfig,
    PocketTTSAudioTokenizerModel,
    PocketTTSConfig,
    PocketTTSFeatureExtractor,
    PocketTTSForConditionalGeneration,
    PocketTTSProcessor,
    PreTrainedTokenizerFast,
    VibeVoiceAcousticTokenizerFeatureExtractor,
    VibeVoiceConfig,
    VibeVoiceForConditionalGeneration,
    VibeVoiceProcessor,
)

from mmspec.audio.models.vibevoice.decoding import VibeVoiceHead
from mmspec.continuous.sampler import Gaussian
from mmspec.sampling.logits import Logits

AUDIO, EOS = 4, 1
WORDS = ("hello", "big", "world", "again", ".", ",", "?")


def spread(model: Any, std: float) -> Any:
    torch.manual_seed(0)
    for name, p in model.named_parameters():
        if p.ndim >= 2 or "bos" in name:
            nn.init.normal_(p, std=std)
    return model.eval()


def tiny(family: str, flow: str = "lsd", layers: int = 3) -> Any:
    head = {
        "hidden_size": 16, "num_hidden_layers": 2, "latent_dim": 4, "condition_dim": 32, "frequency_embedding_size": 16,
        "flow_type": flow,
    }  # fmt: skip
    sizes: dict[str, Any] = {
        "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": 4,
        "intermediate_size": 64, "latent_dim": 4, "pad_token_id": 3, "audio_prompt_token_id": 30,
        "audio_latent_token_id": 31, "audio_bos_token_id": 33, "flow_head_config": head,
    }  # fmt: skip
    if family == "pocket":
        return spread(PocketTTSForConditionalGeneration(PocketTTSConfig(audio_prompt_bos_token_id=32, **sizes)), 0.12)
    config = GradiumPhononTTSConfig(audio_prompt_dim=6, **sizes)
    return spread(GradiumPhononTTSForConditionalGeneration(config), 0.12)


def vibevoice(layers: int = 3, std: float = 0.15) -> Any:
    codec = {
        "hidden_size": 6, "num_filters": 4, "downsampling_ratios": [2, 4], "depths": [1, 1, 1], "kernel_size": 3,
        "layer_scale_init_value": 0.5,
    }  # fmt: skip
    text = {
        "model_type": "qwen2", "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 128,
    }  # fmt: skip
    config = VibeVoiceConfig(
        text_config=text,
        audio_config={"model_type": "vibevoice_acoustic_tokenizer", **codec},
        semantic_model_config={"model_type": "vibevoice_acoustic_tokenizer_encoder", **codec, "hidden_size": 5},
        diffusion_head_config={"num_hidden_layers": 2, "intermediate_size": 48, "frequency_embedding_size": 16},
        pad_token_id=0, eos_token_id=EOS, audio_bos_token_id=2, audio_eos_token_id=3, audio_token_id=AUDIO,
    )  # fmt: skip
    return spread(VibeVoiceForConditionalGeneration(config), std)


def planned_head(plan: list[int]) -> type[VibeVoiceHead]:
    """A head that generates these kinds and repeats the last; random weights would end an audio segment early."""

    class Planned(VibeVoiceHead):
        def __call__(self, logits: Logits, noise: Tensor, positions: np.ndarray) -> Gaussian:
            sampler, (cond, uncond) = super().__call__(logits, noise, positions), logits
            assert uncond is not None
            kinds = torch.tensor([[plan[min(n, len(plan) - 1)] for n in row] for row in positions])[..., None]
            mean = self._solve(cond.flatten(0, 1), uncond.flatten(0, 1), noise.flatten(0, 1)).view_as(sampler.mean)
            return Gaussian.deterministic(torch.where(kinds == AUDIO, mean, 0.0), kinds.float())

    return Planned


def tokenizer(special: dict[str, int], first: int, names: dict[str, str]) -> Any:
    """A tokenizer of `WORDS` from id `first` on, besides the special tokens; unknown words become the last one."""
    made = Tokenizer(WordLevel(special | {word: first + i for i, word in enumerate(WORDS)}, unk_token=WORDS[-1]))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token=WORDS[-1], pad_token=next(iter(special)), extra_special_tokens=names
    )


def pocket_processor() -> Any:
    """Prompts of voice, text and start token, as in the template of the checkpoints; a frame is 8 samples at 1 kHz."""
    config = PocketTTSAudioTokenizerConfig(
        hidden_size=16, num_filters=4, upsampling_ratios=[2, 2], intermediate_size=32, num_attention_heads=2,
        num_key_value_heads=2, sliding_window=6, latent_stride=2, latent_dim=4, upsample_groups=16, sampling_rate=1000,
    )  # fmt: skip
    names = {
        "audio_prompt_bos_token": "<voice>", "audio_prompt_token": "<reference>", "audio_latent_token": "<latent>",
        "audio_bos_token": "<begin>",
    }  # fmt: skip
    ids = {"<pad>": 3, "<reference>": 30, "<latent>": 31, "<voice>": 32, "<begin>": 33}
    template = (
        "{% for item in messages[0]['content'] %}{% if item['type'] == 'audio' %}<voice><reference>"
        "{% else %}{{ item['text'] }}{% endif %}{% endfor %}<begin>"
    )
    return PocketTTSProcessor(
        PocketTTSFeatureExtractor(sampling_rate=1000, frame_size=8, pad_to_multiple_of=8),
        tokenizer(ids, 5, names),
        audio_tokenizer=spread(PocketTTSAudioTokenizerModel(config), 0.3),
        chat_template=template,
    )


def vibevoice_processor() -> Any:
    ids = {"<pad>": 0, "<end>": 1, "<begin>": 2, "<stop>": 3, "<audio>": 4, "0": 20, "1": 21}
    template = (
        "{% for message in messages %}{% for item in message['content'] %}{% if item['type'] == 'audio' %}"
        "<begin><audio><stop>{% endif %}{% endfor %}{% endfor %}"
        "{% for message in messages %}{{ message['role'] }}{% for item in message['content'] %}"
        "{% if item['type'] == 'text' %} {{ item['text'] }} {% endif %}{% endfor %}{% endfor %}<begin>"
    )
    return VibeVoiceProcessor(
        VibeVoiceAcousticTokenizerFeatureExtractor(sampling_rate=1000, pad_to_multiple_of=8),
        tokenizer(ids, 5, {"audio_bos_token": "<begin>", "audio_eos_token": "<stop>", "audio_token": "<audio>"}),
        chat_template=template,
        audio_bos_token="<begin>",
        audio_eos_token="<stop>",
        audio_token="<audio>",
    )
