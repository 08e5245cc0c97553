"""Models whose files are known in part: what is known of them fits, at the published size, without weights."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import published
import pytest
import tiny_kyutai
import tiny_soprano
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mmspec.audio.models.flat.decoding import STREAM_FORMATS
from mmspec.audio.models.flat.soprano import soprano_style
from mmspec.audio.models.flat.yue_prompt import CODES, FIRST, SPECIAL
from mmspec.audio.models.flat.yue_tracks import BOOKS
from mmspec.audio.models.heartmula import model as heartmula
from mmspec.audio.models.kyutai_tts import model as kyutai
from mmspec.errors import ModelError


def causal(name: str) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**published.read(name, "config")))


def test_heartmula_has_the_bytes_of_its_files() -> None:
    """By its config.json, and as read without one of its values, for which the code has defaults."""
    config, stated = published.read("heartmula-oss-3b", "config"), published.read("heartmula-oss-3b", "weights")
    read = heartmula.read_config(config, "published")
    named = {name: config[name] for name in ("backbone_flavor", "decoder_flavor")}
    assert heartmula.read_config(named, "published") == read
    with torch.device("meta"):
        own = sum(p.numel() for p in heartmula.HeartMuLa(read).parameters())
        larger = replace(read, audio_num_codebooks=9)
        other = sum(p.numel() for p in heartmula.HeartMuLa(larger).parameters())
    assert abs(4 * own / 1e9 - stated["gigabytes"]) < 0.01 < abs(4 * other / 1e9 - stated["gigabytes"])


def test_llasa_has_the_tensors_of_its_file_and_its_codes() -> None:
    model, stream = causal("llasa-1b-multilingual"), STREAM_FORMATS["llasa"]
    assert len(model.state_dict()) == published.read("llasa-1b-multilingual", "weights")["tensors"]
    assert max(first + stream.codes for first in stream.first_ids().tolist()) == model.lm_head.out_features


def test_soprano_has_the_parameters_of_its_name_and_the_features_of_its_decoder() -> None:
    model = causal("soprano-1.1-80m")
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(80e6, rel=0.005)
    style = soprano_style(SimpleNamespace(**published.read("soprano-1.1-80m", "config"), eos_token_id=2), None)
    assert style.stream.codes == model.lm_head.out_features and style.tokens == 512
    assert model.lm_head.in_features == tiny_soprano.WIDTH


@pytest.mark.parametrize(("name", "books"), [("yue-s1-7b-anneal-en-cot", 1), ("yue-s2-1b-general", BOOKS)])
def test_yue_has_the_ids_of_its_codes_and_marks(name: str, books: int) -> None:
    model = causal(name)
    assert max(FIRST + books * CODES - 1, *SPECIAL.values()) < model.lm_head.out_features
    keys = model.model.layers[-1].self_attn.k_proj.weight.shape
    assert keys == ((512, 4096) if books == 1 else (2048, 2048))


def test_kyutai_tts() -> None:
    """The conditions of the file, beside the voice, were not found; here they are those of the tests."""
    tiny, found = tiny_kyutai.config(), published.read("kyutai-tts-1.6b-en_fr", "config")
    conditions = {**tiny["conditioners"], **found["conditioners"]}
    config = kyutai.read_config({**tiny, **found, "conditioners": conditions}, "published")
    assert (config.delay_steps, config.look_ahead, config.codebooks, config.voice) == (16, 2, 32, 512)
    with torch.device("meta"):
        model = kyutai.KyutaiTTS(config)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes["depformer_emb.30.low_rank.weight"] == (1024, 128)
    assert 1.8e9 < sum(p.numel() for p in model.parameters()) < 1.9e9
    with pytest.raises(ModelError, match="delays"):
        kyutai.read_config({**tiny, **found, "conditioners": conditions, "delays": found["delays"][1:]}, "published")
