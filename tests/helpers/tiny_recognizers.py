"""Small audio networks with random weights, saved to folders from which the extractors load them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    ClapConfig,
    ClapFeatureExtractor,
    ClapModel,
    RobertaTokenizer,
    Wav2Vec2FeatureExtractor,
    WavLMConfig,
    WavLMForXVector,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = ["<s>", "<pad>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "<mask>"]


def save_clap(folder: Path) -> Path:
    torch.manual_seed(0)
    audio = {
        "window_size": 4, "num_mel_bins": 16, "spec_size": 64, "patch_size": 4, "patch_stride": [4, 4],
        "depths": [1, 1],
        "num_attention_heads": [2, 2], "patch_embeds_hidden_size": 8, "hidden_size": 16, "num_hidden_layers": 2,
        "enable_fusion": False, "num_classes": 2,
    }  # fmt: skip
    text = {**SIZES, "vocab_size": len(WORDS), "max_position_embeddings": 12, "pad_token_id": 1, "projection_dim": 12}
    config = ClapConfig(text_config=text, audio_config={**audio, "projection_dim": 12}, projection_dim=12)
    ClapModel(config).save_pretrained(folder)
    ClapFeatureExtractor(
        feature_size=16, sampling_rate=8000, hop_length=128, fft_window_size=512, max_length_s=1, frequency_max=4000,
        truncation="rand_trunc", padding="repeatpad",
    ).save_pretrained(folder)  # fmt: skip
    RobertaTokenizer(vocab={word: i for i, word in enumerate(WORDS)}, merges=[]).save_pretrained(folder)
    return folder


def save_wavlm(folder: Path) -> Path:
    torch.manual_seed(0)
    config = WavLMConfig(
        **SIZES, conv_dim=[8, 8], conv_kernel=[10, 8], conv_stride=[10, 8], num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, tdnn_dim=[8, 8], tdnn_kernel=[3, 1],
        tdnn_dilation=[2, 1], xvector_output_dim=6,
    )  # fmt: skip
    WavLMForXVector(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(sampling_rate=16_000).save_pretrained(folder)
    return folder


def save_whisper(folder: Path) -> Path:
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=len(WORDS), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_mel_bins=8, max_source_positions=50,
        max_target_positions=12, decoder_start_token_id=0, bos_token_id=0, eos_token_id=2, pad_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    model.generation_config.max_length = 8
    model.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(WORDS)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    WhisperTokenizer(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), unk_token="<unk>", bos_token="<s>",
        eos_token="</s>", pad_token="<pad>",
    ).save_pretrained(folder)  # fmt: skip
    return folder
