"""The speech pipeline of Dia: tags of speakers, voices of parts, lengths."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import published
import pytest
import tiny_codecs
import tiny_music
import torch
from part_runs import decode_rows
from transformers import DiaTokenizer
from transformers.generation import GenerationMixin

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.dialogue import dialogue_parts
from mmspec.recipes import parse

TAGS = re.compile(r"\[S[12]\]")


def load(seed: int = 2) -> Any:
    processor = SimpleNamespace(tokenizer=DiaTokenizer(), audio_tokenizer=tiny_codecs.dac())
    return mmspec.load(tiny_music.dia(seed, text_ids=256), processor=processor)


def test_prompts_are_those_of_the_original_code() -> None:
    """nari-labs/dia reads bytes, with the ids 1 and 2 for the tags; its texts begin with a tag."""
    pipe = load()
    for text in (*published.HARD_TEXTS, "[S1] One. [S2] Two. (laughs)", "[S2]No blank"):
        (part,) = pipe.read(text, None).parts
        tagged = text.strip() if TAGS.match(text.strip()) else f"[S1] {text.strip()}"
        original = list(tagged.encode().replace(b"[S1]", b"\x01").replace(b"[S2]", b"\x02"))
        assert pipe.adapter.processor.tokenizer(part.text)["input_ids"] == original


def test_parts_begin_with_the_tag_of_who_speaks() -> None:
    def parts(text: str, letters: int) -> list[str]:
        return dialogue_parts(text, TAGS, letters)

    assert parts("[S1] One. [S2] Two. [S1] Three.", 21) == ["[S1] One. [S2] Two.", "[S1] Three."]
    assert parts("[S1] One two. Three four. [S2] Five.", 16) == ["[S1] One two.", "[S1] Three four.", "[S2] Five."]
    assert parts("no tags. at all", 9) == ["no tags.", "at all"]
    assert parts("Before [S2] after", 30) == ["Before [S2] after"]


def test_the_voice_of_the_first_part_goes_on() -> None:
    pipe, plain = load(), parse("plain")
    pipe.adapter.frames = 12
    first, second = (pipe.read(text, None).parts[0] for text in ("[S1] Yes. [S2] No.", "[S1] Then why?"))
    sampling = pipe.adapter.sampling
    tokens = decode_rows(pipe.adapter, [first], plain, sampling, [0])[0]
    codes = pipe.adapter.codes(tokens)
    following = pipe.adapter.continue_voice(second, first, tokens)
    assert pipe.adapter.draws_voice and following.context.transcript == "[S1] Yes. [S2] No."
    assert torch.equal(following.context.codes, codes.T)
    # The same as reference audio of these codes, alone and beside a row without a context.
    alone = decode_rows(pipe.adapter, [following], plain, sampling, [5])[0]
    mates = decode_rows(pipe.adapter, [first, following], plain, sampling, [4, 5])
    assert torch.equal(mates[1][: len(alone)], alone[: len(mates[1])])
    again = decode_rows(pipe.adapter, [second], plain, sampling, [5])[0]
    assert not torch.equal(again[: len(alone)], alone[: len(again)])


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
@pytest.mark.parametrize("how", ["config", "max_length", "max_new_tokens"])
def test_lengths_are_those_of_the_models_own_generate(how: str) -> None:
    model, ids = tiny_music.dia(1), torch.tensor([[3, 4, 5]])
    model.generation_config.max_length = 20 if how == "config" else None
    inputs: dict[str, Any] = {
        "decoder_input_ids": torch.full((1, 1, 3), 18),
        "decoder_attention_mask": torch.ones(1, 4),
        **({} if how == "config" else {how: 20}),
    }
    own = model.generate(ids, do_sample=False, **inputs)
    ours: dict[str, Any] = {"custom_generate": mmspec.generate, "recipe": "scd:window=4", "seed": 0}
    assert torch.equal(GenerationMixin.generate(model, ids, do_sample=False, **inputs, **ours), own)


def test_a_row_that_is_ended_at_its_limit_is_truncated() -> None:
    pipe = load(3)
    cut = []
    for frames in (3, 30):
        pipe.adapter.frames = frames
        out = pipe(["Hello.", "Who?", "[S2] Me."], seed=0, temperature=1.0)
        for each in out:
            ended = (each.tokens[0][: frames - 1, 0] == 16).any()
            assert each.truncated == any(note.startswith("truncated") for note in each.notes) and not (
                ended and each.truncated
            )
            cut.append(each.truncated)
        engine, found = mmspec.Engine(pipe), list[Any]()
        engine.add("Hello.", seed=0, temperature=1.0)
        while engine.has_unfinished:
            found += [output for output in engine.step() if output.finished]
        assert (found[0].finish_reason == "length") == found[0].result.truncated == out[0].truncated
    assert any(cut) and not all(cut)


@pytest.mark.parametrize("recipe", ["plain", "scd:window=4"])
def test_a_row_that_ends_by_itself_where_it_must_is_not_truncated(recipe: str) -> None:
    """One frame less cuts it off; so do rows beside it, in a call and in an engine."""
    pipe = load(3)
    pipe.adapter.frames = 30
    texts = ["Hello.", "Who?", "[S2] Me."]
    call: dict[str, Any] = {"seed": 0, "temperature": 1.0, "recipe": recipe}
    ends = [30 if out.truncated else int((out.tokens[0][:, 0] == 16).nonzero()[0]) for out in pipe(texts, **call)]
    assert len(set(ends)) > 1
    for end in set(ends) - {30}:
        for frames in {max(end, 2), end + 1}:
            pipe.adapter.frames = frames
            assert [out.truncated for out in pipe(texts, **call)] == [own >= frames for own in ends]


def test_a_codec_of_the_callers() -> None:
    pipe = mmspec.load(
        tiny_music.dia(2, text_ids=256), processor=DiaTokenizer(), config={"codec": codec_of(tiny_codecs.dac())}
    )
    pipe.adapter.frames = 8
    assert pipe("Hello.", seed=0).audio.shape[0] == 1
