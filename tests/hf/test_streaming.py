"""`token_streamer=` beside `custom_generate=mmspec.generate`: what it is given, and that it always ends."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import tiny_models as tiny
import tiny_music
import tiny_speech
import torch
from recording_streamer import Recorder
from torch import Tensor
from transformers import TextIteratorStreamer
from transformers.generation import GenerationMixin

from mmspec.errors import ArgumentError
from mmspec.hf.call import call_generate
from mmspec.hf.generate import generate

pytestmark = pytest.mark.releases

IDS = torch.tensor([[0, 0, 1, 5, 6, 7], [1, 5, 8, 9, 10, 3]])
CALL: dict[str, Any] = {
    "input_ids": IDS, "attention_mask": (IDS != 0).long(), "max_new_tokens": 12, "pad_token_id": 0
}  # fmt: skip


class Broken(Recorder):
    """Fails at its third call."""

    def put(self, value: Tensor) -> None:
        super().put(value)
        if len(self.puts) == 3:
            raise BrokenPipeError("the reader is gone")


def own_and_ours(model: Any, **call: Any) -> tuple[Recorder, Recorder]:
    own, ours = Recorder(), Recorder()
    expected = model.generate(**CALL, do_sample=False, **call, streamer=own)
    out = model.generate(**CALL, do_sample=False, **call, token_streamer=ours, custom_generate=generate)
    assert torch.equal(out, expected)
    return own, ours


def test_a_streamer_is_given_what_transformers_gives_it() -> None:
    model = tiny_speech.flat()
    own, ours = own_and_ours(model)
    assert ours.puts == own.puts and len(ours.puts) == 13 and ours.ends == own.ends == 1
    end = own.puts[5][0]
    own, ours = own_and_ours(model, eos_token_id=end)
    assert ours.puts == own.puts and ours.ends == 1


def test_tokens_are_put_as_they_are_committed() -> None:
    model, streamer, seen = tiny_speech.flat(), Recorder(), []
    model.generate(
        IDS[1:], max_new_tokens=12, do_sample=False, token_streamer=streamer, custom_generate=generate, recipe="plain",
        on_step=lambda step: seen.append(len(streamer.puts)),
    )  # fmt: skip
    assert seen == list(range(2, 14))


@pytest.mark.parametrize("broken", [{"recipe": "scdd"}, {"output_scores": True}, {"seed": [1, 2, 3]}])
def test_an_iterator_ends_after_an_error(broken: dict[str, Any]) -> None:
    model, tokenizer = tiny_speech.flat(), tiny_speech.tokenizer()
    streamer, errors = TextIteratorStreamer(tokenizer, timeout=60, skip_prompt=True), []

    def work() -> None:
        try:
            model.generate(IDS[1:], max_new_tokens=8, token_streamer=streamer, custom_generate=generate, **broken)
        except Exception as error:
            errors.append(error)

    thread = Thread(target=work)
    thread.start()
    assert "".join(streamer) == ""
    thread.join()
    assert len(errors) == 1


def test_an_iterator_reads_the_text() -> None:
    model, tokenizer = tiny_speech.flat(), tiny_speech.tokenizer()
    streamer = TextIteratorStreamer(tokenizer, timeout=60, skip_prompt=True)
    call: dict[str, Any] = {"input_ids": IDS[1:], "max_new_tokens": 8, "do_sample": False}
    thread = Thread(target=lambda: model.generate(**call, token_streamer=streamer, custom_generate=generate))
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == tokenizer.decode(model.generate(**call)[0, 6:])


def test_a_streamer_that_fails_ends_the_call() -> None:
    streamer = Broken()
    with pytest.raises(BrokenPipeError, match="the reader is gone"):
        tiny_speech.flat().generate(**CALL, token_streamer=streamer, custom_generate=generate)
    assert streamer.ends == 1


def test_a_streamer_is_refused_where_tokens_are_columns() -> None:
    for model, kind in ((tiny_music.musicgen(), "Musicgen"), (tiny_speech.csm(), "Csm")):
        streamer = Recorder()
        with pytest.raises(ArgumentError, match=f"a streamer is not supported for {kind}.*use on_step"):
            GenerationMixin.generate(
                model, torch.ones(1, 3, dtype=torch.long), max_new_tokens=9, token_streamer=streamer,
                custom_generate=generate,
            )  # fmt: skip
        assert streamer.ends == 1


def test_a_call_hands_its_streamer_on() -> None:
    model, own, ours = tiny_speech.flat(), Recorder(), Recorder()
    expected = model.generate(**CALL, do_sample=False, streamer=own)
    assert torch.equal(call_generate(model.generate, **CALL, do_sample=False, streamer=ours), expected)
    assert ours.puts == own.puts and ours.ends == 1


def test_codes_of_janus_are_streamed_without_offset() -> None:
    janus, streamer = tiny.janus(), Recorder()
    ids = torch.tensor([[1, 12, 13, 3]])
    codes = GenerationMixin.generate(
        janus, ids, do_sample=False, max_new_tokens=16, guidance_scale=5, token_streamer=streamer,
        custom_generate=generate,
    )  # fmt: skip
    assert [put[0] for put in streamer.puts[1:]] == codes[0].tolist() and streamer.ends == 1
