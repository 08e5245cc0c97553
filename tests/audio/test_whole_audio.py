"""Long texts: parts in several batches, pauses, the voice of the first part, truncation, and other sampling rates."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tiny_codecs
import tiny_speech as tiny
import torch
from tiny_speech import tokenizer

from mmspec.audio.codecs import codec_of
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.speech import FlatAdapter
from mmspec.audio.models.flat.style import Style
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.audio.resampling import Resampler, resample
from mmspec.errors import ArgumentError, PromptError
from mmspec.sampling.params import SamplingParams

TEXTS = ["one two six. seven. eight three", "two", "three one two. eight eight six."]


def prompt(tokens: Any, text: str, voice: str | None) -> list[int]:
    return list(tokens(text)["input_ids"])


def pipeline(tokens: int = 20, **more: Any) -> Any:
    style = Style(StreamFormat(codes=16, first=11, end=10), prompt, SamplingParams(0.9), (), tokens, letters=14, **more)
    return SpeechPipeline(FlatAdapter(tiny.flat(vocab_size=27), tokenizer(), codec_of(tiny_codecs.xcodec2()), style))


def test_parts_are_decoded_in_batches_of_the_given_size() -> None:
    pipe = pipeline()
    whole = pipe(TEXTS, seed=1, batch_size=100, measure_entropy=True)
    for size, most in ((4, 4), (1, 1), (None, 7)):
        rows: set[int] = set()
        found = pipe(
            TEXTS, seed=1, batch_size=size, measure_entropy=True, on_step=lambda s, r=rows: r.add(len(s.tokens))
        )
        assert max(rows) == most
        for one, other in zip(found, whole, strict=True):
            assert [t[:5].tolist() for t in one.tokens] == [t[:5].tolist() for t in other.tokens]
            np.testing.assert_allclose(one.audio, other.audio, atol=1e-5)
        a, b = found.stats, whole.stats
        assert (a.tokens, len(a.rows)) == (b.tokens, 7)
        assert [row.tokens for row in a.rows] == [row.tokens for row in b.rows]
        assert a.nfe >= b.nfe and a.tokens_per_call == pytest.approx(b.tokens_per_call, rel=0.2)
        assert a.entropy == pytest.approx(b.entropy, rel=1e-4)
    for wrong in (0, True, 1.5):
        with pytest.raises(ArgumentError, match="batch_size="):
            pipe("one", batch_size=wrong)


def test_a_pause_follows_each_sentence_at_which_a_text_was_split() -> None:
    pipe, text = pipeline(), "one two six. seven one eight eight"
    assert pipe.read(text, None).texts == ["one two six.", "seven one", "eight eight"]
    plain, paused = pipe(text, seed=2), pipe(text, seed=2, pause=0.05)
    first = 8 * pipe.adapter.codes(plain.tokens[0]).shape[1]
    assert paused.audio.shape[1] == plain.audio.shape[1] + 50
    assert not paused.audio[:, first : first + 50].any()
    np.testing.assert_array_equal(np.delete(paused.audio, np.s_[first : first + 50], axis=1), plain.audio)
    chunks = np.concatenate(list(pipe.stream(text, seed=2, pause=0.05)), axis=-1)
    np.testing.assert_allclose(chunks, paused.audio, atol=1e-5)
    for wrong in (-1, 61, float("nan"), "long"):
        with pytest.raises(ArgumentError, match="pause="):
            pipe(text, pause=wrong)


def test_truncated_parts_are_reported() -> None:
    pipe, text = pipeline(tokens=3), "one two six. seven three"
    found = pipe([text, "two"], seed=0)
    for row, part in zip(found.stats.rows, [*found[0].tokens, *found[1].tokens], strict=True):
        assert row.truncated == (0 not in part.tolist())  # token 0 is the end
    assert found[0].truncated and any("reached its limit of 3 tokens" in note for note in found[0].notes)
    assert "truncated: part 1 of 2 ('one two six.')" in found[0].notes[0]
    stream = pipe.stream(text, seed=0)
    assert not stream.truncated and stream.seed == 0 and stream.sampling_rate == 1000
    list(stream)
    assert stream.truncated and stream.notes == found[0].notes
    long = pipeline(tokens=40)(text, seed=1)
    assert not long.truncated and not long.notes


def continued(tokens: Any, text: str, voice: ReferenceCodes) -> list[int]:
    return [*prompt(tokens, voice.transcript, None), *(voice.codes[:4] + 11).tolist(), *prompt(tokens, text, None)]


def test_later_parts_continue_the_voice_of_the_first() -> None:
    pipe, text = pipeline(voice_prompt=continued), "one two six. seven. eight three"
    alone = pipeline()(text, seed=3)
    found = pipe([text, "two", text], seed=3, batch_size=2)
    assert torch.equal(found[0].tokens[0], alone.tokens[0]) and not torch.equal(found[0].tokens[1], alone.tokens[1])
    assert len(found.stats.rows) == 7
    assert [row.tokens for row in found.stats.rows][:3] == [row.tokens for row in pipe(text, seed=3).stats.rows]
    chunks = np.concatenate(list(pipe.stream(text, seed=3)), axis=-1)
    np.testing.assert_allclose(chunks, found[0].audio, atol=1e-5)


def test_audio_at_another_sampling_rate() -> None:
    pipe = pipeline()
    own = pipe(TEXTS[0], seed=4)
    for rate in (1000, 1500, 441):
        found = pipe(TEXTS[0], seed=4, sampling_rate=rate)
        assert found.sampling_rate == rate and found.audio.dtype == np.float32
        np.testing.assert_allclose(found.audio, resample(own.audio, 1000, rate), atol=1e-6)
        stream = pipe.stream(TEXTS[0], seed=4, sampling_rate=rate, first=1, every=2)
        np.testing.assert_allclose(np.concatenate(list(stream), axis=-1), found.audio, atol=1e-5)
        assert stream.sampling_rate == rate
    for wrong in (0, 16000.5, 10**9):
        with pytest.raises(ArgumentError, match="sampling_rate="):
            pipe(TEXTS[0], sampling_rate=wrong)


def test_chunks_of_a_resampler_add_up() -> None:
    from torchaudio.functional import resample as whole

    audio = np.random.default_rng(0).standard_normal((2, 5003)).astype(np.float32)
    for source, target in ((24000, 16000), (16000, 44100), (44100, 8000), (24000, 24000)):
        resampler, found = Resampler(source, target), []
        for chunk in np.split(audio, [1, 2, 900, 901, 3000], axis=1):
            found.append(resampler.push(chunk))
        assert sum(part.shape[1] for part in found) > 0.5 * 5003 * target / source
        found.append(resampler.finish())
        expected = whole(torch.from_numpy(audio), source, target).numpy()
        np.testing.assert_allclose(np.concatenate(found, axis=1), expected, atol=1e-5)
    with pytest.raises(ArgumentError, match="47999 cannot be converted to 48000"):
        Resampler(47999, 48000)


def test_streams_are_asynchronous_iterators_too() -> None:
    pipe = pipeline()

    async def read() -> list[Any]:
        return [chunk async for chunk in pipe.stream(TEXTS[0], seed=5)]

    np.testing.assert_allclose(np.concatenate(asyncio.run(read()), axis=-1), pipe(TEXTS[0], seed=5).audio, atol=1e-5)


def test_a_dropped_stream_is_freed_at_once() -> None:
    stream = pipeline().stream(TEXTS[0], seed=0)
    next(stream)
    gone = weakref.ref(stream)
    gc.disable()
    try:
        del stream
        assert gone() is None
    finally:
        gc.enable()


def test_texts_of_other_types_are_refused() -> None:
    pipe = pipeline()
    for wrong in (5, None, b"one", [b"one"]):
        with pytest.raises(PromptError, match="must be a string"):
            pipe(wrong)
    with pytest.raises(PromptError, match="has surrogates"):
        pipe("one \udcff")
    with pytest.raises(ArgumentError, match="240,000 characters of one text exceed the limit of 100,000; MMSPEC"):
        pipe("one " * 60000)
