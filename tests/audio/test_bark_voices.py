"""Bark's voices: presets, the voice of a text's first part, the third stage, sampling parameters of stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_speech
import torch
from part_runs import decode_rows
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import BarkProcessor, PreTrainedTokenizerFast
from transformers.models.bark.generation_configuration_bark import (
    BarkCoarseGenerationConfig,
    BarkFineGenerationConfig,
    BarkSemanticGenerationConfig,
)

import mmspec
from mmspec.audio.models.bark.fine_stage import generate_fine
from mmspec.errors import ArgumentError
from mmspec.hf.generate import prepare
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

LONG = "one " * 40 + "two. " + "three " * 30 + "four."


def preset(seed: int, frames: int = 9) -> dict[str, Any]:
    """A voice of the tiny Bark, as NumPy arrays."""
    draw = np.random.default_rng(seed).integers
    codes = draw(0, 8, (4, frames))
    return {"semantic_prompt": draw(0, 20, frames * 2 // 3), "coarse_prompt": codes[:2], "fine_prompt": codes}


def processor(folder: Path) -> Any:
    """A BarkProcessor with two presets and a few words."""
    words = {"[PAD]": 0, "one": 1, "two": 2, "three": 3, "four": 4, "[UNK]": 5}
    made = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]")
    presets: dict[str, Any] = {"repo_or_path": str(folder)}
    for i, name in enumerate(("v2/en_speaker_0", "v2/en_speaker_1")):
        presets[name] = {}
        for key, prompt in preset(i).items():
            file = f"{name.replace('/', '_')}_{key}.npy"
            np.save(folder / file, prompt)
            presets[name][key] = file
    return BarkProcessor(tokenizer, presets)


def load(folder: Path) -> Any:
    model = tiny_speech.bark()
    model.generation_config.fine_acoustics_config["temperature"] = 1.0  # transformers then takes the likeliest codes
    pipe = mmspec.load(model, processor=Six(processor(folder)))
    return pipe


class Six:
    """A BarkProcessor whose texts have 6 ids, as many as the tiny Bark reads."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.available_voice_presets = inner.available_voice_presets

    def __call__(self, text: str, **how: Any) -> Any:
        return self._inner(text, max_length=6, **how)


def test_presets_match_the_models_own_generate(tmp_path: Path) -> None:
    pipe = load(tmp_path)
    assert list(pipe.adapter.voices) == ["v2/en_speaker_0", "v2/en_speaker_1"]
    for voice in pipe.adapter.voices:
        inputs = pipe.adapter.processor("one two", voice_preset=voice)
        own = pipe.adapter.model.generate(**inputs, min_eos_p=0.2)
        out = pipe("one two", voice=voice, recipe="scd:window=4", temperature=0, seed=0)
        np.testing.assert_allclose(out.audio, own.numpy(), atol=1e-5)
    one, two = (pipe("one two", voice=voice, temperature=1.0, seed=0).audio for voice in pipe.adapter.voices)
    assert not np.array_equal(one, two)


def test_later_parts_go_on_with_the_voice_of_the_first(tmp_path: Path) -> None:
    pipe = load(tmp_path)
    out = pipe([LONG, "two"], seed=3, temperature=1.0, batch_size=2)
    first, second = out[0].tokens[:2]
    adapter, parts = pipe.adapter, pipe.read(LONG, None).parts
    following = adapter.continue_voice(parts[1], parts[0], first)
    codes = adapter.codes(first)
    assert torch.equal(following.voice.codes, codes) and torch.equal(following.voice.coarse, codes[:2])
    sampling = pipe._sampling(1.0, None, None, None)
    alone = decode_rows(adapter, [following], parse(adapter.recipe), sampling, [3 + 2**32])[0]
    assert torch.equal(adapter.codes(alone), adapter.codes(second))
    assert torch.equal(adapter.codes(pipe("two", seed=4, temperature=1.0).tokens[0]), adapter.codes(out[1].tokens[0]))
    # A preset is the voice of all parts.
    parts = pipe.read(LONG, "v2/en_speaker_1").parts
    assert adapter.continue_voice(parts[1], parts[0], first) is parts[1] and parts[0].voice is parts[1].voice


def test_a_codec_is_told_how_a_part_goes_on(tmp_path: Path) -> None:
    """One that depends on the prompt must know the voice, in a call as in a stream."""
    pipe, seen = load(tmp_path), list[Any]()

    def part_codec(part: Any) -> Any:
        seen.append(part)
        return pipe.adapter.codec

    pipe.adapter.part_codec = part_codec
    pipe(LONG, seed=3, temperature=1.0)
    called, seen[:] = list(seen), []
    list(pipe.stream(LONG, seed=3, temperature=1.0))
    assert [part.voice is None for part in called] == [part.voice is None for part in seen] == [True, False]


@pytest.mark.parametrize("frames", [5, 16, 40])
@pytest.mark.parametrize("voice", [None, 12])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_third_stage_is_that_of_transformers(frames: int, voice: int | None, temperature: float) -> None:
    """With the same numbers, although it draws them from a generator of its own."""
    model = tiny_speech.bark()
    config = model.generation_config
    settings = (
        BarkSemanticGenerationConfig(**config.semantic_config),
        BarkCoarseGenerationConfig(**config.coarse_acoustics_config),
        BarkFineGenerationConfig(**{**config.fine_acoustics_config, "temperature": temperature}),
    )
    coarse = torch.randint(0, 8, (frames, 2), generator=torch.Generator().manual_seed(0))
    history = None if voice is None else torch.from_numpy(preset(7, voice)["fine_prompt"])
    flat = (coarse + torch.tensor([20, 28])).view(1, -1)
    torch.manual_seed(5)
    own = model.fine_acoustics.generate(
        flat, *settings, codebook_size=8, history_prompt=None if history is None else {"fine_prompt": history}
    )[0].T
    with torch.inference_mode():
        found = generate_fine(
            model.fine_acoustics, coarse, settings[2], 8, 0.0 if temperature == 1.0 else temperature, 5,
            None if history is None else history.T,
        )  # fmt: skip
    assert torch.equal(found, own)


def test_each_stage_samples_with_its_own_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_speech.bark()
    config = model.generation_config
    seen: dict[str, SamplingParams] = {}

    def spy(model: Any, input_ids: Tensor, processors: Any, criteria: Any, config: Any, inputs: Any) -> Any:
        p = SamplingParams(config.temperature if config.do_sample else 0.0, config.top_k, config.top_p)
        seen[type(model).__name__.removeprefix("Bark").removesuffix("Model")] = p
        return prepare(model, input_ids, processors, criteria, config, inputs)

    monkeypatch.setattr("mmspec.hf.generate.prepare", spy)

    def of(semantic: dict[str, Any], coarse: dict[str, Any], **how: Any) -> tuple[SamplingParams, SamplingParams]:
        for part, own in ((config.semantic_config, semantic), (config.coarse_acoustics_config, coarse)):
            for name in ("do_sample", "temperature", "top_k", "top_p"):
                part.pop(name, None)
            part.update(own)
        pipe = mmspec.load(model, processor=Six(processor_of_words()))
        pipe("one", seed=0, **how)
        return seen["Semantic"], seen["Coarse"]

    # Without values of its own, a checkpoint is sampled as the original code does.
    assert of({}, {}) == (SamplingParams(0.7), SamplingParams(0.7))
    own = ({"do_sample": True, "temperature": 0.6, "top_k": 7}, {"do_sample": True, "temperature": 0.8})
    assert of(*own) == (SamplingParams(0.6, 7), SamplingParams(0.8))
    assert of(*own, top_p=0.9) == (SamplingParams(0.6, 7, 0.9), SamplingParams(0.8, 0, 0.9))
    assert of(*own, temperature=0.5) == (SamplingParams(0.5, 7), SamplingParams(0.5))


def processor_of_words() -> Any:
    class Inner:
        available_voice_presets = ()

        def __call__(self, text: str, max_length: int) -> dict[str, Tensor]:
            ids = torch.tensor([[1, 2, 0, 0, 0, 0]])
            return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    return Inner()


def test_errors(tmp_path: Path) -> None:
    pipe = load(tmp_path)
    with pytest.raises(ArgumentError, match="voice='v3' is not allowed; use one of v2/en_speaker_0"):
        pipe("one", voice="v3")
    (tmp_path / "v2_en_speaker_1_fine_prompt.npy").unlink()
    with pytest.raises(ArgumentError, match="voice='v2/en_speaker_1' cannot be read: .*does not exist"):
        pipe("one", voice="v2/en_speaker_1")
