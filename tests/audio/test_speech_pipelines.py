"""Pipelines of speech models of transformers: from folders, in batches, in chunks, with draft models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_codecs
import tiny_speech as tiny
import torch
from tiny_speech import tokenizer
from torch import Tensor

import mmspec
from mmspec.audio.assembly import AudioAssembler
from mmspec.audio.codecs import codec_of
from mmspec.audio.load import smaller_model
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.speech import FlatAdapter
from mmspec.audio.models.flat.style import Style
from mmspec.audio.text_parts import TextParts
from mmspec.batching.request import RequestOutput
from mmspec.decoding.stats import RowStats
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError, ModelError, UnknownNameError
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams

# One codebook of 16 in ids 11 to 26; 10 ends.
STYLE = Style(
    StreamFormat(codes=16, first=11, end=10),
    lambda tokens, text, voice: list(tokens(text)["input_ids"]),
    SamplingParams(0.9),
    (RepetitionPenalty(1.2),),
    tokens=20,
    letters=20,
)


def flat(tmp_path: Path) -> Any:
    """Everything from folders: the model with its tokenizer, its codec, and a smaller model of the family."""
    tiny.flat(vocab_size=27).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    tiny.flat(seed=1, layers=1, vocab_size=27).save_pretrained(tmp_path / "small")
    tiny_codecs.xcodec2().save_pretrained(tmp_path / "xcodec2")
    config = {"style": STYLE, "draft_model": str(tmp_path / "small")}
    return mmspec.load(str(tmp_path / "model"), tokenizer=str(tmp_path / "xcodec2"), config=config)


def test_flat_pipeline(tmp_path: Path) -> None:
    pipe = flat(tmp_path)
    one = pipe("one two three", recipe="scd:window=4,start=left", seed=3)
    assert one["audio"].dtype == np.float32 and one["sampling_rate"] == 1000
    assert one["audio"].shape == (1, 8 * pipe.adapter.codes(one.tokens[0]).shape[1])
    both = pipe(["two", "one two three"], recipe="scd:window=4,start=left", seed=2)
    np.testing.assert_allclose(both[1]["audio"], one["audio"], atol=1e-5)
    for recipe in ("plain", "recycle:window=3", "draft:window=4"):
        greedy = pipe("one two", recipe=recipe, temperature=0, seed=0)
        assert torch.equal(greedy.tokens[0], pipe("one two", recipe="plain", temperature=0, seed=0).tokens[0])
    drafted = pipe("one two", recipe="draft:window=4", seed=0)
    assert drafted.stats.draft_calls > 0 and drafted.stats.tokens_per_call > 1
    pipe("one two", recipe="draft:window=auto", seed=0)
    assert ("draft:window=auto", 1, False) in adaptive_windows_of(pipe.adapter.model)  # for later calls
    long = pipe("one two six. seven. eight three", seed=0)
    assert len(long.tokens) == 2
    chunks = list(pipe.stream("one two six. seven. eight three", seed=0))
    np.testing.assert_allclose(np.concatenate(chunks, axis=-1), long["audio"], atol=1e-5)


def test_a_stream_goes_on_after_a_part_without_tokens(tmp_path: Path) -> None:
    pipe = flat(tmp_path)
    made = pipe.read("one two six. seven. eight three. two one six", None)
    parts = TextParts(pipe.adapter, made, SamplingParams(0.9), 0)
    assembler = AudioAssembler(pipe.adapter, pause=0.02)
    count = len(parts.prompts)
    assert count > 2
    found = [pipe("one two", seed=0).tokens[0] if i == count - 1 else torch.zeros(0).long() for i in range(count)]
    rows = [RowStats(len(each), len(each) + 1, 0.0, None, None) for each in found]

    class Engine:
        def outputs(self) -> Iterator[RequestOutput]:  # as an engine: nothing for a part without tokens
            yield RequestOutput("0", found[-1], True, "stop", 9, count - 1, parts.prompts[-1])

        def row_stats(self, number: int) -> RowStats:
            return rows[number]

        def stop(self) -> None:
            pass

    stream = assembler.stream(Engine(), parts, 4, 4)  # type: ignore[arg-type]
    stats = replace(pipe("one two", seed=0).stats, rows=rows)
    whole = assembler.request(parts).finish(found, stats)
    np.testing.assert_allclose(np.concatenate(list(stream), axis=-1), whole["audio"], atol=1e-5)
    assert list(stream.notes) == whole.notes and sum("no sound" in note for note in whole.notes) == count - 1


def test_super_frames_become_frames_of_their_slots() -> None:
    style = Style(tiny.STREAM, STYLE.prompt, SamplingParams(0), (), tokens=13)
    codec = codec_of(tiny_codecs.mimi(codebooks=2, codebook_size=8))
    adapter = FlatAdapter(tiny.flat(), tokenizer(), codec, style)
    assert adapter.codes(torch.tensor([1, 6, 5, 10, 4])).tolist() == [[0, 4], [0, 4]]  # ids from 10 on
    assert adapter.codes(torch.tensor([1, 6, 0, 0])).tolist() == [[0], [0]]
    with pytest.raises(ModelError, match="2 codebooks of 4, the model's stream 2 slots of 5"):
        FlatAdapter(tiny.flat(), tokenizer(), codec_of(tiny_codecs.mimi(2, 4)), style)


@pytest.mark.releases
def test_csm_pipeline_from_a_folder(tmp_path: Path) -> None:
    model = tiny.csm(codes=8)
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    pipe = mmspec.load(str(tmp_path), processor=tokenizer(), config={"frames": 30})
    outputs = pipe(["one two three", "two"], recipe="scd:window=4", temperature=0, seed=0)
    own = model.generate(
        torch.tensor([[4, 2, 3]]), max_new_tokens=30, do_sample=False, depth_decoder_do_sample=False, output_audio=True
    )[0]
    audio = outputs[0]["audio"][0]
    np.testing.assert_allclose(audio, own.numpy(), atol=1e-4)
    chunks = list(pipe.stream("one two three", recipe="scd:window=4", temperature=0, seed=0, first=4, every=40))
    assert chunks[0].shape[1] < audio.shape[0] / 4
    np.testing.assert_allclose(np.concatenate(chunks, axis=-1)[0], audio, atol=1e-4)


class Words:
    """A BarkProcessor in miniature: texts to ids of one length."""

    def __call__(self, text: str) -> dict[str, Tensor]:
        ids = torch.tensor([[len(word) for word in text.split()][:6]])
        ids = torch.nn.functional.pad(ids, (0, 6 - ids.shape[1]))
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


@pytest.mark.releases
def test_bark_matches_its_own_generate() -> None:
    model = tiny.bark()
    pipe = mmspec.load(model, processor=Words(), config={"draft_model": tiny.bark(seed=2)})
    text = "to be or not to be"
    own = model.generate(**Words()(text))
    for recipe in ("plain", "scd:window=4", "draft:window=4"):
        out = pipe(text, recipe=recipe, temperature=0, seed=0)
        np.testing.assert_allclose(out["audio"], own.numpy(), atol=1e-5)
        assert out.stats.target_calls < out.stats.tokens or recipe == "plain"
    pair = pipe([text, "that is the question"], seed=1)
    np.testing.assert_allclose(pipe("that is the question", seed=2)["audio"], pair[1]["audio"], atol=1e-5)
    np.testing.assert_allclose(np.concatenate(list(pipe.stream(text, seed=1)), axis=-1), pair[0]["audio"], atol=1e-5)


def test_errors(tmp_path: Path) -> None:
    model = tiny.flat()
    with pytest.raises(ArgumentError, match="LlamaForCausalLM needs its processor or tokenizer"):
        mmspec.load(model)
    with pytest.raises(ArgumentError, match="comes without a codec; pass its folder"):
        mmspec.load(model, processor=tokenizer(), config={"style": "llasa"})
    codec = codec_of(tiny_codecs.xcodec2())
    with pytest.raises(ArgumentError, match="config has no 'style'; name one of llasa, spark, orpheus"):
        mmspec.load(model, processor=tokenizer(), config={"codec": codec})
    with pytest.raises(ArgumentError, match=r"style=\['llasa'\] is not allowed; name one of llasa"):
        mmspec.load(model, processor=tokenizer(), config={"style": ["llasa"], "codec": codec})
    with pytest.raises(UnknownNameError, match="did you mean 'llasa'"):
        mmspec.load(model, processor=tokenizer(), config={"codec": codec, "style": "lasa"})
    with pytest.raises(ModelError, match="model has 21 ids, and its stream goes up to 26"):
        mmspec.load(model, processor=tokenizer(), config={"codec": codec, "style": STYLE})
    with pytest.raises(ArgumentError, match="CSM does not have"):
        mmspec.load(tiny.csm(), processor=tokenizer(), config={"layout": "x"})
    with pytest.raises(ArgumentError, match="draft_model='pair' is not possible"):
        smaller_model(tmp_path)
    assert smaller_model(tmp_path / "models--HKUSTAudio--Llasa-8B" / "snapshots" / "1") == "HKUSTAudio/Llasa-1B"
