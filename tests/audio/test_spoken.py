"""The embedded voice: text normalization, target, n-gram drafts, codec, and the words that are recognized."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from batch_runs import run

import mmspec
from mmspec.audio.outputs import AudioOutput, AudioOutputs
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.audio.spoken.codec import SpokenCodec
from mmspec.audio.spoken.config import CODES, SAMPLING_RATE
from mmspec.audio.spoken.ngram_drafter import (
    LEVELS,
    TextNGramDrafter,
    TextNGramTable,
    context_key,
    pack_tokens,
    script_keys,
)
from mmspec.audio.spoken.recognizer import embedded_recognizer, merge_homophones
from mmspec.audio.spoken.target import SpokenTarget
from mmspec.audio.spoken.text import Sentence, alphabet, read, script
from mmspec.audio.spoken.transformer import SpokenTransformer
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.errors import ArgumentError, PromptError
from mmspec.limits import VOICE_SECONDS
from mmspec.media.audio import read_audio
from mmspec.metrics.audio.word_error_rate import word_error_rate
from mmspec.recipes import parse
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Draft
from mmspec.sampling.rng import WindowRNG
from mmspec.testing.adapters import joint_probs
from mmspec.testing.exactness import noise_floor

TEXTS = ["turn on the light", "call extension four two", "good morning anna", "the code is B seven"]
FEATURES = alphabet().features(script(Sentence(("a",)), 1))  # three phones
SAMPLES, LENGTH = 6000, 4


def tiny(seed: int = 0, codes: int = 2) -> SpokenTransformer:
    net = SpokenTransformer(16, 2, 2, 24, list(alphabet().sizes), codes).eval()
    generator = torch.Generator().manual_seed(seed)
    for p in net.parameters():
        if p.ndim > 1:
            p.data = torch.randn(p.shape, generator=generator) * 0.4
    return net


@pytest.fixture(scope="module")
def pipe() -> SpeechPipeline:
    loaded: SpeechPipeline = mmspec.load("spoken")
    return loaded


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 7:30.", "it is seven thirty"),
        ("1,234 and 007", "one thousand two hundred and thirty four and zero zero seven"),
        ("-5% of 21.5°", "minus five percent of twenty one point five degrees"),
        ("the 3rd, at 8:05", "the third _ at eight O five"),
        ("Zoë!", "Z O E"),
        ("10² and x³", "ten to the power of two and X to the power of three"),
        ("1½ hours, ½ hour, 1/2 hour", "one and a half hours _ a half hour _ a half hour"),
        ("¼ and ¾ and 1⅓", "a quarter and point seven five and one and one third"),
        (".75 percent, -.5", "point seven five percent _ minus point five"),
        ("101st 21st 112th", "one hundred and first twenty first one hundred and twelfth"),
        ("25:99 or 7:59", "twenty five _ ninety nine or seven fifty nine"),
        ("turn **on** the *red* `light`", "turn on the red light"),
        ("2*3 * 4", "two times three times four"),
        ("# the [park](http://x.y/z)", "the park"),
        ("no¹ ①②", "no one two"),
        ("Dr. no", "D R no"),
    ],
)
def test_numbers_are_written_out_and_other_words_are_spelled(text: str, words: str) -> None:
    (sentence,) = read(text).sentences
    assert " ".join(sentence.words) == words
    assert not read(text).dropped


def test_signs_that_are_not_said_are_noted(pipe: SpeechPipeline) -> None:
    notes = pipe.read("**go**:\n* $5, 3 € / day 🙂!\n- - -\n> stop", None).notes
    assert notes == ["not said: $ € / 🙂"]
    prepared = pipe.read("go " * 30 + "left. Stop", None)
    assert [prepared.pause_follows(i) for i in range(3)] == [False, True, False]


def test_texts_are_split_into_sentences_and_long_sentences_too() -> None:
    normalized = read("where is the park? turn left. " + "go " * 50)
    assert [s.is_question for s in normalized.sentences] == [True, False, False, False, False]
    assert [len(s.words) for s in normalized.sentences] == [4, 2, 22, 22, 6]
    assert read("berlin and BERLIN, please").spelled == ["berlin", "BERLIN"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "empty"), (" \n", "empty"), ("?!", "nothing to say"), ("日本", "A to Z"), ("go " * 2000, "1500")],
)
def test_texts_that_the_voice_cannot_say_are_refused(pipe: SpeechPipeline, text: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        pipe(text)


def total_variation(recipe_text: str, drafter: type[TextNGramDrafter] = TextNGramDrafter) -> tuple[float, float]:
    """Total variation distance of a recipe from the target distribution, and the limit of an exact one."""
    sampling, layout = SamplingParams(1.3, top_k=4, top_p=0.95), Layout(LENGTH, eos=frozenset({4}), pad=4)
    net, draft = tiny(0), tiny(1)
    generator = np.random.default_rng(0)
    codes = (0, 1, CODES)
    contexts = [pack_tokens(*tokens) for tokens in product(range(4), codes, codes, codes)]
    keys = np.unique([
        context_key(script_key, context & mask)
        for level, (_, mask) in zip(script_keys(FEATURES).tolist(), LEVELS, strict=True)
        for script_key in level
        for context in contexts
    ])  # fmt: skip
    table = TextNGramTable(keys, generator.integers(0, 4, len(keys)))

    def make(batch_size: int, window: int) -> SpokenTarget:
        return SpokenTarget(net, [FEATURES] * batch_size, LENGTH, slack=window)

    joint = joint_probs(make, layout, sampling)
    recipe = parse(recipe_text)
    counts = torch.zeros(len(joint), dtype=torch.int64)
    rows = 1500
    for first in range(0, SAMPLES, rows):
        target = make(rows, recipe.window)
        resources = DraftResources(
            draft_model=lambda: SpokenTarget(draft, [FEATURES] * rows, LENGTH, slack=recipe.window),
            draft_sampling=[SamplingParams(1.0)] * rows,
            continuation=partial(drafter, table, target, [FEATURES] * rows),
        )
        tokens = run(target, recipe, layout, [sampling] * rows, range(first, first + rows), resources).tokens
        counts += torch.bincount((tokens * 5 ** torch.arange(LENGTH - 1, -1, -1)).sum(1), minlength=len(joint))
    floor, spread = noise_floor(joint, SAMPLES)
    return float((counts / SAMPLES - joint).abs().sum() / 2), floor + 5 * spread


@pytest.mark.parametrize(
    "recipe",
    ["table:window=4", "scd:window=4,start=table", "draft:window=3", "layer-skip:window=3,layers=1", "tree:branch=2/1"],
)
def test_exact_recipes_keep_the_target_distribution(recipe: str) -> None:
    tv, limit = total_variation(recipe)
    assert tv <= limit


def test_a_table_stores_only_contexts_that_improve_on_less_specific_ones() -> None:
    general, specific = [7] * 6, [1, 1, 1, 2, 2, 3]
    tokens = np.array([[5, 6]] * 3 + [[6, 5]] * 2 + [[6, 6]])
    weights = np.tile(np.array([0.9, 0.1], dtype=np.float32), (6, 1))
    # Expected counts: token 6 has 3.1, token 5 has 2.9. Context 1 clearly predicts 5; contexts 2 and 3 predict 6.
    table = TextNGramTable.count(np.array([general, specific]), tokens, weights, min_count=1.0, min_gain=0.5)
    assert dict(zip(table.keys.tolist(), table.tokens.tolist(), strict=True)) == {7: 6, 1: 5}


class UniformQ(TextNGramDrafter):
    """A broken drafter: its tokens are deterministic, but its q is uniform."""

    def extend(self, state: BatchState, draft: Draft, reused: Numbers, draws: WindowRNG) -> Draft:
        extended = super().extend(state, draft, reused, draws)
        return Draft(extended.tokens, torch.full_like(dense(extended.q), 1 / extended.q.shape[-1]))


def test_a_wrong_q_is_found() -> None:
    tv, limit = total_variation("table:window=4", UniformQ)
    assert tv > 1.5 * limit


def test_streamed_codes_decode_to_the_same_audio() -> None:
    torch.manual_seed(0)
    codec = SpokenCodec().eval()
    for p in codec.parameters():
        torch.nn.init.normal_(p, std=0.05)
    codec.book.normal_()
    codes = torch.randint(CODES, (2, 1, 40))
    whole, stream = codec.decode(codes), codec.stream()
    parts = [stream.push(codes[..., a:b]) for a, b in ((0, 1), (1, 2), (2, 9), (9, 26), (26, 40))] + [stream.finish()]
    assert whole.shape == (2, 1, 40 * codec.hop) and whole.abs().max() > 1e-3
    assert torch.allclose(torch.cat(parts, dim=-1), whole, atol=1e-6)
    assert parts[0].shape[-1] == 0 and parts[3].shape[-1] == 16 * codec.hop - codec.hop // 2


def test_the_words_of_generated_speech_are_recognized(pipe: SpeechPipeline) -> None:
    references = [merge_homophones(text) for text in TEXTS]
    for recipe, voice in (("plain", "low"), ("table", "high")):
        outputs = pipe(TEXTS, recipe=recipe, seed=0, voice=voice)
        assert isinstance(outputs, AudioOutputs)
        transcripts = [embedded_recognizer().transcribe(output.audio[0], SAMPLING_RATE) for output in outputs]
        assert word_error_rate(transcripts, references) <= 0.15
        for output in outputs:
            assert 0.1 < np.abs(output.audio).max() < 1 and 0.01 < output.audio.std() < 0.3
    assert outputs.stats.tokens_per_call > 2


def test_voices_are_listed_and_audio_is_saved(pipe: SpeechPipeline, tmp_path: Path) -> None:
    assert pipe.voices == ("low", "high")
    out = pipe("seven o'clock", voice=pipe.voices[1], seed=0)
    assert isinstance(out, AudioOutput)
    for suffix in (".wav", ".flac"):
        out.save(tmp_path / f"out{suffix}")
        audio, rate = read_audio(tmp_path / f"out{suffix}", VOICE_SECONDS)
        assert rate == SAMPLING_RATE and audio.shape == out.audio.shape and np.abs(audio - out.audio).max() < 1e-4
    with pytest.raises(ArgumentError, match="out.aac' must end in .wav, .flac"):
        out.save(str(tmp_path / "out.aac"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.flac", "out.wav"]


def test_a_stream_yields_the_audio_of_the_call(pipe: SpeechPipeline) -> None:
    text = "hello anna. it is half past three"
    whole = pipe(text, seed=1)
    chunks = list(pipe.stream(text, seed=1, first=10, every=8))
    assert isinstance(whole, AudioOutput) and whole.audio is not None
    assert np.allclose(np.concatenate(chunks, axis=1), whole.audio, atol=1e-6)
    assert len(chunks) > 8 and all(chunk.dtype == np.float32 and chunk.shape[0] == 1 for chunk in chunks)


def test_closing_a_stream_stops_decoding(pipe: SpeechPipeline) -> None:
    calls = 0

    def count(step: object) -> None:
        nonlocal calls
        calls += 1

    stream = pipe.stream("one two three four five six seven eight nine ten", recipe="plain", seed=0, on_step=count)
    assert isinstance(stream, Iterator) and calls == 0
    next(stream)
    stream.close()
    reached = calls
    assert 12 <= reached < 150
    with pytest.raises(ArgumentError, match="voice='bass'"):
        pipe.stream("one", voice="bass")


def test_an_error_while_decoding_is_raised_by_the_stream(pipe: SpeechPipeline) -> None:
    def fail(step: object) -> None:
        raise ValueError("stop here")

    with pytest.raises(ValueError, match="stop here"):
        list(pipe.stream("one", seed=0, on_step=fail))
