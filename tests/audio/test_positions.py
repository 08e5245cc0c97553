"""What happens at the end of a model's positions: prompts that do not fit are refused, and voices are dropped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_fish_codec
import tiny_fish_s2
import tiny_higgs
import tiny_higgs_v3
import tiny_latents
import tiny_moss
import tiny_moss_local
import tiny_moss_local_v1
import torch

import mmspec
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError, PromptError
from mmspec.recipes import parse

POSITIONS = 96
MODELS: dict[str, tuple[Callable[[Path], Path], Callable[[], Any], int]] = {
    "fish": (tiny_fish_s2.fish_s2, tiny_fish_s2.Codec, tiny_fish_s2.BOOKS),
    "higgs-3": (tiny_higgs_v3.higgs_v3, tiny_higgs_v3.Codec, tiny_higgs_v3.BOOKS),
    "moss": (tiny_moss.moss, tiny_moss.Codec, tiny_moss.BOOKS),
    "moss-local": (tiny_moss_local.moss_local, tiny_moss.Codec, tiny_moss_local.BOOKS),
    "moss-local-1": (tiny_moss_local_v1.moss_local_v1, tiny_moss.Codec, tiny_moss_local_v1.BOOKS),
}


@pytest.mark.parametrize("model", list(MODELS))
def test_the_end_of_the_positions(model: str, tmp_path: Path) -> None:
    make, codec, books = MODELS[model]
    file = make(tmp_path / "model") / "config.json"
    file.write_text(file.read_text().replace(": 1024", f": {POSITIONS}"))

    def load(**options: Any) -> Any:
        return mmspec.load(str(file.parent), config={"codec": codec(), **options})

    first = load(frames=1).adapter
    part = first.read("one", None).parts[0]
    most = 1
    while True:  # as many frames as fit
        try:
            load(frames=most + 1).adapter.read("one", None)
        except PromptError as error:
            assert f"is too long; of the model's {POSITIONS} positions, " in str(error)
            assert "use a shorter voice, or fewer frames" in str(error)
            break
        most += 1
    assert len(first.prompt(part)[0]) + most <= POSITIONS < len(first.prompt(part)[0]) + most + books + 1
    pipe = load(frames=most)
    whole = pipe("one", recipe="plain", temperature=0, seed=0)
    assert torch.equal(pipe("one", recipe="scd:window=4", temperature=0, seed=0).tokens[0], whole.tokens[0])
    voice = ReferenceCodes("", torch.ones(POSITIONS, books, dtype=torch.int64))
    with pytest.raises(PromptError, match="with its voice is too long"):
        load(frames=1, voice=voice)("one")
    for frames in (1, most):
        short = load(frames=most // 2).adapter
        codes = torch.ones(books, frames, dtype=torch.int64)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(short, "codes", lambda tokens, codes=codes: codes)
            after = short.continue_voice(part, part, torch.empty(0))
        assert (after.voice is not None) == (frames == 1)


def test_a_voice_that_is_too_long_is_refused_before_it_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = mmspec.load(str(tiny_fish_codec.add_codec(tiny_fish_s2.fish_s2(tmp_path))), config={"frames": 24})
    codec = pipe.adapter.codec
    monkeypatch.setattr(type(codec), "encode", lambda *_: pytest.fail("the voice is encoded"))
    voice = np.zeros((1, 1000 * codec.hop), dtype=np.float32)
    with pytest.raises(ArgumentError, match="audio of 1000 frames is too long for a voice; of the model's 1024 pos"):
        pipe.with_reference_audio(voice, codec.sampling_rate)


def higgs(positions: int, **options: Any) -> Any:
    model = tiny_higgs.model(3)
    model.config.max_position_embeddings = positions
    return mmspec.load(model, processor=tiny_higgs.processor(), config=options)


def test_the_end_of_the_positions_of_higgs() -> None:
    part = higgs(2048, frames=4).read("Hello.", None).parts[0]
    most = len(higgs(2048, frames=4).adapter._prompt(part).ids) + 4 + 3  # the columns of 4 frames and 3 codebooks
    pipe = higgs(most, frames=4)
    whole = pipe("Hello.", recipe="plain", temperature=0, seed=0)
    assert torch.equal(pipe("Hello.", recipe="scd:window=4", temperature=0, seed=0).tokens[0], whole.tokens[0])
    for positions, frames in ((most - 1, 4), (most, 5)):
        with pytest.raises(PromptError, match=f"is too long; of the model's {positions} positions, {frames + 3} are"):
            higgs(positions, frames=frames)("Hello.")
    with pytest.raises(ArgumentError, match="is too long for a voice; of the model's"):
        pipe.with_reference_audio(np.zeros((1, 24000 * 9), dtype=np.float32), 24000, "One.")
    codes = torch.ones(3, 4, dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        for positions, kept in ((most, False), (2048, True)):
            adapter = higgs(positions, frames=4).adapter
            patch.setattr(adapter, "codes", lambda tokens: codes)
            after = adapter.continue_voice(part, part, torch.empty(0))
            assert bool(after.context) == kept


def latents(family: str, positions: int, **options: Any) -> Any:
    if family == "vibevoice":
        model, processor = tiny_latents.vibevoice(), tiny_latents.vibevoice_processor()
        model.config.text_config.max_position_embeddings = positions
    else:
        model, processor = tiny_latents.tiny(family), tiny_latents.pocket_processor()
        model.config.max_position_embeddings = positions
    return mmspec.load(model, processor=processor, config=options)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("family", ["pocket", "phonon", "vibevoice"])
def test_the_end_of_the_positions_of_latents(family: str) -> None:
    text, most = "hello big world", 3
    with pytest.raises(PromptError, match="is too long; of the model's 3 positions, 2 are for the generated frames"):
        latents(family, most, frames=2)(text)
    while True:  # as few positions as suffice
        try:
            latents(family, most, frames=2).read(text, None)
            break
        except PromptError:
            most += 1
    assert 5 < most < 20 and latents(family, most, frames=2)(text, seed=0).stats.rows[0].tokens <= 2
    with pytest.raises(PromptError, match="3 are for the generated frames"):
        latents(family, most, frames=3)(text)
    if family != "phonon":  # whose voices are vectors of another width than its frames
        voice = np.zeros((1, 8 * most), dtype=np.float32)
        with pytest.raises(ArgumentError, match="is too long for a voice; of the model's"):
            latents(family, most, frames=2).with_reference_audio(voice, 1000)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_the_limit_of_a_script_does_not_depend_on_the_other_rows() -> None:
    """Where the model has fewer positions than surely suffice for a text."""
    pipe = latents("vibevoice", 24)
    job = pipe.adapter.prepare_rows(
        [pipe.read(text, None).parts[0] for text in ("hello", "hello big world again")],
        parse("plain"),
        [pipe.adapter.sampling, pipe.adapter.sampling],
    )
    alone = pipe.adapter.prepare_rows(pipe.read("hello", None).parts, parse("plain"), [pipe.adapter.sampling])
    assert job.limits[0] == alone.limits[0] == job.limits[1] + 3
