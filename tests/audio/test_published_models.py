"""Published configurations: sizes, folders of their layout, default sampling parameters."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import published
import pytest
import tiny_codecs
import tiny_higgs
import tiny_music
import torch
from published_folders import TINY, bark_folder, csm_folder
from safetensors.torch import save_file
from transformers import (
    DiaTokenizer,
    EncodecFeatureExtractor,
    HiggsAudioV2TokenizerModel,
    MusicgenMelodyFeatureExtractor,
    MusicgenMelodyProcessor,
    MusicgenProcessor,
)

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.csm.decoding import depth_sampling
from mmspec.audio.models.higgs.decoding import RepetitionLimit
from mmspec.errors import ArgumentError, ModelError
from mmspec.hub.files import needed_files
from mmspec.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("model", "tensors", "parameters"),
    [("dia-1.6b-0626", "tensors", "parameters"), ("bark-small", "tensors", "values")],
)
def test_the_class_at_its_published_size_has_the_tensors_of_the_checkpoint(
    model: str, tensors: str, parameters: str
) -> None:
    wanted, found = published.read(model, "weights"), published.on_meta(model).state_dict()
    assert len(found) == wanted[tensors]
    assert sum(tensor.numel() for tensor in found.values()) == wanted[parameters]


def test_csm_has_the_tensors_of_the_original_checkpoint_and_a_tied_copy() -> None:
    wanted, found = published.read("csm-1b", "weights"), published.on_meta("csm-1b").state_dict()
    own = {name: tensor for name, tensor in found.items() if not name.startswith("codec_model.")}
    del own["depth_decoder.model.embed_tokens.weight"]  # that of the backbone
    assert len(own) == wanted["original_tensors"]
    assert sum(tensor.numel() for tensor in own.values()) == wanted["original_parameters"]


def test_higgs_has_the_tensors_of_the_checkpoint_but_its_text_head() -> None:
    model = published.on_meta("higgs-audio-v2-3b-base")
    wanted, found = published.read("higgs-audio-v2-3b-base", "weights"), model.state_dict()
    text_head = model.config.vocab_size * model.config.hidden_size
    assert len(found) + len(wanted["unread"]) == wanted["tensors"]
    assert sum(tensor.numel() for tensor in found.values()) + text_head == wanted["parameters"]


@pytest.mark.parametrize("voice", [None, "1"])
def test_prompts_of_csm_are_those_of_the_documented_call_and_of_the_original_code(
    tmp_path: Path, voice: str | None
) -> None:
    csm_folder(tmp_path)
    pipe = mmspec.load(str(tmp_path))
    processor = pipe.adapter.processor
    assert type(processor).__name__ == "CsmProcessor"
    tokenizer, speaker = processor.tokenizer, voice or "0"
    for text in published.HARD_TEXTS:
        line = f"[{speaker}]{text.strip()}"
        documented = processor(line, add_special_tokens=True)["input_ids"][0].tolist()
        # generator.py of SesameAILabs/csm puts both marks around every segment.
        original = [tokenizer.bos_token_id, *tokenizer.encode(line, add_special_tokens=False), tokenizer.eos_token_id]
        (part,) = pipe.read(text, voice).parts
        assert part.ids == documented == original


def test_csm_samples_with_the_values_of_its_generation_config(tmp_path: Path) -> None:
    csm_folder(tmp_path)
    pipe = mmspec.load(str(tmp_path), config={"frames": 4})
    assert pipe.adapter.sampling == SamplingParams(0.9, 50)
    assert depth_sampling(pipe.adapter.model) == SamplingParams(0.9, 50)
    assert pipe("one", seed=0).audio.shape[0] == 1


def test_the_weights_of_csm_are_those_that_its_config_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published.read("csm-1b", "config")))
    own = ["transformers-00001-of-00002.safetensors", "transformers-00002-of-00002.safetensors"]
    described = ["config.json", "generation_config.json", "tokenizer.json", "transformers.safetensors.index.json"]
    others = ["ckpt.pt", "model.safetensors"]
    assert sorted(needed_files([*own, *described, *others], tmp_path)) == sorted([*own, *described])


@pytest.mark.releases
def test_bark_loads_with_its_voices_and_values(tmp_path: Path) -> None:
    bark_folder(tmp_path)
    pipe = mmspec.load(str(tmp_path))
    assert type(pipe.adapter.processor).__name__ == "BarkProcessor"
    assert pipe.adapter.voices == ("v2/en_speaker_6",) and pipe.adapter.sampling == SamplingParams(0.7, 50)
    (part,) = pipe.read("one one", "v2/en_speaker_6").parts
    assert part.ids.shape == (1, 256) and part.mask.sum() == 2 and part.voice.codes.shape == (8, 75)
    pipe.adapter.model.generation_config.semantic_config["max_new_tokens"] = 4
    with_voice, without = (pipe("one one", voice=voice, seed=0) for voice in ("v2/en_speaker_6", None))
    assert with_voice.truncated and without.truncated
    assert with_voice.audio.shape[0] == 1 and not torch.equal(with_voice.tokens[0], without.tokens[0])


@pytest.mark.releases
def test_dia_loads_with_its_values(tmp_path: Path) -> None:
    config = published.read("dia-1.6b-0626", "config")
    cross = {"cross_num_attention_heads": 2, "cross_num_key_value_heads": 2, "cross_head_dim": 8}
    small = {
        "encoder_config": {**TINY, "num_key_value_heads": 2, "num_hidden_layers": 1},
        "decoder_config": {**TINY, **cross, "cross_hidden_size": 16, "num_hidden_layers": 1},
    }
    generation_config = published.read("dia-1.6b-0626", "generation_config")
    published.save(tmp_path, published.merged(config, small), generation_config)
    codec = SimpleNamespace(codebooks=9, codebook_size=1024)
    pipe = mmspec.load(str(tmp_path), processor=DiaTokenizer(), config={"codec": codec})
    assert pipe.adapter.sampling == SamplingParams(1.2, 45, 0.95, 3.0)
    assert pipe.adapter.frames == 1500
    with pytest.raises(ModelError, match="the codec has 3 codebooks of 16, the model 9 of 1024"):
        mmspec.load(str(tmp_path), processor=DiaTokenizer(), config={"codec": codec_of(tiny_codecs.dac())})


@pytest.mark.releases
@pytest.mark.parametrize("name", ["musicgen-small", "musicgen-melody"])
def test_musicgen_loads_with_its_values(tmp_path: Path, name: str) -> None:
    config = published.read(name, "config")
    small = {
        "text_encoder": {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 16, "d_kv": 8},
        "audio_encoder": {"num_filters": 2, "hidden_size": 8, "codebook_dim": 8},
        "decoder": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16},
    }
    published.save(tmp_path, published.merged(config, small), published.read("musicgen-melody", "generation_config"))
    words = tiny_music.tokenizer()
    if name == "musicgen-small":
        MusicgenProcessor(EncodecFeatureExtractor(sampling_rate=32000), words).save_pretrained(tmp_path)
    else:
        MusicgenMelodyProcessor(MusicgenMelodyFeatureExtractor(), words).save_pretrained(tmp_path)
    pipe = mmspec.load(str(tmp_path))
    assert pipe.adapter.sampling == SamplingParams(1.0, 50, 1.0, 3.0)
    assert pipe.with_duration(0.1)("piano", seed=0).audio.shape == (1, 3200)
    with pytest.raises(ArgumentError, match="seconds=31 is not allowed; this model makes 0.02 to 30 seconds"):
        pipe.with_duration(31)


@pytest.mark.releases
def test_higgs_loads_with_its_processor(tmp_path: Path) -> None:
    """The codec is a folder of its own, as on the Hub."""
    tiny_higgs.processor().audio_tokenizer.save_pretrained(tmp_path / "codec")
    codec = HiggsAudioV2TokenizerModel.from_pretrained(tmp_path / "codec")
    tiny_higgs.model(3).save_pretrained(tmp_path / "model")
    tiny_higgs.processor(codec).save_pretrained(tmp_path / "model")
    pipe = mmspec.load(str(tmp_path / "model"), config={"frames": 4})
    assert type(pipe.adapter.processor).__name__ == "HiggsAudioV2Processor"
    assert pipe("one", seed=0).audio.shape[0] == 1


def test_higgs_loads_with_its_values_and_without_its_text_head(tmp_path: Path) -> None:
    config = published.merged(published.read("higgs-audio-v2-3b-base", "config"), {**TINY, "num_hidden_layers": 1})
    model = published.save(tmp_path, config, published.read("higgs-audio-v2-3b-base", "generation_config"))
    weights = {**model.state_dict(), "text_lm_head.weight": torch.zeros(config["vocab_size"], 16)}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    codec = SimpleNamespace(codebooks=8, codebook_size=1024)
    pipe = mmspec.load(str(tmp_path), processor=tiny_higgs.processor(), config={"codec": codec})
    assert pipe.adapter.sampling == SamplingParams(1.0, 50, 0.95)
    assert pipe.adapter.repetition == RepetitionLimit(7, 2)
