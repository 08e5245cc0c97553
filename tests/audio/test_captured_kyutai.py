"""The transformer of Kyutai TTS with captured calls, which later calls replay with voices and texts of their own.

A CPU has no graphs: `recorded_calls` records the operators of a call and replays them on the same memory.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from batch_states import batch_states
from fake_targets import made_targets, problems, traced_frame, traced_reads
from recorded_calls import Recordings, recorded_graphs
from tiny_kyutai import BOOKS, Words, kyutai, prefix, prefix_config, voice, write
from torch import Tensor

from mmspec.audio.depth import captured_depth
from mmspec.audio.depth.captured_depth import CapturedDepth
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.models.kyutai_tts.decoding import KyutaiFrames, VoicedDecoder, VoicedTarget, frame_spec
from mmspec.audio.models.kyutai_tts.depth import KyutaiDepth
from mmspec.audio.models.kyutai_tts.machine import Machine
from mmspec.audio.models.kyutai_tts.model import KyutaiTTS, read_model
from mmspec.audio.models.kyutai_tts.script import entries
from mmspec.decoding import captured_calls
from mmspec.decoding.kept_graphs import KeptGraphs
from mmspec.decoding.rows import can_join, join_rows
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

TEXTS = [["one two", "three"], ["four", "five six seven"], ["a", "b c"]]
LENGTH = 14
HOT = SamplingParams(0.9, top_k=5)
GUIDED = SamplingParams(0.9, top_k=5, guidance_scale=2.0)


@pytest.fixture
def recordings() -> Iterator[Recordings]:
    with recorded_graphs() as found:
        yield found


@pytest.fixture(params=["voiced", "begun"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> KyutaiTTS:
    """A model that attends to a voice, or one whose voice is the beginning of the audio, with guidance."""
    folder = kyutai(tmp_path / "model") if request.param == "voiced" else write(tmp_path / "model", prefix_config())
    return read_model(folder, "cpu", torch.float32)


def prompted(model: KyutaiTTS, number: int, ahead: int = 0) -> KyutaiFrames:
    """Two texts, spoken by a voice of their number."""
    config = model.config
    words = [entries(text, Words().encode, speakers=config.voice is not None) for text in TEXTS[number]]
    machines = [Machine(own, config.text_card + 1, config.look_ahead, config.delay_steps + 4) for own in words]
    voices: Any = [prefix(5, number), prefix(4, number)]
    sampling = GUIDED
    if config.voice is not None:
        voices, sampling = model.voice_states([voice(number)[0].T]).expand(2, -1, -1), HOT
    conditions = {name: word for name, word in {"control": "ok", "cfg": "1.5"}.items() if name in config.tables}
    return KyutaiFrames(model, machines, voices, conditions, LENGTH, sampling, BOOKS, ahead)


def frames(model: KyutaiTTS, number: int, recipe: str = "plain", ahead: int = 0) -> Tensor:
    sampling = HOT if model.config.voice is not None else GUIDED
    begun, spec = prompted(model, number, ahead), frame_spec(model, LENGTH, sampling)
    made = decode_frames(begun, parse(recipe), spec, [3, 4], ahead=ahead).frames
    del begun
    gc.collect()
    return made


@pytest.mark.parametrize(("recipe", "ahead"), [("plain", 0), ("scd", 2)])
def test_later_calls_replay_the_graphs_of_the_first(
    recipe: str, ahead: int, model: KyutaiTTS, recordings: Recordings
) -> None:
    """Other voices and texts, rows that end: the frames of eager calls."""
    wanted = [recordings.eager(partial(frames, model, number, recipe, ahead)) for number in range(3)]
    assert not recordings.count and not torch.equal(wanted[0][:, :9], wanted[1][:, :9]), "a weak test"
    counts = [0]
    for number in (0, 1, 2, 0):
        found = frames(model, number, recipe, ahead)
        assert torch.equal(found, wanted[number])
        counts.append(recordings.count)
    assert counts[1] and counts[3] <= counts[1] + 1 and counts[4] == counts[3], counts
    assert len(KeptGraphs.of(model.transformer)) == 1


def test_graphs_that_keep_an_earlier_voice_give_other_frames(
    tmp_path: Path, recordings: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of the test above: a later call that leaves its voice where no graph reads it."""
    model = read_model(kyutai(tmp_path), "cpu", torch.float32)
    wanted = [recordings.eager(partial(frames, model, number)) for number in range(2)]
    monkeypatch.setattr(VoicedDecoder, "take_over", lambda decoder, tensors: None)
    assert torch.equal(frames(model, 0), wanted[0]) and not torch.equal(frames(model, 1), wanted[1])


def test_rows_join_captured_calls(model: KyutaiTTS, recordings: Recordings) -> None:
    """A target with captured calls takes in rows of another one, whose voices come with them."""
    first, second = prompted(model, 0), prompted(model, 1)
    first.start(), second.start()
    assert can_join(first, second)
    frame = torch.zeros(2, 1 + BOOKS, dtype=torch.int64)
    first.step(frame), second.step(frame)
    alone = second.step(frame).cond
    joining = prompted(model, 1)
    joining.start()
    joining.step(frame)
    join_rows(first, joining, [2, 3], *batch_states(2, 2))
    torch.testing.assert_close(first.step(frame.repeat(2, 1)).cond[2:], alone, atol=1e-5, rtol=1e-4)


def test_calls_can_be_captured(model: KyutaiTTS, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced on a fake CUDA device: no operator whose result depends on data, no copy from the host."""
    with made_targets(monkeypatch) as made:
        prompted(model, 0).start()
    [target] = made
    assert isinstance(target, VoicedTarget)
    found = traced_reads(target)
    assert all(one.count for one in found) and not problems(found)


@pytest.fixture
def loops(recordings: Recordings, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The loops along the depth that are captured, with the kernels run by torch's reference."""
    found = list[Any]()

    def call(call: Any, read: Any) -> Any:
        if isinstance(read, partial) and not hasattr(call, "recorded"):
            found.append(call)
        return recordings.call(call, read)

    monkeypatch.setattr(captured_depth, "use_cuda_graphs", lambda device: recordings.is_on)
    monkeypatch.setattr(captured_depth, "choose", lambda device: "triton")
    monkeypatch.setattr(captured_calls.CapturedCall, "__call__", call)
    return found


def test_plain_frames_are_sampled_in_one_graph(model: KyutaiTTS, recordings: Recordings, loops: list[Any]) -> None:
    """Frames without given codes: those of codes that are sampled one by one; later calls capture nothing."""
    wanted = [recordings.eager(partial(frames, model, number)) for number in range(2)]
    for number in (0, 1, 0):
        assert torch.equal(frames(model, number), wanted[number])
        assert len(loops) == 1


@pytest.mark.parametrize("broken", ["step", "text"])
def test_a_loop_that_reads_others_weights_gives_other_codes(
    broken: str, model: KyutaiTTS, recordings: Recordings, loops: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins: the weights of another step, and the text of another frame."""
    wanted = recordings.eager(partial(frames, model, 0))
    if broken == "step":
        code = KyutaiDepth.code

        def other(depth: KyutaiDepth, number: int, before: Tensor | None) -> Tensor:
            depth._steps = depth._steps[::-1].copy()
            found = code(depth, number, before)
            depth._steps = depth._steps[::-1].copy()
            return found

        monkeypatch.setattr(KyutaiDepth, "code", other)
    else:
        begin = CapturedDepth.begin

        def stale(depth: CapturedDepth, frame: Any) -> CapturedDepth:
            frame.inputs = [frame.inputs[0], depth._target.inputs[1][: frame.rows].clone()]
            return begin(depth, frame)

        monkeypatch.setattr(CapturedDepth, "begin", stale)
    assert not torch.equal(frames(model, 0), wanted)


def test_the_loop_can_be_captured(model: KyutaiTTS) -> None:
    """Traced on a fake device; and it reads the weights of its own steps alone, in fewer launches than a window."""
    factor = 1 + (model.config.voice is None)
    hidden, text = torch.zeros(2 * factor, model.config.main.dim), torch.zeros(2, dtype=torch.int64)
    depth = KyutaiDepth(model, hidden, text, torch.full((2, BOOKS), -1).numpy(), 0, 1)
    for number in range(BOOKS):
        given = torch.arange(number).expand(2, -1)
        tokens, slots = torch.cat([text[:, None], given], dim=1), torch.arange(number + 1).expand(2, -1)
        if number == 0:
            found, same = depth.code(0, None), depth.read(text[:, None].repeat(factor, 1), slots.repeat(factor, 1), 1)
        else:
            found = depth.code(number, torch.full((2, 1), number - 1))
            same = depth.read(tokens.repeat(factor, 1).clone(), slots.repeat(factor, 1), number + 1)
        torch.testing.assert_close(found[:, 0], same[0][:, -1])
    loop, window = traced_frame(depth, BOOKS), traced_reads(depth)
    assert not problems([loop, *window])
    assert loop.count < BOOKS * window[0].count
