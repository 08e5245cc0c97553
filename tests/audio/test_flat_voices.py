"""Voices of flat speech models, in the prompts of their families."""

from __future__ import annotations

import math
import sys
import types
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_codecs
import tiny_speech as tiny
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import FEATURE_EXTRACTOR_MAPPING, PreTrainedTokenizerFast

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.neutts import espeak_phonemes, neutts_style
from mmspec.audio.models.flat.speech import (
    STYLES,
    FlatAdapter,
    llasa_prompt,
    llasa_voice_prompt,
    make,
    spark_voice_prompt,
)
from mmspec.audio.models.flat.style import Style
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes
from mmspec.errors import ArgumentError, MMSpecError, ModelError, PromptError
from mmspec.sampling.params import SamplingParams

# In the form of Llasa's: a header for each turn, and the last one left open.
TEMPLATE = "{% for m in messages %}<|start|>{{ m['role'] }}<|end|>{{ m['content'] }}<|eot|>{% endfor %}"
MARKS = ["<|start|>", "<|end|>", "<|eot|>", "<|TEXT_UNDERSTANDING_START|>", "<|TEXT_UNDERSTANDING_END|>"]


def llasa_tokenizer() -> Any:
    special = [*MARKS, "<|SPEECH_GENERATION_START|>", *[f"<|s_{i}|>" for i in range(16)]]
    words = {"<unk>": 0, **{chr(97 + i): i + 1 for i in range(4)}, " ": 5, ":": 6}
    made = Tokenizer(WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    tokenizer.add_tokens(special, special_tokens=True)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_llasa_prompts_continue_a_voice_as_published() -> None:
    tokenizer = llasa_tokenizer()
    plain = tokenizer.convert_ids_to_tokens(llasa_prompt(tokenizer, "ab", None))
    assert plain[-1] == "<|SPEECH_GENERATION_START|>" and plain.count("<|eot|>") == 1
    found = tokenizer.convert_ids_to_tokens(
        llasa_voice_prompt(tokenizer, "ab", ReferenceCodes("cd", torch.tensor([3, 15])))
    )
    assert found[-3:] == ["<|SPEECH_GENERATION_START|>", "<|s_3|>", "<|s_15|>"]
    inside = found[found.index("<|TEXT_UNDERSTANDING_START|>") + 1 : found.index("<|TEXT_UNDERSTANDING_END|>")]
    assert "".join(inside) == "cd ab"


def test_spark_prompts_are_those_of_its_package() -> None:
    """The strings are those of `process_prompt` of Spark-TTS at 2f1ea90, whose model then begins the codes itself."""
    names = ["task_tts", *(f"{end}_{part}" for end in ("start", "end") for part in ("content", "global_token"))]
    names += ["start_semantic_token", *(f"bicodec_{kind}_{i}" for kind in ("global", "semantic") for i in range(9))]
    tokenizer = llasa_tokenizer()
    tokenizer.add_tokens([f"<|{name}|>" for name in names], special_tokens=True)
    speaker = torch.tensor([[5, 0, 8]])
    for voice, said, codes in (
        (ReferenceCodes("cd", torch.tensor([3, 1]), speaker), "cd", "<|bicodec_semantic_3|><|bicodec_semantic_1|>"),
        (ReferenceCodes("", torch.zeros(0).long(), speaker), "", ""),
    ):
        found = tokenizer.convert_ids_to_tokens(spark_voice_prompt(tokenizer, "ab", voice))
        assert "".join(found) == (
            f"<|task_tts|><|start_content|>{said}ab<|end_content|><|start_global_token|><|bicodec_global_5|>"
            f"<|bicodec_global_0|><|bicodec_global_8|><|end_global_token|><|start_semantic_token|>{codes}"
        )
    with pytest.raises(ArgumentError, match="voice has no codes of its speaker"):
        spark_voice_prompt(tokenizer, "ab", ReferenceCodes("cd", torch.tensor([3])))
    with pytest.raises(ArgumentError, match="transcript='cd' is not possible: this voice has no codes"):
        spark_voice_prompt(tokenizer, "ab", ReferenceCodes("cd", torch.zeros(0).long(), speaker))
    with pytest.raises(PromptError, match="Spark speaks with the voice of a speaker's codes"):
        STYLES["spark"].prompt(tokenizer, "ab", None)


def pipeline(voice: Any = None, codec: Any = None) -> Any:
    def prompt(tokens: Any, text: str, name: str | None) -> list[int]:
        return list(tokens(text)["input_ids"])

    def voiced(tokens: Any, text: str, voice: ReferenceCodes) -> list[int]:
        return [*prompt(tokens, voice.transcript, None), *(voice.codes[:3] + 11).tolist(), *prompt(tokens, text, None)]

    style = Style(StreamFormat(16, 11, 10), prompt, SamplingParams(0.9), (), 12, letters=9, voice_prompt=voiced)
    codec = codec_of(tiny_codecs.xcodec2() if codec is None else codec)
    config = {"style": style, "codec": codec} | ({} if voice is None else {"voice": voice})
    return mmspec.load(tiny.flat(vocab_size=27), processor=tiny.tokenizer(), config=config)


def test_a_part_ends_at_the_positions_that_the_model_was_trained_with() -> None:
    """As the generate calls with a max_length of 2048 in the originals: shorter audio after a longer prompt."""
    pipe = pipeline()
    pipe.adapter.style = replace(pipe.adapter.style, positions=9, tokens=8, letters=99)
    text = "one two three"
    (part,) = pipe.read(text, None).parts
    for recipe in ("plain", "scd:window=4"):
        outs = [pipe(text, seed=seed, recipe=recipe) for seed in range(8)]
        lengths = [len(out.tokens[0]) for out in outs]
        assert len(part.ids) == 3 and max(lengths) == 6 and any(out.stats.rows[0].truncated for out in outs)
    with pytest.raises(PromptError, match="9 ids and 1 codes do not fit into 9 positions; use shorter sentences"):
        pipe.read("one two three " * 3, None)
    assert STYLES["llasa"].positions == 2048


def test_later_parts_continue_the_first_part_or_a_given_voice() -> None:
    pipe = pipeline()
    assert pipe.adapter.draws_voice
    out = pipe("one two three two", seed=1, recipe="plain")
    first, second = pipe.read("one two three two", None).parts
    continued = pipe.adapter.continue_voice(second, first, out.tokens[0])
    codes = pipe.adapter.codes(out.tokens[0])[0]
    assert continued.ids == [*first.ids, *(codes[:3] + 11).tolist(), *second.ids]
    voiced = pipeline(ReferenceCodes("two", torch.tensor([4, 5, 6, 7])))
    assert not voiced.adapter.draws_voice
    assert [part.ids for part in voiced.read("one two three two", None).parts] == [
        [2, 15, 16, 17, *first.ids],
        [2, 15, 16, 17, *second.ids],
    ]
    for wrong in (torch.tensor([16]), torch.tensor([-1]), torch.tensor([0.5]), torch.zeros(2, 2).long()):
        with pytest.raises(ArgumentError, match="they must be integers"):
            pipeline(ReferenceCodes("two", wrong))
    with pytest.raises(ArgumentError, match="pass a mmspec.audio.reference_audio.ReferenceCodes"):
        pipeline("anna")
    with pytest.raises(ArgumentError, match=r"codes=\[4, 5\] is not allowed; it must be a tensor"):
        ReferenceCodes("two", [4, 5])  # type: ignore[arg-type]
    for name, value in (("sampling_rate", "16000"), ("transcript", 5)):
        given: dict[str, Any] = {"audio": np.zeros((1, 9), np.float32), "sampling_rate": 16000} | {name: value}
        with pytest.raises(ArgumentError, match=f"{name}=.* is not allowed"):
            ReferenceAudio(**given)


@pytest.mark.parametrize("name", ["xcodec2", "neucodec"])
def test_a_recording_is_a_voice_by_its_codes(name: str) -> None:
    """The codes are those of the codec's class with its own feature extractor, masks included."""
    model = getattr(tiny_codecs, name)(real=True)
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():  # large weights, so that codes differ
        if weight.ndim > 1:
            weight.data.normal_(0, 0.3, generator=generator)
    audio = 0.3 * np.random.default_rng(0).standard_normal((2, 3000)).astype(np.float32)
    pipe = pipeline(codec=model)
    voiced = pipe.with_reference_audio(audio, 16000, " two ")
    extractor = FEATURE_EXTRACTOR_MAPPING[type(model.config)]()
    inputs = extractor(audio.mean(0), sampling_rate=16000, return_tensors="pt")
    with torch.no_grad():
        codes = model.encode(**inputs).audio_codes[0, 0]
    assert len(set(codes.tolist())) > 1 and len(codes) in (9, 10)
    given = pipeline(ReferenceCodes("two", codes), model)
    text = "one two three two"
    assert [part.ids for part in voiced.read(text, None).parts] == [part.ids for part in given.read(text, None).parts]
    assert torch.equal(torch.cat(voiced(text, seed=1).tokens), torch.cat(given(text, seed=1).tokens))
    with pytest.raises(ArgumentError, match="transcript of the reference audio is missing; this model continues"):
        pipe.with_reference_audio(audio, 16000)


def test_limits_fit_the_pieces() -> None:
    """At 12 letters a second, which is slow, a piece of a family ends before its limit."""
    for name, per_second in (("llasa", 50), ("orpheus", 7 * 12), ("spark", 50)):
        style = STYLES[name]
        assert style.letters / 12 * per_second < style.tokens
    assert STYLES["llasa"].sampling.top_k == 50  # transformers' generate, which the model card calls


def test_maya1_describes_its_voice() -> None:
    """The ids of its marks as published; its stream is that of Orpheus, in a vocabulary of 156,960 ids."""

    class Letters:
        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [128000] * add_special_tokens + [ord(letter) for letter in text]}

    ids = STYLES["maya1"].prompt(Letters(), "Hi <laugh>", "Old")
    assert ids[:2] == [128259, 128000] and ids[-4:] == [128009, 128260, 128261, 128257]
    assert "".join(map(chr, ids[2:-4])) == '<description="Old"> Hi <laugh>'
    assert STYLES["maya1"].stream.allowed(6)[-1] == 156937
    with pytest.raises(ArgumentError, match="for styles with described voices: maya1"):
        make(None, None, None, {"style": "llasa", "description": "Old"}, None)


def neutts_tokenizer() -> Any:
    marks = ["TEXT_REPLACE", "SPEECH_REPLACE", "TEXT_PROMPT_START", "TEXT_PROMPT_END", "SPEECH_GENERATION_START"]
    special = [f"<|{mark}|>" for mark in (*marks, "SPEECH_GENERATION_END")] + [f"<|speech_{i}|>" for i in range(16)]
    words = {"<unk>": 0, **{chr(97 + i): i + 1 for i in range(26)}, " ": 27, ":": 28, "\n": 29}
    made = Tokenizer(WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    tokenizer.add_tokens(special, special_tokens=True)
    return tokenizer


def test_neutts_speaks_with_the_voice_of_codes() -> None:
    """The prompt of the original: its chat with both texts as phonemes, then the codes of the voice."""
    tokenizer = neutts_tokenizer()
    style = neutts_style(tokenizer, lambda text: text.lower().replace("x", "ks") + " ", codes=16)
    voice = ReferenceCodes("Axe", torch.tensor([3, 5, 15]))
    assert style.voice_prompt is not None
    ids = style.voice_prompt(tokenizer, "Be", voice)
    asked = "<|TEXT_PROMPT_START|>akse be<|TEXT_PROMPT_END|>"
    codes = "<|SPEECH_GENERATION_START|><|speech_3|><|speech_5|><|speech_15|>"
    assert ids == tokenizer.encode(f"user: Convert the text to speech:{asked}\nassistant:{codes}")
    with pytest.raises(PromptError, match="voice of its codes"):
        style.prompt(tokenizer, "Be", None)
    with pytest.raises(ModelError, match="not that of a NeuTTS"):
        neutts_style(llasa_tokenizer())
    model = tiny.flat(vocab_size=len(tokenizer))
    model.config.max_position_embeddings = 2048
    own = replace(style, tokens=60)
    codec = codec_of(tiny_codecs.neucodec())
    pipe: Any = SpeechPipeline(FlatAdapter(model, tokenizer, codec, own, voice=voice))
    out = pipe("be", temperature=0, seed=0, recipe="scd:window=4")
    assert len(out.tokens[0]) >= 50 and out.sampling_rate == 1500
    assert out.tokens[0].tolist() == pipe("be", temperature=0, recipe="plain").tokens[0].tolist()


def test_neutts_that_reads_letters() -> None:
    """As NeuTTS 2E: no chat, no phonemes, plain quotes; both texts at once, unless an emotion stands between them."""
    tokenizer = neutts_tokenizer()
    tokenizer.add_tokens(["<|HAPPY|>"], special_tokens=True)
    config = types.SimpleNamespace(neuphonic={"input_format": "BPE", "supported_emotions": ["happy"]})
    voice = ReferenceCodes("axe:", torch.tensor([3, 15]))
    codes = "<|TEXT_PROMPT_END|><|SPEECH_GENERATION_START|><|speech_3|><|speech_15|>"
    for emotion, said in ((None, "axe: be fi"), ("neutral", "axe: be fi"), ("happy", "axe:<|HAPPY|>be fi")):
        style = neutts_style(tokenizer, codes=16, config=config, emotion=emotion)
        assert style.voice_prompt is not None
        found = style.voice_prompt(tokenizer, "be \ufb01", voice)
        assert found == tokenizer.encode(f"<|TEXT_PROMPT_START|>{said}{codes}")
    for wrong, given in (("angry", config), ("happy", None)):
        with pytest.raises(ArgumentError, match=f"emotion='{wrong}' is not one that this model has"):
            neutts_style(tokenizer, codes=16, config=given, emotion=wrong)
    for unread in ({"language": "de"}, {"phonemize": str.lower}):
        with pytest.raises(ArgumentError, match=f"{next(iter(unread))}=.* is not possible: this model reads letters"):
            neutts_style(tokenizer, codes=16, config=config, **unread)
    with pytest.raises(ArgumentError, match="language='de' is not possible: phonemize makes the phonemes"):
        neutts_style(tokenizer, str.lower, codes=16, language="de")
    config.neuphonic["input_format"] = "runes"
    with pytest.raises(ModelError, match="input_format='runes'; it must be 'phonemes' or 'BPE'"):
        neutts_style(tokenizer, codes=16, config=config)


def test_neutts_says_what_phonemes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, and with it but without espeak-ng."""

    def without_espeak(*_: Any, **__: Any) -> None:
        raise RuntimeError("espeak not installed")

    broken = types.SimpleNamespace(EspeakBackend=without_espeak)
    for found in (None, broken):
        monkeypatch.setitem(sys.modules, "phonemizer", found and types.SimpleNamespace(backend=found))
        monkeypatch.setitem(sys.modules, "phonemizer.backend", found)
        with pytest.raises(ArgumentError, match="reads phonemes of 'de': install phonemizer and espeak-ng, or pass"):
            espeak_phonemes("de")("guten Tag")


def test_min_p_is_refused_unless_an_adapter_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = pipeline()
    call: dict[str, Any] = {"seed": 0, "recipe": "plain"}
    likely, greedy = pipe("one two", min_p=1.0, **call), pipe("one two", temperature=0, **call)
    assert torch.equal(likely.tokens[0], greedy.tokens[0])
    monkeypatch.delattr(FlatAdapter, "takes_min_p")
    for name in ("min_p", "typical_p"):
        with pytest.raises(ArgumentError, match=f"{name}=0.5 is not possible: this model's sampling does not take it"):
            pipe("one two", **{name: 0.5})


@pytest.mark.parametrize("value", [5, 2.5, math.nan, True, "", "x", b"x", [], ["happy"], {}, object(), 10**400])
@pytest.mark.parametrize("name", ["phonemize", "codes", "language", "emotion"])
def test_wrong_values_for_neutts_are_refused(name: str, value: Any) -> None:
    tokenizer = neutts_tokenizer()
    config = types.SimpleNamespace(neuphonic={"input_format": "BPE"})
    if (name, value) == ("codes", 5):
        return  # the tokenizer has the first five codes
    with pytest.raises(MMSpecError, match=name) as error:
        neutts_style(tokenizer, **{"codes": 16, "config": config, name: value})
    assert "\n" not in str(error.value)
