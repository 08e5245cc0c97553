"""Plain frames of models with a depth decoder: the whole loop along the depth is one graph.

A CPU has no graphs: the operators of the loop are recorded and replayed on the tensors that they had. Tokens are those
of a decode of the same seeds whose codes are sampled one by one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captures import Captures
from depth_models import DEPTH_MODELS
from recorded_calls import Recordings
from tiny_speech import csm
from torch import Tensor

from mmspec.audio.depth import captured_depth
from mmspec.audio.depth.captured_depth import CapturedDepth
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_batch import FrameBatch, PreparedFrames
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.models.csm.decoding import CsmDepth, CsmFrames
from mmspec.decoding import captured_calls
from mmspec.decoding.adaptive_window import AdaptiveWindow
from mmspec.decoding.kept_graphs import KeptGraphs
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.rows import batches_fit, join_batches
from mmspec.decoding.window_policy import Committed
from mmspec.errors import ModelError
from mmspec.kernels import philox
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

CODES, FRAMES = 5, 4
FIRST = SamplingParams(0.8, top_k=4)
SETTINGS = [SamplingParams(1.2, top_k=3), SamplingParams(0.7, top_p=0.8), SamplingParams(0.0), SamplingParams()]
KINDS = ["top-k", "top-p", "greedy", "plain"]


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recordings]:
    """Of the loop along the depth; single calls of the depth decoder read what the first target of the graphs does."""
    found, single = Recordings(), Captures()

    def call(call: Any, read: Any) -> Any:
        return (found if isinstance(read, partial) else single).call(call, read)

    monkeypatch.setattr(captured_depth, "use_cuda_graphs", lambda device: found.is_on)
    monkeypatch.setattr(captured_depth, "choose", lambda device: "triton")
    monkeypatch.setattr(captured_calls.CapturedCall, "__call__", call)
    yield found


@pytest.fixture(scope="module")
def model() -> Any:
    return csm(2, codebooks=1 + CODES, codes=6, spread=1.0)


def prompted(model: Any, rows: int = 2, first: int = 0) -> CsmFrames:
    ids = (torch.arange(3) + torch.arange(first, first + rows)[:, None]) % 15 + 1
    embeds = model.embed_text_tokens(ids).detach()
    return CsmFrames(model, embeds, torch.ones(rows, 3, dtype=torch.bool), FRAMES)


def spec(rest: SamplingParams, ends: Callable[[Tensor], Tensor] | None = None) -> FrameSpec:
    return FrameSpec(FRAMES, ends, 0, FIRST, rest)


def frames(model: Any, rest: SamplingParams = SETTINGS[0], rows: int = 2, ends: Any = None) -> Tensor:
    made = decode_frames(prompted(model, rows), parse("plain"), spec(rest, ends), range(3, 3 + rows)).frames
    gc.collect()
    return made


def captured_parts(found: Any) -> list[Any]:
    """The parts whose calls are captured in the sets of a model that are kept."""
    return [key[-1] for kept in KeptGraphs.of(found)._free for key in kept.graphs._calls]


@pytest.mark.parametrize("name", DEPTH_MODELS)
def test_frames_are_those_of_codes_that_are_sampled_one_by_one(
    recordings: Recordings, name: str, tmp_path: Path
) -> None:
    """The second decode replays what the first one has recorded; with guidance (HeartMuLa), and with a penalty on codes
    (MOSS-TTS-Local v1).
    """
    settings = SamplingParams(1.1, top_k=5, top_p=0.95, guidance_scale=1.5 if name == "heartmula" else 1.0)
    found = list[Tensor]()
    for is_on in (True, False):
        recordings.is_on, there = is_on, DEPTH_MODELS[name](tmp_path / str(is_on))
        rows = len(there._firsts)
        one = FrameSpec(4, None, 0, settings, settings)
        made = decode_frames(there, parse("plain"), one, range(rows))
        assert made.stats.nfe == 4 * (1 + there.codes) and made.stats.tokens == rows * made.stats.nfe
        found.append(made.frames)
        if is_on:
            assert recordings.count == 1, "the loop of all frames"
    assert torch.equal(*found)


@pytest.mark.parametrize("name", DEPTH_MODELS)
def test_all_codes_of_a_frame_in_one_call_are_those_of_single_calls(name: str, tmp_path: Path) -> None:
    """Logits of given codes, with the head of each place alone, against windows that know no places."""
    with torch.inference_mode():
        there = DEPTH_MODELS[name](tmp_path)
        rows = len(there._firsts)
        frame = torch.randint(0, 3, (rows, 1 + there.codes), generator=torch.Generator().manual_seed(0))
        there.start()
        whole, single = (there._depth(there._target.features()[:, -1], frame[:, :1], 0, 0) for _ in range(2))
        logits = [single.prefill()]
        for n in range(1, there.codes):
            logits.append(single.forward(frame[:, n, None], np.full(rows, n - 1)))
        for ours, theirs in zip(whole.whole(frame), zip(*logits, strict=True), strict=True):
            if ours is not None:
                assert torch.allclose(ours, torch.cat(theirs, dim=1), atol=1e-5)


@pytest.mark.parametrize("rest", SETTINGS, ids=KINDS)
def test_later_calls_replay_the_frames_of_earlier_ones(
    recordings: Recordings, model: Any, rest: SamplingParams
) -> None:
    """Rows that end at frames of their own leave, and their places in the graph stay unused."""

    def ends(found: Tensor) -> Tensor:
        return found[..., 0] == 1

    recordings.is_on = False
    wanted = frames(model, rest, 5, ends)
    lengths = (wanted[..., 1:] > 0).any(-1).sum(1)
    assert len({*lengths.tolist()}) > 1, "a weak test: all rows end together"
    recordings.is_on = True
    assert torch.equal(frames(model, rest, 5, ends), wanted)
    count = recordings.count
    assert torch.equal(frames(model, rest, 5, ends), wanted) and recordings.count == count


def test_a_policy_without_drafts_takes_whole_frames(
    recordings: Recordings, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`window=auto` where drafts do not pay: the frames of plain decoding, and their time."""
    recorded, own = list[tuple[int, Committed]](), AdaptiveWindow.record
    monkeypatch.setattr(AdaptiveWindow, "choose", lambda policy: 1)

    def record(policy: AdaptiveWindow, width: int, committed: Committed) -> None:
        recorded.append((width, committed))
        own(policy, width, committed)

    monkeypatch.setattr(AdaptiveWindow, "record", record)
    wanted = frames(model)
    made = decode_frames(prompted(model), parse("scd:window=auto"), spec(SETTINGS[0]), range(3, 5))
    assert torch.equal(made.frames, wanted) and made.stats.nfe == FRAMES * (1 + CODES)
    assert [(width, told.gain, told.calls) for width, told in recorded] == [(1, 1.0, CODES)] * FRAMES
    assert all(told.seconds > 0 for _, told in recorded)


def test_each_step_reads_its_own_embedding_and_head_once(
    recordings: Recordings, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = dict[str, list[Any]](embed=[], head=[])

    def noting(name: str) -> Any:
        own = getattr(CsmDepth, name)

        def noted(depth: CsmDepth, x: Tensor, which: Any) -> Any:
            read[name].append(which)
            return own(depth, x, which)

        return noted

    for name in read:
        monkeypatch.setattr(CsmDepth, name, noting(name))
    frames(csm(3, codebooks=1 + CODES, codes=6))
    assert read == dict.fromkeys(read, list(range(CODES)))


class Broken:
    """Graphs that would be wrong."""

    @staticmethod
    def head(patch: pytest.MonkeyPatch) -> None:
        """The head of another codebook."""
        own = CsmDepth.head
        patch.setattr(CsmDepth, "head", lambda depth, x, which: own(depth, x, (which + 1) % CODES))

    @staticmethod
    def embedding(patch: pytest.MonkeyPatch) -> None:
        """The embedding of another codebook."""
        own = CsmDepth.embed
        patch.setattr(CsmDepth, "embed", lambda depth, x, which: own(depth, x, which + 1))

    @staticmethod
    def position(patch: pytest.MonkeyPatch) -> None:
        """The numbers of the position after."""
        own = philox.uniforms
        patch.setattr(philox, "uniforms", lambda seeds, at, *more: own(seeds, at + 1, *more))

    @staticmethod
    def iteration(patch: pytest.MonkeyPatch) -> None:
        """The numbers of the first iteration in all."""
        own = philox.uniforms
        patch.setattr(philox, "uniforms", lambda seeds, at, times, *more: own(seeds, at, times * 0, *more))

    @staticmethod
    def seeds(patch: pytest.MonkeyPatch) -> None:
        """The seeds of the first frame in all."""
        own, first = CapturedDepth.frame, list[Any]()

        def frame(depth: CapturedDepth, numbers: Any, *more: Any) -> Any:
            first.append(numbers)
            return own(depth, first[0].part(np.s_[: len(numbers.host)]), *more)

        patch.setattr(CapturedDepth, "frame", frame)

    @staticmethod
    def cache(patch: pytest.MonkeyPatch) -> None:
        """A step that does not see the codes before it."""
        own = CsmDepth.run

        def run(depth: CsmDepth, embeds: Tensor, mask: Tensor, *more: Any) -> Tensor:
            hidden = mask.clone()
            hidden[..., : mask.shape[-1] - embeds.shape[1]] = torch.finfo(mask.dtype).min
            return own(depth, embeds, hidden, *more)

        patch.setattr(CsmDepth, "run", run)

    @staticmethod
    def first(patch: pytest.MonkeyPatch) -> None:
        """A hidden state that sees the first code."""
        own = CsmDepth.run
        patch.setattr(CsmDepth, "run", lambda depth, x, mask, *more: own(depth, x, mask * 0, *more))


@pytest.mark.parametrize("name", ["head", "embedding", "position", "iteration", "seeds", "cache", "first"])
def test_graphs_that_would_be_wrong_are_detected(
    recordings: Recordings, model: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    recordings.is_on = False
    wanted = frames(model)
    recordings.is_on = True
    other = csm(2, codebooks=1 + CODES, codes=6, spread=1.0)
    assert torch.equal(frames(other), wanted), "the same weights, without the graphs of other tests"
    getattr(Broken, name)(monkeypatch)
    other = csm(2, codebooks=1 + CODES, codes=6, spread=1.0)
    assert not torch.equal(frames(other), wanted)


def joined(model: Any, settings: list[SamplingParams]) -> list[list[list[int]]]:
    """The frames of rows that join one after another, each with its own parameters; the first one ends first."""

    def batch(row: int, rest: SamplingParams) -> FrameBatch:
        there = PreparedFrames(prompted(model, 1, row), spec(rest), DraftResources())
        return there.batch(parse("plain"), [3 + row])

    with torch.inference_mode():
        batches = [batch(row, rest) for row, rest in enumerate(settings)]
        whole = batches[0]
        whole.start()
        for one in batches[1:]:
            one.start()
            assert batches_fit(whole, one)
            join_batches(whole, one)
            whole.step()
        while whole.step():
            pass
    made = [whole.state.tokens(row).tolist() for row in range(len(settings))]
    del batches, whole, one
    gc.collect()
    return made


def test_each_row_has_its_own_parameters(recordings: Recordings, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recordings.is_on = False
    wanted = joined(model, SETTINGS[:3])
    recordings.is_on = True
    assert joined(model, SETTINGS[:3]) == wanted

    def stale(depth: CapturedDepth, *args: Any, own: Any = CapturedDepth.frame) -> Any:
        """Parameters that stay when rows leave."""
        known = depth._settings
        if known is not None:
            depth._settings = args[2].of_any_slot()[0]
        return own(depth, *args)

    monkeypatch.setattr(CapturedDepth, "frame", stale)
    assert joined(model, SETTINGS[:3]) != wanted


def test_a_batch_that_grows_keeps_the_graphs_of_every_size(recordings: Recordings) -> None:
    """The rows of an engine: one, and one that is about to join; two; three."""
    model = csm(4, codebooks=1 + CODES, codes=6)
    first = joined(model, SETTINGS[3:] * 3)
    sizes = [len((kept.graphs.tensors or [])[1]) for kept in KeptGraphs.of(model.depth_decoder)._free]
    assert sorted(sizes) == [1, 1, 2, 3] and captured_parts(model.depth_decoder) == ["frame"] * 4
    count = recordings.count
    assert joined(model, SETTINGS[3:] * 3) == first and recordings.count == count == 4


@pytest.mark.parametrize("rest", [SamplingParams(1.2, min_p=0.1), SamplingParams(1.2, typical_p=0.8)])
def test_parameters_without_a_kernel_are_sampled_one_by_one(recordings: Recordings, rest: SamplingParams) -> None:
    model = csm(5, codebooks=1 + CODES, codes=6)
    found = frames(model, rest)
    assert not recordings.count and captured_parts(model.depth_decoder) == [None, None]
    recordings.is_on = False
    assert torch.equal(frames(model, rest), found)


def test_a_loop_that_cannot_be_captured_runs_step_by_step(
    recordings: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried once for the set of graphs: those of single calls are kept."""
    model, attempts = csm(6, codebooks=1 + CODES, codes=6), list[Any]()
    recordings.is_on = False
    wanted = frames(model)
    recordings.is_on = True
    of = captured_calls.GraphCache.of

    def fails(graphs: Any, run: Any, inputs: Any, fixed: Any, key: Any, device: Any) -> Any:
        if key[-1] == "frame":
            if graphs.works("frame"):
                attempts.append(key)
            graphs._fails.add("frame")
        return of(graphs, run, inputs, fixed, key, device)

    monkeypatch.setattr(captured_calls.GraphCache, "of", fails)
    assert all(torch.equal(frames(model), wanted) for _ in range(2))
    assert len(attempts) == 1 and captured_parts(model.depth_decoder) == [None, None]


def test_codes_without_a_distribution_are_an_error(recordings: Recordings, monkeypatch: pytest.MonkeyPatch) -> None:
    own = CsmDepth.head

    def head(depth: CsmDepth, x: Tensor, which: Any) -> Tensor:
        return own(depth, x, which) * (np.nan if which == 2 else 1)

    monkeypatch.setattr(CsmDepth, "head", head)
    with pytest.raises(ModelError, match="logits that are not numbers"):
        frames(csm(7, codebooks=1 + CODES, codes=6))
