"""`mmspec.accelerate` on the class of liquid-audio itself, with tiny random weights; `.ci/packages` runs it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mmspec

pytestmark = [pytest.mark.liquid_audio, pytest.mark.filterwarnings("default")]

AUDIO_START, TEXTS = 128, 6


@pytest.fixture(scope="module")
def model() -> Any:
    """A model whose first text id begins audio."""
    from liquid_audio import LFM2AudioModel
    from liquid_audio.model.conformer.encoder import ConformerEncoderConfig
    from liquid_audio.model.lfm2_audio import DepthformerConfig, LFM2AudioConfig
    from transformers import Lfm2Config

    torch.manual_seed(0)
    language = Lfm2Config(
        vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, layer_types=["conv", "full_attention", "conv"], max_position_embeddings=2048,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    encoder = ConformerEncoderConfig(
        feat_in=128, feat_out=-1, n_layers=1, d_model=32, subsampling="dw_striding", subsampling_factor=8,
        subsampling_conv_channels=16, causal_downsampling=False, reduction=None, reduction_position=None,
        reduction_factor=1, ff_expansion_factor=2, self_attention_model="rel_pos", n_heads=2,
        att_context_size=[[-1, -1]], xscaling=False, untie_biases=True, pos_emb_max_len=500, conv_kernel_size=9,
        conv_norm_type="batch_norm", conv_context_size=None, dropout=0.0, dropout_pre_encoder=0.0, dropout_emb=0.0,
        dropout_att=0.0,
    )  # fmt: skip
    config = LFM2AudioConfig(
        architectures=[], codebooks=8, tie_audio_embeddings=False, semantic_codebook_factor=100, codebook_weight="log",
        interleaved_n_text=2, interleaved_n_audio=4, preprocessor=None, encoder=encoder, lfm=language,
        depthformer=DepthformerConfig(layers=2, dim=64, tie=True),
    )  # fmt: skip
    made = LFM2AudioModel(config).eval()
    with torch.no_grad():
        for weight in made.depthformer.parameters():
            if weight.ndim > 1:
                weight *= 3
        hidden = made.lfm(inputs_embeds=made._prefill(**prompt())).last_hidden_state[0, -1]
        made.lfm.embed_tokens.weight[AUDIO_START] = hidden / hidden.norm() * 30
    return made


def prompt() -> dict[str, Any]:
    """A text alone."""
    return {
        "text": torch.arange(10, 10 + TEXTS)[None], "audio_in": torch.zeros(128, 0),
        "audio_in_lens": torch.zeros(0, dtype=torch.int64), "audio_out": torch.zeros(8, 0, dtype=torch.int64),
        "modality_flag": torch.ones(1, TEXTS, dtype=torch.int64),
    }  # fmt: skip


def call(model: Any, method: str, **more: Any) -> list[Any]:
    return [token.tolist() for token in getattr(model, method)(**prompt(), **{"max_new_tokens": 24, **more})]


@pytest.mark.parametrize("method", ["generate_sequential", "generate_interleaved"])
def test_greedy_tokens_are_those_of_the_untouched_object(model: Any, method: str) -> None:
    own = call(model, method)
    frames = sum(len(token) == 8 for token in own)
    assert frames > 8
    for recipe in ("plain", "scd:window=4", "sjd", "recycle:window=3", None):
        with mmspec.accelerated(model, recipe):
            assert call(model, method) == own
            assert call(model, method, audio_temperature=0.9, audio_top_k=1) == own
            stats = mmspec.last_stats(model)
            assert stats is not None and stats.tokens == frames * 8
            print(method, recipe, f"{stats.tokens} codes, {stats.tokens_per_call:.2f} tokens per call")
    assert not {"generate_sequential", "generate_interleaved"} & {*vars(model)}


def test_samples_repeat_and_stream(model: Any) -> None:
    warm = {"audio_temperature": 1.0, "audio_top_k": 4, "text_temperature": 1.0}
    with mmspec.accelerated(model, "scd:window=4"):
        runs = []
        for seed in (3, 3, 4):
            torch.manual_seed(seed)
            runs.append(call(model, "generate_interleaved", **warm))
        assert runs[0] == runs[1] != runs[2]
        generator = model.generate_sequential(**prompt(), max_new_tokens=9)
        assert [len(next(generator)) for _ in range(3)] == [1, 8, 8]
        generator.close()
