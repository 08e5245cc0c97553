"""Qwen3-TTS at its published size: parameters, names, default sampling parameters."""

from __future__ import annotations

import published
import torch

from mmspec.audio.codecs.qwen3_tts import Qwen3TTSCodecModel
from mmspec.audio.models.qwen3_tts.config import read_config
from mmspec.audio.models.qwen3_tts.model import Qwen3TTS
from mmspec.audio.models.qwen3_tts.speech import sampling_of
from mmspec.sampling.params import SamplingParams

NAME = "qwen3-tts-12hz-1.7b-customvoice"


def test_the_model_of_the_published_size() -> None:
    config = read_config(published.read(NAME, "config"), NAME)
    with torch.device("meta"):
        model = Qwen3TTS(config)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes["talker.model.codec_embedding.weight"] == (3072, 2048)
    assert shapes["talker.model.text_embedding.weight"] == (151936, 2048)
    assert shapes["talker.model.layers.27.self_attn.q_norm.weight"] == (128,)
    assert shapes["talker.code_predictor.small_to_mtp_projection.weight"] == (1024, 2048)
    assert shapes["talker.code_predictor.model.codec_embedding.14.weight"] == (2048, 2048)
    assert shapes["talker.code_predictor.lm_head.14.weight"] == (2048, 1024)
    assert shapes["talker.code_predictor.model.layers.4.mlp.up_proj.weight"] == (3072, 1024)
    # "1.7B": the talker's layers have 1.4e9 parameters, the embedding of text 0.3e9, the code predictor 0.2e9.
    assert 1.7e9 < sum(value.numel() for value in model.state_dict().values()) < 2.0e9
    assert config.codes == 2048 and config.codebooks == 16
    assert config.language("auto", "dylan") == 2074 and config.language("auto", "ryan") is None
    assert config.language("English", "dylan") == 2050 and config.language("Chinese", "eric") == 2062


def test_the_smaller_model_has_the_size_of_its_file() -> None:
    """Two bytes per parameter, and a header of 478 names and places."""
    with torch.device("meta"):
        model = Qwen3TTS(read_config(published.read("qwen3-tts-12hz-0.6b-base", "config"), "0.6b"))
    state = model.state_dict()
    header = 1_829_344_272 - 2 * sum(value.numel() for value in state.values())
    assert len(state) == 478 and 100 * len(state) < header < 150 * len(state)


def test_base_and_voice_design_have_no_dialects_and_no_speakers() -> None:
    for name, kind, width in (("base", "base", 2048), ("voicedesign", "voice_design", None)):
        config = read_config(published.read(f"qwen3-tts-12hz-1.7b-{name}", "config"), name)
        assert config.kind == kind and not config.speakers and len(config.languages) == 10
        assert width is None or config.speaker_encoder.enc_dim == width


def test_the_codec_of_the_published_size() -> None:
    with torch.device("meta"):
        model = Qwen3TTSCodecModel(published.read("qwen3-tts-tokenizer-12hz", "config"))
    assert (model.hop, model.codebooks, model.codebook_size, model.sampling_rate) == (1920, 16, 2048, 24000)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes["decoder.quantizer.rvq_rest.vq.layers.14._codebook.embedding_sum"] == (2048, 256)
    assert shapes["decoder.pre_transformer.layers.7.self_attn.q_proj.weight"] == (1024, 512)
    assert shapes["decoder.decoder.4.block.1.conv.weight"] == (192, 96, 6)
    assert shapes["encoder.quantizer.acoustic_residual_vector_quantizer.layers.30.codebook.embed_sum"] == (2048, 256)


def test_default_sampling_parameters() -> None:
    found = published.read(NAME, "generation_config")
    assert sampling_of(found, "") == sampling_of(found, "subtalker_") == SamplingParams(0.9, 50, 1.0)
    assert sampling_of({}, "") == SamplingParams(0.9, 50, 1.0)
    assert sampling_of({"subtalker_dosample": False}, "subtalker_").temperature == 0
