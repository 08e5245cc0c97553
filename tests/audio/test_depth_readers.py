"""The module that a depth model names as its reader has the weights that a window reads, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import every_pipe
import numpy as np
import pytest
import tiny_speech
import torch
from depth_models import DEPTH_MODELS
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmspec.audio.depth.depth_decoding import GivesCodes
from mmspec.audio.models.moshi.decoding import MoshiFrames
from mmspec.recipes import parse

aten = torch.ops.aten
LOOKUPS = (aten.embedding, aten.index, aten.index_select)  # they read a few rows of a table


class Reads(TorchDispatchMode):
    """Where what operations read is stored: by looking up rows, or as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.whole = set[int](), set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if all(each.alias_info is None for each in func._schema.returns):  # a view reads nothing
            found = self.rows if func.overloadpacket in LOOKUPS else self.whole
            found |= {place(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        return func(*args, **(kwargs or {}))


def place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def moshi(folder: Path) -> Any:
    model = tiny_speech.moshi()
    pattern = torch.full((2, model.num_codebooks, 9), -1)
    embeds, mask = torch.zeros(2, 3, model.config.hidden_size), torch.ones(2, 3, dtype=torch.bool)
    return MoshiFrames(model, embeds, mask, pattern, pattern, torch.zeros_like(pattern[..., :1]), 4)


def of_pipe(name: str) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        pipe = every_pipe.SPEECH[name](folder)
        prepared: Any = pipe.adapter.prepare_rows(
            pipe.read("one two", None).parts, parse("plain"), [pipe.adapter.sampling]
        )
        return prepared.model

    return make


MODELS: dict[str, Callable[[Path], Any]] = {
    **DEPTH_MODELS, "moshi": moshi, "kyutai-tts": of_pipe("kyutai-tts"), "personaplex": of_pipe("personaplex"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_reader_is_what_a_window_reads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = MODELS[name](tmp_path)
    whole: nn.Module = frames._decoder.module if hasattr(frames, "_decoder") else frames._model
    names = {place(weight): name for name, weight in whole.named_parameters()}
    codes, rows = frames.codes, len(frames.start().cond)
    if isinstance(frames, GivesCodes):
        monkeypatch.setattr(frames, "given_codes", lambda numbers: np.full((*numbers.shape, codes), -1))
    target = frames.depth(torch.zeros(rows, 1, dtype=torch.int64), 0, codes)
    with torch.inference_mode(), Reads() as reads:
        target.prefill()
        target.forward(torch.zeros(rows, codes, dtype=torch.int64), np.zeros(rows, dtype=np.int64))
    reader = {place(weight) for weight in frames.reader.parameters()}
    beyond, missing = reader - reads.whole - reads.rows, (reads.whole & set(names)) - reader
    assert not [names[each] for each in beyond] and not [names[each] for each in missing]
    assert reader
