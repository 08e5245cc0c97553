"""What happens at the end of a model's positions: prompts that do not fit are refused, and voices are dropped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_fish_codec
import tiny_fish_s2
import tiny_higgs_v3
import tiny_moss
import tiny_moss_local
import tiny_moss_local_v1
import torch

import mmspec
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError, PromptError

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
