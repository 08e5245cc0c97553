"""Pocket TTS, VibeVoice and Moshi at the sizes that their original code publishes them with, on the meta device."""

from __future__ import annotations

from typing import Any

import published
import pytest
import tiny_latents
import torch
from transformers import (
    MoshiConfig,
    MoshiForConditionalGeneration,
    PocketTTSConfig,
    PocketTTSForConditionalGeneration,
    VibeVoiceConfig,
    VibeVoiceForConditionalGeneration,
)

import mmspec


def billions(part: Any) -> float:
    return sum(p.numel() for p in part.parameters()) / 1e9


def test_pocket() -> None:
    """The defaults of the class are the published sizes; ids from the vocabulary's size on are places of audio."""
    own = published.read("pocket-tts", "config")
    model, lookup, flow = own["flow_lm"]["transformer"], own["flow_lm"]["lookup_table"], own["flow_lm"]["flow"]
    config = PocketTTSConfig()
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.intermediate_size) == (
        model["d_model"], model["num_layers"], model["num_heads"], model["d_model"] * model["hidden_scale"]
    )  # fmt: skip
    head = config.flow_head_config
    assert (head.hidden_size, head.num_hidden_layers, head.condition_dim) == (flow["dim"], flow["depth"], lookup["dim"])
    assert head.latent_dim == config.latent_dim == own["mimi"]["quantizer"]["dimension"]
    assert config.audio_prompt_token_id == lookup["n_bins"] and config.frame_rate == own["mimi"]["frame_rate"]
    with torch.device("meta"):
        target = PocketTTSForConditionalGeneration(config)
    pipe = mmspec.load(target, processor=tiny_latents.pocket_processor())
    assert pipe.config["temperature"] == 0.7 and billions(target) == pytest.approx(0.09, rel=0.05)


def test_vibevoice() -> None:
    own = published.read("vibevoice-1.5b", "config")
    acoustic, semantic = own["acoustic_tokenizer_config"], own["semantic_tokenizer_config"]
    head = own["diffusion_head_config"]
    codecs = [
        {
            "model_type": kind,
            "channels": codec["channels"],
            "hidden_size": codec["vae_dim"],
            "num_filters": codec["encoder_n_filters"],
            "downsampling_ratios": codec["encoder_ratios"][::-1],
            "depths": list(map(int, codec["encoder_depths"].split("-"))),
            "rms_norm_eps": codec["layernorm_eps"],
            "layer_scale_init_value": codec["layer_scale_init_value"],
        }
        for kind, codec in (
            ("vibevoice_acoustic_tokenizer", acoustic),
            ("vibevoice_acoustic_tokenizer_encoder", semantic),
        )
    ]
    config = VibeVoiceConfig(
        text_config=own["decoder_config"],
        audio_config=codecs[0],
        semantic_model_config=codecs[1],
        diffusion_head_config={
            "hidden_size": head["hidden_size"],
            "latent_size": head["latent_size"],
            "num_hidden_layers": head["head_layers"],
            "intermediate_size": round(head["hidden_size"] * head["head_ffn_ratio"]),
            "rms_norm_eps": head["rms_norm_eps"],
        },
    )
    with torch.device("meta"):
        model = VibeVoiceForConditionalGeneration(config)
    defaults = VibeVoiceConfig()  # what the class fills in for a config that says nothing about a part
    for name in ("audio_config", "semantic_model_config"):
        assert getattr(config, name).to_dict() == getattr(defaults, name).to_dict(), name
    assert config.audio_config.vae_std == acoustic["fix_std"] / 0.8
    pipe = mmspec.load(model, processor=tiny_latents.vibevoice_processor())
    assert (pipe.config["recipe"], pipe.config["temperature"]) == ("plain", 1.0)
    assert billions(model.model.language_model) == pytest.approx(1.544, rel=0.001)


def test_moshi() -> None:
    """Gates split the width of the original's feed-forward layers: 2/3 of it, twice."""
    own = published.read("moshiko-7b", "config")
    config = MoshiConfig(audio_vocab_size=own["card"])
    depth = config.depth_decoder_config
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (
        own["text_card"], own["dim"], own["num_layers"], own["num_heads"]
    )  # fmt: skip
    assert config.ffn_dim == 2 * int(own["dim"] * own["hidden_scale"] * 2 / 3)
    assert (depth.hidden_size, depth.num_hidden_layers, depth.num_attention_heads, depth.num_codebooks) == (
        own["depformer_dim"], own["depformer_num_layers"], own["depformer_num_heads"], own["dep_q"]
    )  # fmt: skip
    assert depth.ffn_dim == 2 * int(own["depformer_dim_feedforward"] * 2 / 3)
    assert (depth.input_size, depth.audio_vocab_size, depth.sliding_window) == (
        own["dim"], own["card"], own["depformer_context"]
    )  # fmt: skip
    assert (config.num_codebooks, config.sliding_window) == (own["dep_q"], own["context"])
    with torch.device("meta"):
        model = MoshiForConditionalGeneration(config)
    speech = billions(model) - billions(model.audio_encoder)
    assert speech == pytest.approx(7.69, rel=0.01)
