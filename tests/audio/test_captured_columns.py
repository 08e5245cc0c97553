"""Models of columns with captured calls, which later calls replay with texts, masks and prompts of their own.

A CPU has no graphs: `recorded_calls` records the operators of a call and replays them on the same memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import tiny_higgs_v3
import tiny_moss
import tiny_music as tiny
import tiny_zonos2
import torch
from recorded_calls import Recordings, recorded_graphs
from torch import Tensor
from transformers import GenerationMixin

import mmspec
from mmspec.audio.multi_codebook.cross_attention import CrossAttention, TextLayer
from mmspec.decoding.kept_graphs import KeptGraphs
from mmspec.hf.causal_target import CausalTarget

WRITERS = {tiny_higgs_v3: tiny_higgs_v3.higgs_v3, tiny_moss: tiny_moss.moss, tiny_zonos2: tiny_zonos2.zonos2}
RECIPES = ["plain", "scd:window=5", "recycle:window=3", "draft:window=4", "layer-skip:layers=1,window=3"]
TEXTS = [[[5, 6, 7, 0], [8, 9, 3, 4]], [[12, 0], [13, 14]], [[9, 8, 7, 6, 5, 4], [3, 21, 22, 23, 24, 25]]]
SPOKEN = [[[0, 0, 5, 6, 31], [8, 9, 3, 4, 31]], [[7, 31], [3, 31]], [[5, 4, 3, 7, 6, 9, 31], [0, 0, 0, 3, 4, 5, 31]]]


@pytest.fixture
def recordings() -> Iterator[Recordings]:
    with recorded_graphs() as found:
        yield found


def text(number: int, **more: Any) -> dict[str, Any]:
    ids = torch.tensor(TEXTS[number])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "max_new_tokens": 14, **more}


def dia(number: int, **more: Any) -> dict[str, Any]:
    """A text, after `number` columns of a voice."""
    codes, delays = 16, (0, 2, 3)
    columns = torch.full((2, 1 + number + max(delays), len(delays)), codes + 1)
    for k, d in enumerate(delays):
        columns[:, : d + 1, k], columns[:, d + 1 : d + 1 + number, k] = codes + 2, 3 + number
    mask = torch.ones(columns.shape[:2]).long()
    return text(number, decoder_input_ids=columns.int(), decoder_attention_mask=mask, **{"max_new_tokens": 20, **more})


def higgs(number: int) -> dict[str, Any]:
    ids = torch.tensor(SPOKEN[number])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "max_new_tokens": 18}


@dataclass(frozen=True)
class Case:
    """A model made from a seed, its calls of `generate` by number, and the module that graphs live with."""

    model: Callable[..., Any]
    call: Callable[[int], dict[str, Any]]
    kept_with: Callable[[Any], Any]


def decoder_of(model: Any) -> Any:
    return model.decoder.model.decoder


CASES = {
    "musicgen": Case(tiny.musicgen, text, decoder_of),
    "musicgen guided": Case(tiny.musicgen, lambda n: text(n, guidance_scale=3.0), decoder_of),
    "melody": Case(
        lambda seed=0, **kind: tiny.musicgen(seed, melody=True, channels=2, **kind),
        lambda n: text(n, guidance_scale=2.0, input_features=torch.rand(2, 3, 12)), decoder_of,
    ),
    "dia": Case(tiny.dia, dia, lambda model: model.model.decoder),
    "dia guided": Case(tiny.dia, lambda n: dia(n, guidance_scale=3.0, top_k=5), lambda model: model.model.decoder),
    "higgs": Case(tiny.higgs, higgs, lambda model: model.model),
}  # fmt: skip


def columns(model: Any, call: dict[str, Any], recipe: str = "scd:window=5", **options: Any) -> Tensor:
    call = {name: value.clone() if isinstance(value, Tensor) else value for name, value in call.items()}
    options = {"do_sample": True, "seed": [3, 4], "return_dict_in_generate": True} | options
    out = GenerationMixin.generate(model, **call, **options, custom_generate=mmspec.generate, recipe=recipe)
    gc.collect()
    found: Tensor = out.columns
    return found


def alike(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize(
    ("name", "recipe"),
    [(name, recipe) for name in CASES for recipe in (RECIPES if name.endswith("guided") else RECIPES[1:2])],
)
def test_later_calls_replay_the_graphs_of_the_first(name: str, recipe: str, recordings: Recordings) -> None:
    """Other texts, of other lengths and with other padding; rows that end early; the tokens of eager calls."""
    case = CASES[name]
    model, options = case.model(0), {}
    if recipe.startswith("draft"):
        options["draft_model"] = case.model(0, layers=1)
    calls = [case.call(number) for number in range(3)]
    wanted = [recordings.eager(partial(columns, model, call, recipe, **options)) for call in calls]
    assert not recordings.count and not torch.equal(wanted[0], wanted[1]), "a weak test"
    counts = [0]
    for call, own in zip(calls * 2, wanted * 2, strict=True):
        assert torch.equal(columns(model, call, recipe, **options), own)
        counts.append(recordings.count)
    # Texts of other lengths have the same shapes; the last window of a call may have another width.
    assert counts[1] and counts[3] <= counts[1] + 1 and counts[3] == counts[-1], counts
    assert len(KeptGraphs.of(case.kept_with(model))) == 1


def test_rows_that_end_leave_the_graphs_to_the_others(recordings: Recordings) -> None:
    model = tiny.dia()
    call = {name: torch.cat([value, value]) if isinstance(value, Tensor) else value for name, value in dia(1).items()}
    options: dict[str, Any] = {"seed": [5, 6, 7, 8]}
    wanted = recordings.eager(lambda: columns(model, call, **options))
    ends = (wanted[..., 2] == 16).any(1)
    lengths = torch.where(ends, (wanted[..., 2] == 16).int().argmax(1), wanted.shape[1])
    assert len(lengths.unique()) > 1, f"a weak test: rows end at {lengths}"
    found = columns(model, call, **options)
    count = recordings.count
    assert torch.equal(found, wanted) and torch.equal(columns(model, call, **options), wanted)
    assert count and recordings.count == count


@pytest.mark.parametrize("broken", ["text", "mask", "prompt"])
def test_graphs_that_keep_an_earlier_call_give_other_columns(
    broken: str, recordings: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twins of the test above: a later call that leaves its text, or its mask, where no graph reads it."""
    model, calls = tiny.musicgen(), [text(number, guidance_scale=3.0) for number in range(3)]
    wanted = [columns(model, call) for call in calls]
    again = tiny.musicgen()
    if broken == "text":

        def update(layer: TextLayer, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            layer.keys, layer.values, layer.is_initialized = keys, values, True
            return keys, values

        monkeypatch.setattr(TextLayer, "update", update)
    elif broken == "mask":
        take_over = CrossAttention.take_over

        def without_bias(crossed: CrossAttention, tensors: list[Tensor], layers: int) -> int:
            own = crossed.bias
            count = take_over(crossed, [tensors[0], torch.empty_like(tensors[1]), *tensors[2:]], layers)
            crossed.bias = own
            return count

        monkeypatch.setattr(CrossAttention, "take_over", without_bias)
    else:
        monkeypatch.setattr(CausalTarget, "take_over", lambda target, tensors: None)
    found = [columns(again, call) for call in calls]
    assert torch.equal(found[0], wanted[0]) and not alike(found, wanted)


def test_threads_do_not_share_graphs(recordings: Recordings) -> None:
    model, barrier, met = tiny.musicgen(), Barrier(2), [0, 0]
    calls = [text(0, guidance_scale=3.0), text(2, guidance_scale=3.0)]
    wanted = [recordings.eager(partial(columns, model, call)) for call in calls]

    def decode(row: int) -> Tensor:
        def meet(step: Any) -> None:
            if met[row] < 4:  # both are decoding
                met[row] += 1
                barrier.wait(60)

        return columns(model, calls[row], on_step=meet)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(decode, range(2)))
    assert alike(found, wanted) and len(KeptGraphs.of(decoder_of(model))) == 2
    count = recordings.count
    assert torch.equal(columns(model, calls[0]), wanted[0]) and recordings.count == count


def test_a_longer_table_of_positions_needs_other_graphs(recordings: Recordings) -> None:
    """A longer call of MusicGen replaces the table of the module; a call that runs meanwhile keeps its own."""
    model = tiny.musicgen()
    wanted = recordings.eager(lambda: columns(model, text(0)))
    longer: list[Tensor] = []

    def grow(step: Any) -> None:
        if not longer:
            longer.append(columns(model, text(1, max_new_tokens=90)))

    assert torch.equal(columns(model, text(0), on_step=grow), wanted)
    count = recordings.count
    assert torch.equal(columns(model, text(0)), wanted) and recordings.count > count, "the old graphs are of no use"


@pytest.mark.parametrize("tiny_model", [tiny_higgs_v3, tiny_moss, tiny_zonos2])
def test_published_models(tiny_model: Any, tmp_path: Path, recordings: Recordings) -> None:
    folder = WRITERS[tiny_model](tmp_path / "model")
    pipe = mmspec.load(str(folder), config={"codec": tiny_model.Codec(), "frames": 10})

    def spoken(words: str, recipe: str = "scd:window=4") -> Tensor:
        gc.collect()
        found: Tensor = pipe(words, recipe=recipe, seed=1).tokens[0]
        return found

    texts = ["one two three", "two", "three one"]
    for recipe in ("plain", "scd:window=4"):
        wanted = [recordings.eager(partial(spoken, words, recipe)) for words in texts]
        found = [spoken(texts[0], recipe)]
        count = recordings.count
        found += [spoken(words, recipe) for words in texts[1:]]
        assert alike(found, wanted) and count and recordings.count == count
