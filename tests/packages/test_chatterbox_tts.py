"""`mmspec.accelerate` on the classes of chatterbox-tts itself, with tiny random weights; `.ci/packages` runs it."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_chatterbox import T3 as SHAPES
from tiny_chatterbox import TURBO, multilingual_tokenizer, state
from torch import Tensor
from two_samples import chi_square

import mmspec

pytestmark = [pytest.mark.chatterbox, pytest.mark.filterwarnings("default")]

# What leaves each call its most likely code alone.
GREEDY: dict[str, dict[str, Any]] = {"english": {"min_p": 1.0}, "turbo": {"top_k": 1, "repetition_penalty": 1.0}}


class Levels:
    """In place of the vocoder: a level per code."""

    def inference(self, speech_tokens: Tensor, ref_dict: Any, **settings: Any) -> tuple[Tensor, None]:
        return speech_tokens.float()[None].repeat_interleave(960, 1) / 6561 - 0.5, None


def t3(size: int, kind: str) -> Any:
    """A tiny T3, of the package's class, with the tensors of a published one."""
    from chatterbox.models.t3.llama_configs import LLAMA_CONFIGS
    from chatterbox.models.t3.modules.perceiver import Perceiver
    from chatterbox.models.t3.modules.t3_config import T3Config
    from chatterbox.models.t3.t3 import T3

    config = T3Config(text_tokens_dict_size=size)
    config.llama_config_name, config.speaker_embed_size = kind, 8
    if kind == "turbo":
        tiny = {"n_embd": 64, "hidden_size": 64, "n_head": 1, "n_layer": 2, "n_positions": 1100, "vocab_size": 8}
        LLAMA_CONFIGS[kind] = {**LLAMA_CONFIGS["GPT2_medium"], **tiny}
        config.speech_tokens_dict_size, config.input_pos_emb = 6563, None
        config.use_perceiver_resampler, config.emotion_adv = False, False
        model = T3(config)
        sizes = {"text_emb.weight": [size, 64], "text_head.weight": [size, 64], "tfmr.wpe.weight": [1100, 64]}
        model.load_state_dict(state(TURBO | sizes))
        model.speech_head.bias.data[6562] = 1.0  # so that texts end
        del model.tfmr.wte
        return model.eval()
    layers = 14 if size > 2000 else 2  # the multilingual one reads what layers 9, 12 and 13 attend to
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 4} if size > 2000 else {
        "num_attention_heads": 1, "num_key_value_heads": 1
    }  # fmt: skip
    tiny = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": layers, "vocab_size": 8, **heads}
    LLAMA_CONFIGS[kind] = {**LLAMA_CONFIGS["Llama_520M"], **tiny}
    model = T3(config)
    model.cond_enc.perceiver = Perceiver(4, 64, 64)  # that of the package has a fixed size
    shapes = {name: list(each.shape) for name, each in model.state_dict().items()}
    assert set(SHAPES) <= set(shapes)
    model.load_state_dict(state(shapes))
    return model.eval()


@pytest.fixture(scope="module", params=["english", "turbo", "multilingual"])
def model(request: Any, tmp_path_factory: Any) -> tuple[str, Any]:
    """The kind, and an object of the class that people call."""
    segmenter: Any = ModuleType("spacy_pkuseg")  # which downloads a model
    segmenter.pkuseg = SimpleNamespace
    sys.modules["spacy_pkuseg"] = segmenter
    from chatterbox import ChatterboxMultilingualTTS, ChatterboxTTS
    from chatterbox.models.t3.modules.cond_enc import T3Cond
    from chatterbox.models.tokenizers import EnTokenizer, MTLTokenizer, tokenizer
    from chatterbox.tts import Conditionals
    from chatterbox.tts_turbo import ChatterboxTurboTTS

    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    file = str(folder / "tokenizer.json")
    multilingual_tokenizer().save(file)
    (folder / "cangjie.json").write_text(json.dumps([]))
    tokenizer.hf_hub_download = lambda **_: str(folder / "cangjie.json")
    voice = T3Cond(
        speaker_emb=torch.linspace(-1, 1, 8)[None],
        cond_prompt_speech_tokens=torch.tensor([[5, 70, 900, 6000, 33]]),
        emotion_adv=0.5 * torch.ones(1, 1, 1),
    )
    conds: Any = Conditionals(voice, {})
    if kind == "turbo":
        from transformers import PreTrainedTokenizerFast

        texts = PreTrainedTokenizerFast(tokenizer_file=file, unk_token="[UNK]", pad_token="[STOP]")
        return kind, ChatterboxTurboTTS(t3(300, kind), Levels(), None, texts, "cpu", conds)
    if kind == "english":
        return kind, ChatterboxTTS(t3(300, kind), Levels(), None, EnTokenizer(file), "cpu", conds)
    return kind, ChatterboxMultilingualTTS(t3(2454, kind), Levels(), None, MTLTokenizer(file), "cpu", conds)


def speak(model: tuple[str, Any], **more: Any) -> Tensor:
    """The audio of a text, of which the package allows 1,000 codes."""
    kind, tts = model
    language = {"language_id": "fr"} if kind == "multilingual" else {}
    torch.manual_seed(0)
    wave: Tensor = tts.generate("un deux trois", **language, **more)
    return wave


def test_greedy_audio_is_that_of_the_untouched_object(model: tuple[str, Any]) -> None:
    kind, tts = model
    greedy = GREEDY.get(kind, {"min_p": 1.0})
    own = speak(model, **greedy)
    assert mmspec.accelerate(tts, "scd:window=4") is tts
    assert torch.equal(speak(model, **greedy), own)
    stats = mmspec.last_stats(tts)
    print(kind, None if stats is None else f"{stats.tokens} codes, {stats.tokens_per_call:.2f} tokens per call")
    assert (stats is None) == (kind == "multilingual")
    mmspec.accelerate(tts, enabled=False)
    assert not {"inference", "inference_turbo"} & {*vars(tts.t3)}


def test_exaggeration_and_the_same_seed_twice(model: tuple[str, Any]) -> None:
    kind, tts = model
    more = {} if kind == "turbo" else {"exaggeration": 1.5}
    with mmspec.accelerated(tts, "scd:window=4"):
        own = speak(model, **more)
        assert torch.equal(speak(model, **more), own)
        if more:
            assert not torch.equal(own, speak(model))


def test_codes_follow_the_distribution_of_the_untouched_object(model: tuple[str, Any]) -> None:
    kind, tts = model
    if kind == "multilingual":  # runs without mmspec
        return
    texts = torch.tensor([[255, 20, 30, 0]])

    def sample() -> int:
        if kind == "turbo":
            codes = tts.t3.inference_turbo(tts.conds.t3, texts, top_k=3, max_gen_len=1)
        else:
            codes = tts.t3.inference(
                t3_cond=tts.conds.t3, text_tokens=texts.repeat(2, 1), max_new_tokens=2, min_p=0.0, temperature=0.08
            )
        return hash(tuple(codes[0].tolist())) % 997

    torch.manual_seed(0)
    own = torch.tensor([sample() for _ in range(200)])
    with mmspec.accelerated(tts, "scd:window=3"):
        ours = torch.tensor([sample() for _ in range(200)])
    statistic, limit = chi_square(own, ours)
    print(kind, len(own.unique()), f"outcomes, {statistic:.1f} of {limit:.1f}")
    assert len(own.unique()) > 3 and statistic < limit
