"""Tiny random codecs of each codec class of transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    DacConfig,
    DacModel,
    EncodecConfig,
    EncodecModel,
    HiggsAudioV2TokenizerConfig,
    HiggsAudioV2TokenizerModel,
    MimiConfig,
    MimiModel,
    NeuCodecConfig,
    NeuCodecModel,
    Xcodec2Config,
    Xcodec2Model,
    XcodecConfig,
    XcodecModel,
)


def filled(model: Any, seed: int = 0) -> Any:
    """The model with random codebooks and layer scales, which some classes initialize with zeros or small numbers."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_buffers(), *model.named_parameters()]:
        if name.endswith(("embed", "embed_sum", "layer_scale.scale")):
            tensor.data.copy_(torch.randn(tensor.shape, generator=generator))
    return model.eval()


def encodec(**changes: Any) -> Any:
    """The 24 kHz variant; the 32 kHz variant with `use_causal_conv=False`."""
    torch.manual_seed(0)
    config = {
        "target_bandwidths": [1.5], "sampling_rate": 1000, "hidden_size": 8, "num_filters": 4,
        "upsampling_ratios": [4, 2], "codebook_size": 16, "num_lstm_layers": 2,
    }  # fmt: skip
    return filled(EncodecModel(EncodecConfig(**{**config, **changes})))


def dac(ratios: tuple[int, ...] = (2, 4), codebooks: int = 3, codes: int = 16) -> Any:
    torch.manual_seed(0)
    return filled(
        DacModel(
            DacConfig(
                encoder_hidden_size=4,
                downsampling_ratios=list(ratios),
                decoder_hidden_size=16,
                n_codebooks=codebooks,
                codebook_size=codes,
                codebook_dim=4,
                sampling_rate=1000,
            )
        )
    )


def mimi(codebooks: int = 4, codebook_size: int = 16, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = {
        "sampling_rate": 1000, "hidden_size": 16, "num_filters": 4, "num_residual_layers": 1,
        "upsampling_ratios": [4, 2], "codebook_size": codebook_size, "codebook_dim": 8,
        "vector_quantization_hidden_dimension": 8, "num_quantizers": codebooks, "num_hidden_layers": 2,
        "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "sliding_window": 6,
        "upsample_groups": 16,
    }  # fmt: skip
    return filled(MimiModel(MimiConfig(**{**config, **changes})))


def _levels(levels: tuple[int, ...]) -> dict[str, Any]:
    """The sizes of X-codec2 and NeuCodec."""
    return {
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "encoder_hidden_size": 4,
        "downsampling_ratios": [2, 4],
        "semantic_model_config": {
            "model_type": "wav2vec2-bert",
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
        },
        "quantization_dim": 96,
        "quantization_levels": list(levels),
    }


def xcodec2(levels: tuple[int, ...] = (4, 4), real: bool = False) -> Any:
    """An X-codec2.

    Args:
        levels: Of each digit of a code.
        real: With the published sampling rate and strides, outside of which the model cannot encode; else with 1000
            samples and 125 frames per second.
    """
    torch.manual_seed(0)
    changes = {"sampling_rate": 16000, "downsampling_ratios": [2, 2, 4, 4, 5]} if real else {"sampling_rate": 1000}
    return filled(Xcodec2Model(Xcodec2Config(**_levels(levels) | changes)))


def neucodec(levels: tuple[int, ...] = (4, 4), real: bool = False) -> Any:
    """A NeuCodec, as `xcodec2`; its audio has 1.5 times the rate of what it encodes."""
    torch.manual_seed(0)
    rate, ratios = (16000, [2, 2, 4, 4, 5]) if real else (1000, [2, 4])
    rates = {"input_sampling_rate": rate, "output_sampling_rate": rate * 3 // 2, "downsampling_ratios": ratios}
    return filled(NeuCodecModel(NeuCodecConfig(**_levels(levels) | rates)))


def xcodec() -> Any:
    """An X-codec of 3 codebooks of 16 codes, with 1000 samples and 125 frames per second."""
    torch.manual_seed(0)
    config = XcodecConfig(
        target_bandwidths=[1.5],
        sample_rate=1000,
        codebook_size=16,
        codebook_dim=8 + 16,
        acoustic_model_config={
            "model_type": "dac",
            "encoder_hidden_size": 4,
            "decoder_hidden_size": 16,
            "hidden_size": 8,
            "downsampling_ratios": [2, 4],
            "upsampling_ratios": [4, 2],
        },
        semantic_model_config={
            "model_type": "hubert",
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "conv_dim": [8, 8],
            "num_feat_extract_layers": 2,
            "conv_stride": [4, 2],
            "conv_kernel": [4, 2],
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
        },
    )
    return filled(XcodecModel(config).eval())


def higgs(real: bool = False) -> Any:
    """A codec of 3 codebooks of 16 codes.

    Args:
        real: With the published sampling rates and strides, outside of which the model cannot encode; else with 1000
            samples and 125 frames per second.
    """
    torch.manual_seed(0)
    ratios, strides = ([8, 5, 4, 2, 3], [5, 2, 2, 2, 2, 2, 2]) if real else ([2, 4], [4, 2])
    config = HiggsAudioV2TokenizerConfig(
        target_bandwidths=[0.35 if real else 1.5],
        sample_rate=24000 if real else 1000,
        semantic_sample_rate=16000 if real else 1000,
        downsample_factor=320 if real else 8,
        codebook_size=16,
        codebook_dim=4,
        acoustic_model_config={
            "model_type": "dac",
            "encoder_hidden_size": 4,
            "decoder_hidden_size": 32 if real else 16,
            "hidden_size": 8,
            "downsampling_ratios": ratios,
            "upsampling_ratios": ratios if real else [4, 2],
        },
        semantic_model_config={
            "model_type": "hubert",
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "conv_dim": [8] * len(strides),
            "conv_stride": strides,
            "conv_kernel": [10, 3, 3, 3, 3, 2, 2] if real else [4, 2],
            "num_feat_extract_layers": len(strides),
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
        },
    )
    return filled(HiggsAudioV2TokenizerModel(config))
