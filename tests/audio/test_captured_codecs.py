"""Streams of codecs with captured calls, which later streams replay with codes of their own.

A CPU has no graphs: `recorded_codecs` records the operators of a call and replays them on the same memory.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import tiny_codecs
import torch
from fake_targets import moved, problems
from gpu_bench.counting import fake_device, trace
from recorded_calls import Recordings
from tiny_streams import CAUSAL, CODECS, OVERLAPPING, pushed, recorded_codecs, some_codes
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException

from mmspec.audio.codecs import codec_of, streamed_layers
from mmspec.audio.codecs.overlap_graphs import NEW, CapturedOverlapStream, ChunkCall
from mmspec.audio.codecs.stepped_stream import SIZES, SteppedStream
from mmspec.audio.codecs.streamed_layers import StreamState, after_last
from mmspec.decoding.captured_calls import GraphCache
from mmspec.decoding.kept_graphs import KeptGraphs
from mmspec.errors import ModelError

LENGTHS = [12, 25, 1, 8, 20]
FRAMES = sum(LENGTHS)


@pytest.fixture
def recordings() -> Iterator[Recordings]:
    with recorded_codecs() as found:
        yield found


def made(name: str, folder: Path) -> Any:
    folder = folder / name
    folder.mkdir()
    return CODECS[name](folder)


def audio(codec: Any, codes: Tensor, lengths: list[int] = LENGTHS) -> Tensor:
    """The audio of a stream, which gives its graphs back."""
    found = torch.cat(pushed(codec, codes, lengths), dim=-1)
    gc.collect()
    return found


def pieces(lengths: list[int]) -> list[int]:
    """What chunks are cut into."""
    return [size for n in lengths for size in [SIZES[0]] * (n // SIZES[0]) + [SIZES[1]] * (n % SIZES[0])]


@pytest.mark.parametrize("name", CAUSAL)
def test_hooks_of_a_dispatched_codec_do_not_run_its_layers_without_their_state(name: str, tmp_path: Path) -> None:
    codec = made(name, tmp_path)
    codes = some_codes(codec, 9, rows=1)
    wanted = audio(codec, codes, [2, 1, 6])
    pytest.importorskip("accelerate").dispatch_model(codec._model, {"": "cpu"}, force_hooks=True)
    assert torch.equal(audio(codec, codes, [2, 1, 6]), wanted)


@pytest.mark.parametrize("name", CODECS)
def test_later_streams_replay_the_graphs_of_the_first(name: str, tmp_path: Path, recordings: Recordings) -> None:
    """Several rows; the samples are those of eager calls of as many frames, bit for bit, and of the whole clip."""
    codec = made(name, tmp_path)
    codes = [some_codes(codec, FRAMES, seed) for seed in range(3)]
    lengths = LENGTHS if name in OVERLAPPING else pieces(LENGTHS)
    wanted = [recordings.eager(partial(audio, codec, own, lengths)) for own in codes]
    assert not recordings.count and not torch.equal(wanted[0], wanted[1]), "a weak test"
    graphs = 1 if name in OVERLAPPING else len(SIZES)
    for own, theirs in zip(codes * 2, wanted * 2, strict=True):
        assert torch.equal(audio(codec, own), theirs)
        assert recordings.count == graphs
        scale = float(theirs.std())
        torch.testing.assert_close(codec.decode(own), theirs, atol=1e-4 * scale, rtol=1e-4)
    # Chunks of other lengths need no other graphs.
    again = audio(codec, codes[0], [1] * FRAMES)
    assert recordings.count == graphs
    torch.testing.assert_close(again, wanted[0], atol=1e-4 * float(wanted[0].std()), rtol=1e-4)
    one = audio(codec, codes[0][:1])
    torch.testing.assert_close(one, wanted[0][:1], atol=1e-4 * float(one.std()), rtol=1e-4)
    assert recordings.count == 2 * graphs, "a batch of another size has graphs of its own"


@pytest.mark.parametrize("name", ["mimi", "dac"])
def test_streams_at_once_do_not_share_their_state(name: str, tmp_path: Path, recordings: Recordings) -> None:
    """Two streams in turns, and a shorter one between them."""
    codec = made(name, tmp_path)
    codes = [some_codes(codec, 40, seed) for seed in range(3)]
    wanted = [audio(codec, own, [8] * 5) for own in codes]
    count = recordings.count
    streams, found = [codec.stream() for _ in range(2)], [list[Tensor](), list[Tensor]()]
    for i in range(5):
        for stream, own, chunks in zip(streams, codes, found, strict=False):
            chunks.append(stream.push(own[..., 8 * i : 8 * i + 8]))
        if i == 2:
            between = audio(codec, codes[2][..., :8], [8])
    for stream, chunks, whole in zip(streams, found, wanted, strict=False):
        assert torch.equal(torch.cat([*chunks, stream.finish()], dim=-1), whole)
    torch.testing.assert_close(between, codec.decode(codes[2][..., :8]), atol=1e-4, rtol=1e-4)
    # The short stream of DAC has no call but the last one.
    assert recordings.count == (3 if name == "mimi" else 2) * count, "streams at once"
    streams.clear()
    del stream
    gc.collect()
    assert len(KeptGraphs.of(codec._model)) == (3 if name == "mimi" else 2)


def test_threads_do_not_share_graphs(tmp_path: Path, recordings: Recordings) -> None:
    codec, barrier = made("mimi", tmp_path), Barrier(2)
    codes = [some_codes(codec, 24, seed) for seed in range(2)]
    wanted = [recordings.eager(partial(audio, codec, own, [8, 8, 8])) for own in codes]

    def stream(number: int) -> Tensor:
        own, chunks = codec.stream(), list[Tensor]()
        for chunk in codes[number].split(8, dim=-1):
            barrier.wait(60)
            chunks.append(own.push(chunk))
        return torch.cat(chunks, dim=-1)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(stream, range(2)))
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("name", CAUSAL)
def test_a_state_that_is_left_to_the_next_stream_changes_its_audio(
    name: str, tmp_path: Path, recordings: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: a stream begins with what the one before has left."""
    codec = made(name, tmp_path)
    codes = [some_codes(codec, 12, seed) for seed in range(2)]
    wanted = [audio(codec, own, [12]) for own in codes]
    monkeypatch.setattr(StreamState, "clear", lambda state: None)
    assert not torch.allclose(audio(codec, codes[1], [12]), wanted[1], atol=1e-3 * float(wanted[1].std()))


@pytest.mark.parametrize("broken", ["last", "position"])
def test_layers_that_forget_change_the_audio(
    broken: str, tmp_path: Path, recordings: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins: a state that is replaced and not written in place, so that a graph does not see it."""
    codec = made("mimi", tmp_path)
    codes = some_codes(codec, 24)
    wanted = codec.decode(codes)
    if broken == "last":

        def forgets(last: Tensor, new: Tensor, dim: int = -1) -> Tensor:
            both = after_last(last.clone(), new, dim)
            return both

        monkeypatch.setattr(streamed_layers, "after_last", forgets)
    else:
        zeros = StreamState.zeros

        def other(state: StreamState, *shape: int, dtype: torch.dtype) -> Tensor:
            tensor = zeros(state, *shape, dtype=dtype)
            return tensor if shape != (1,) else tensor.as_subclass(Still)

        monkeypatch.setattr(StreamState, "zeros", other)
    assert not torch.allclose(audio(codec, codes, [8, 8, 8]), wanted, atol=1e-3 * float(wanted.std()))


class Still(Tensor):
    """A position that does not advance."""

    def __iadd__(self, other: object) -> Still:
        return self


def test_what_cannot_be_captured_runs_eagerly(
    tmp_path: Path, recordings: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mimi", "dac"):
        codec = made(name, tmp_path)
        codes, tries = some_codes(codec, FRAMES), list[object]()
        wanted = recordings.eager(partial(audio, codec, codes))

        def fails(graphs: GraphCache, *args: Any, tries: list[object] = tries) -> None:
            if graphs.works():
                tries.append(args)
                graphs._fails.add(None)

        with monkeypatch.context() as patch:
            patch.setattr(GraphCache, "call", fails)
            assert torch.equal(audio(codec, codes), wanted)
        assert len(tries) == 1, "a capture that has failed is not tried again"
        assert not len(KeptGraphs.of(codec._model))


def test_graphs_are_freed_with_the_weights(tmp_path: Path, recordings: Recordings) -> None:
    codec = made("mimi", tmp_path)
    codes = some_codes(codec, 8)
    wanted, count = audio(codec, codes, [8]), recordings.count
    assert len(KeptGraphs.of(codec._model)) == 1
    codec._model.double()
    gc.collect()
    assert not len(KeptGraphs.of(codec._model))
    for module in codec._model.float().modules():
        if hasattr(module, "_embed"):
            module._embed = None
    assert torch.equal(audio(codec, codes, [8]), wanted) and recordings.count > count


@pytest.mark.parametrize("name", CODECS)
def test_calls_can_be_captured(name: str, tmp_path: Path) -> None:
    """Traced on a fake CUDA device: no operator whose result depends on data, no copy from the host."""
    codec = made(name, tmp_path)
    codes, stream = some_codes(codec, 12), codec.stream()
    if name in CAUSAL:
        inner = getattr(stream, "_stream", stream)
        assert isinstance(inner, SteppedStream)
        inner.push(codes)
        call: Any = inner._steps
    else:
        call = ChunkCall(codec, codes, 12 + NEW, torch.device("cpu"))
    with fake_device() as device, torch.inference_mode():
        moved(call, device)
        for width in SIZES:
            tokens = torch.zeros(2, width, dtype=torch.int64, device=device)
            found = trace(partial(call.read, tokens, tokens, width))
            assert found.count and not problems([found])


def test_padding_that_the_host_reads_is_detected() -> None:
    """The twin of the test above: convolutions of transformers ask the device how much to pad."""
    layers = tiny_codecs.mimi().decoder.decoder_seanet
    with fake_device() as device, torch.inference_mode():
        moved(layers, device)
        with pytest.raises(DataDependentOutputException):
            trace(lambda: layers(torch.zeros(1, 16, 8, device=device)))


def test_overlapping_streams_are_captured_from_the_first_chunk(tmp_path: Path, recordings: Recordings) -> None:
    codec = made("dac", tmp_path)
    stream = codec.stream()
    assert isinstance(stream, CapturedOverlapStream)
    early = stream.push(some_codes(codec, 60))
    assert early.shape[-1] and recordings.count == 1


def test_codecs_that_are_not_causal_are_not_streamed() -> None:
    for changes, reason in (
        ({"use_causal_conv": False}, "not causal"),
        ({"pad_mode": "replicate"}, "padded with zeros"),
        ({"sliding_window": 0}, "no sliding window"),
    ):
        codec = codec_of(tiny_codecs.mimi(**changes))
        with pytest.raises(ModelError, match=reason):
            codec.stream().push(some_codes(codec, 3))
