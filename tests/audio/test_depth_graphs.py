"""CUDA graphs of models with a depth decoder: of the backbone and of the depth decoder, which live with the model.

A CPU has no graphs. Here a captured call reads what the target read that it was captured for, as a graph would: its
weights, its cache, and what its frame began with.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import golden_qwen3_tts as golden
import numpy as np
import pytest
import tiny_speech as tiny
import torch
from batch_states import batch_states
from captures import Captures
from csm_joint import FIRST, REST
from torch import Tensor, nn

import mmspec
from mmspec.audio.depth import captured_depth
from mmspec.audio.depth.captured_depth import CapturedDepth
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.depth_target import DepthTarget
from mmspec.audio.depth.frame_batch import PreparedFrames
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.models.csm.decoding import CsmFrames
from mmspec.audio.models.qwen3_tts.decoding import Qwen3TTSFrames, frame_ends
from mmspec.decoding import captured_calls
from mmspec.decoding.kept_graphs import KeptGraphs, free_graphs
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.rows import batches_fit, join_batches, join_rows, select_rows
from mmspec.hf import causal_target
from mmspec.hf.causal_target import CausalTarget
from mmspec.recipes import parse

TEXTS = torch.tensor([[[0, 3, 4, 5], [6, 7, 8, 9]], [[2, 4, 8, 3], [0, 0, 5, 2]]])
CSM_END = 1  # a first code that ends a row in these tests
RECIPES = [("plain", 0), ("scd:window=3", 0), ("draft:window=2", 0), ("scd", 2)]


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Captures]:
    found = Captures()
    for module in (causal_target, captured_depth):
        monkeypatch.setattr(module, "use_cuda_graphs", lambda device: found.is_on)
    monkeypatch.setattr(captured_depth, "choose", lambda device: "triton")
    monkeypatch.setattr(captured_calls.CapturedCall, "__call__", lambda call, read: found.call(call, read))
    yield found
    free_graphs(golden.model())


class Csm:
    """A CSM whose rows end at frames of their own."""

    def __init__(self) -> None:
        self.model, self.smaller = (tiny.csm(2 + seed, codebooks=8, codes=5, layers=2 - seed) for seed in (0, 1))
        self.parts = self.model.backbone_model, self.model.depth_decoder
        self.text = nn.Embedding(20, 24, _weight=self.model.embed_text_tokens.weight.detach())

    def frames(self, text: int, recipe: str = "scd:window=3", ahead: int = 0, **more: Any) -> Tensor:
        def prompted(model: Any) -> CsmFrames:
            ids = TEXTS[text]
            return CsmFrames(model, self.text(ids).detach(), ids > 0, 9, ahead)

        spec = FrameSpec(9, lambda frames: frames[..., 0] == CSM_END, CSM_END, FIRST, REST)
        draft = prompted(self.smaller) if recipe.startswith("draft") else None
        return decoded(prompted(self.model), recipe, spec, ahead, draft, **more)


class Qwen3TTS:
    """A Qwen3-TTS, whose frames have text added to them and whose first codes have a penalty."""

    def __init__(self) -> None:
        self.model = golden.model()
        self.parts = self.model.talker.model, self.model.talker
        self.prompts = golden.CASES[1].embedded()  # their text is added to the frames

    def frames(self, text: int, recipe: str = "scd:window=3", ahead: int = 0, **more: Any) -> Tensor:
        def prompted() -> Qwen3TTSFrames:
            return Qwen3TTSFrames(self.model, self.prompts[text : text + 2], 9, ahead, 1.05)

        spec = FrameSpec(9, frame_ends(self.model), self.model.config.codes, FIRST, REST)
        draft = prompted() if recipe.startswith("draft") else None
        return decoded(prompted(), recipe, spec, ahead, draft, **more)


class Moshi:
    """A Moshi, each of whose steps along the depth has weights of its own."""

    def __init__(self) -> None:
        self.model = tiny.moshi()
        self.parts = self.model.decoder.model, self.model.depth_decoder

    def frames(self, text: int, recipe: str = "scd:window=3", ahead: int = 0, **more: Any) -> Tensor:
        assert not ahead, "Moshi has no windows of frames"
        inputs = self.model.get_unconditional_inputs(num_samples=2)
        inputs["input_ids"] = torch.tensor([[12], [3 + text]])
        torch.manual_seed(0)  # transformers decodes the last frame
        how = {"do_sample": True, "depth_decoder_do_sample": True, "max_new_tokens": 8, "return_audio_codes": True}
        made = self.model.generate(**inputs, **how, custom_generate=mmspec.generate, recipe=recipe, seed=[3, 4], **more)
        gc.collect()
        return torch.cat([made.sequences.flatten(), made.audio_codes.flatten()])


def decoded(model: Any, recipe: str, spec: FrameSpec, ahead: int, draft: Any, on_step: Any = None) -> Tensor:
    made = decode_frames(model, parse(recipe), spec, [3, 4], draft, on_step, ahead=ahead).frames
    del model, draft
    gc.collect()
    return made


DEPTH_MODELS: dict[str, Any] = {"csm": Csm, "qwen3-tts": Qwen3TTS, "moshi": Moshi}


@pytest.mark.parametrize(
    ("name", "recipe", "ahead"),
    [(name, *how) for name in DEPTH_MODELS for how in (RECIPES[:2] if name == "moshi" else RECIPES)],
)
def test_frames_are_those_of_eager_mode(captures: Captures, name: str, recipe: str, ahead: int) -> None:
    """Two rows that end at frames of their own; a second call captures nothing, and depends on nothing before it."""
    family = DEPTH_MODELS[name]()
    captures.is_on = False
    wanted = [family.frames(text, recipe, ahead) for text in (0, 1)]
    captures.is_on = True
    first = family.frames(0, recipe, ahead)
    count = captures.count
    later = [family.frames(text, recipe, ahead) for text in (1, 0)]
    assert count and captures.count == count
    assert all(torch.equal(*pair) for pair in zip([first, *later], [*wanted, wanted[0]], strict=True))
    sets = 1 + (recipe.startswith("draft") and isinstance(family, Qwen3TTS))  # which is its own draft model
    assert [len(KeptGraphs.of(part)) for part in family.parts] == [sets, sets]


def test_rows_of_the_tests_end_at_different_frames(captures: Captures) -> None:
    for family, end in ((Csm(), CSM_END), (Qwen3TTS(), golden.model().config.codes)):
        lengths = (family.frames(0)[:, :, 0] == end).long().argmax(1)
        assert lengths[0] != lengths[1], lengths


class Broken:
    """What would be wrong: graphs that read what a call or a frame before has left."""

    @staticmethod
    def backbone(patch: pytest.MonkeyPatch) -> None:
        """Prompts of the first call: its cache, its mask, its text."""
        patch.setattr(CausalTarget, "take_over", lambda target, tensors: None)

    @staticmethod
    def text(patch: pytest.MonkeyPatch) -> None:
        """The text of the first call, which is added to the frames."""
        own = CausalTarget.take_over

        def take_over(target: CausalTarget, tensors: list[Tensor]) -> None:
            added = tensors[2].clone()
            own(target, tensors)
            tensors[2].copy_(added)

        patch.setattr(CausalTarget, "take_over", take_over)

    @staticmethod
    def depth(patch: pytest.MonkeyPatch) -> None:
        """The depth decoder's cache of the first call, and what its last frame began with."""
        patch.setattr(DepthTarget, "take_over", lambda target, tensors: None)

    @staticmethod
    def frame(patch: pytest.MonkeyPatch) -> None:
        """The hidden state and the first code of the frame before."""
        own = CapturedDepth.begin

        def begin(depth: CapturedDepth, frame: Any) -> CapturedDepth:
            before = [each.clone() for each in depth._target.inputs]
            own(depth, frame)
            for each, old in zip(depth._target.inputs, before, strict=True):
                each.copy_(old)
            return depth

        patch.setattr(CapturedDepth, "begin", begin)


@pytest.mark.parametrize("name", ["backbone", "text", "depth", "frame"])
def test_what_an_earlier_call_leaves_is_detected(
    captures: Captures, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Broken variants, of which the test above would fail."""
    family = Qwen3TTS() if name == "text" else Csm()
    captures.is_on = False
    wanted = [family.frames(text) for text in (0, 1)]
    captures.is_on = True
    getattr(Broken, name)(monkeypatch)
    found = [family.frames(text) for text in (0, 1)]
    assert not all(torch.equal(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", ["csm", "qwen3-tts"])  # transformers' Moshi cannot generate in two threads
def test_threads_do_not_share_graphs(captures: Captures, name: str) -> None:
    family = DEPTH_MODELS[name]()
    barrier, wanted = Barrier(2), [family.frames(text) for text in (0, 1)]
    free_graphs(family.model)
    met = [0, 0]

    def decode(text: int) -> Tensor:
        def meet(step: Any) -> None:
            if met[text] < 3:  # both are decoding
                met[text] += 1
                barrier.wait(60)

        return torch.as_tensor(family.frames(text, on_step=meet))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(decode, range(2)))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))
    gc.collect()
    assert [len(KeptGraphs.of(part)) for part in family.parts] == [2, 2]


def test_frames_of_fewer_rows_use_the_calls_of_more(captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that ends leaves the batch: nothing is captured for the others."""
    family, counts = Csm(), list[int]()
    begin = CapturedDepth.begin

    def noted(depth: CapturedDepth, frame: Any) -> CapturedDepth:
        counts.append(frame.rows)
        return begin(depth, frame)

    monkeypatch.setattr(CapturedDepth, "begin", noted)
    family.frames(0, "plain")
    assert {*counts} == {1, 2} and captures.count == 2, "a step of the backbone, and the loop of a frame"


def test_calls_that_cannot_be_captured_run_eagerly(captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    family = Csm()
    captures.is_on = False
    wanted = family.frames(0)
    captures.is_on = True
    monkeypatch.setattr(captured_calls.GraphCache, "call", lambda *_, **__: None)
    assert torch.equal(family.frames(0), wanted) and not captures.count
    assert [len(KeptGraphs.of(part)) for part in family.parts] == [0, 0]


def test_other_rows_and_windows_need_other_graphs(captures: Captures) -> None:
    family = Csm()
    family.frames(0)
    count = captures.count
    family.frames(0, "scd:window=4")
    assert captures.count > count, "a cache of another length"
    count = captures.count
    family.frames(0)
    assert captures.count == count, "both are kept"


def test_whole_frames_are_read_outside_of_inference_mode(captures: Captures) -> None:
    """As a teacher of draft heads reads them, by graphs of an earlier decode; what it returns may be differentiated."""
    family, frames = Csm(), torch.ones(2, 3, 8, dtype=torch.int64)

    def logits() -> Tensor:
        ids = TEXTS[0]
        model = CsmFrames(family.model, family.text(ids).detach(), ids > 0, 9, 2)
        with torch.no_grad():
            model.start()
            hidden = model.hidden()[:, -1:].expand(-1, 3, -1)
            return model.rest(hidden, frames, np.zeros(2, dtype=np.int64)).cond

    captures.is_on = False
    wanted = logits()
    captures.is_on = True
    family.frames(0, "scd", 2)
    count = captures.count
    found = logits()
    assert torch.allclose(found, wanted, atol=1e-5) and captures.count == count and not found.is_inference()


def test_frames_that_join_a_batch(captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows that are at different frames, and of which one ends first."""
    family = Csm()

    def joined(graphs: bool) -> list[list[list[int]]]:
        captures.is_on = graphs
        ids = TEXTS[0]
        spec = FrameSpec(9, None, CSM_END, FIRST, REST)

        def batch(row: int) -> Any:
            prompted = CsmFrames(family.model, family.text(ids[row : row + 1]).detach(), ids[row : row + 1] > 0, 9)
            return PreparedFrames(prompted, spec, DraftResources()).batch(parse("scd:window=3"), [3 + row])

        with torch.inference_mode():
            first, second = batch(1), batch(0)
            first.start()
            first.step()
            second.start()
            assert batches_fit(first, second)
            join_batches(first, second)
            while first.step():
                pass
            return [first.state.tokens(row).tolist() for row in range(2)]

    assert joined(True) == joined(False)


def test_frames_that_join_in_a_free_place_capture_nothing(captures: Captures) -> None:
    """The text that is added to frames is read where it was before."""
    family = Qwen3TTS()

    def prompted(rows: slice) -> Qwen3TTSFrames:
        return Qwen3TTSFrames(family.model, family.prompts[rows], 9, 0, 1.05)

    frame = torch.ones(2, family.model.config.codebooks, dtype=torch.int64)
    with torch.inference_mode():
        first, second = prompted(slice(2)), prompted(slice(1, 2))
        first.start()
        second.start()
        first.step(frame)
        count = captures.count
        select_rows(first, [0], 2)
        join_rows(first, second, [1], *batch_states(1, 1))
        first.step(frame)
    assert count and captures.count == count


def test_a_decode_asks_once_whether_its_depth_may_be_captured(
    captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer takes a walk over all parts of the module."""
    asked, family = list[Any](), Csm()

    def is_dispatched(module: Any, device: torch.device) -> bool:
        asked.append(module)
        return False

    monkeypatch.setattr(captured_depth, "is_dispatched", is_dispatched)
    family.frames(0)
    assert asked == [family.model.depth_decoder]
