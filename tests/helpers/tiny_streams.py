"""Tiny random codecs whose streams are captured, by name, and captures of their calls on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import golden_qwen3_tts
import pytest
import tiny_codecs
import tiny_latents
import torch
from recorded_calls import Recordings, recorded_graphs
from tiny_fish_codec import add_codec
from torch import Tensor

from mmspec.audio.codecs import codec_of, overlap_graphs, qwen3_tts, stepped_stream
from mmspec.audio.codecs.hificodec import HiFiCodec, HiFiCodecModel
from mmspec.audio.latents.codecs import PocketCodec, VibeVoiceCodec
from mmspec.audio.models.fish_s2 import codec as fish_s2
from mmspec.decoding.captured_calls import GraphCache

HIFI: dict[str, Any] = {
    "n_code_groups": 2, "n_codes": 16, "upsample_rates": [4, 3], "upsample_kernel_sizes": [8, 7], "resblock": "1",
    "upsample_initial_channel": 16, "resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 3], [1, 3]],
}  # fmt: skip


def hifi(folder: Path) -> HiFiCodec:
    torch.manual_seed(0)
    return HiFiCodec(HiFiCodecModel(HIFI).requires_grad_(False).eval(), 1200)


CAUSAL: dict[str, Callable[[Path], Any]] = {
    "mimi": lambda folder: codec_of(tiny_codecs.mimi()),
    "pocket": lambda folder: PocketCodec(tiny_latents.pocket_processor().audio_tokenizer, fade_in=0.02),
    "vibevoice": lambda folder: VibeVoiceCodec(tiny_latents.vibevoice(), 1000),
    "qwen3-tts": lambda folder: qwen3_tts.read_codec(golden_qwen3_tts.FOLDER / "speech_tokenizer", "cpu"),
    "fish-s2": lambda folder: fish_s2.read_codec(add_codec(folder), "cpu"),
}
OVERLAPPING: dict[str, Callable[[Path], Any]] = {
    "dac": lambda folder: codec_of(tiny_codecs.dac()),
    "higgs": lambda folder: codec_of(tiny_codecs.higgs()),
    "xcodec": lambda folder: codec_of(tiny_codecs.xcodec()),
    "hificodec": hifi,
}
CODECS = CAUSAL | OVERLAPPING


def some_codes(codec: Any, frames: int, seed: int = 1, rows: int = 2) -> Tensor:
    """Codes, or latents, [rows, K, frames]."""
    generator = torch.Generator().manual_seed(seed)
    if not codec.codebooks:
        width = 4 if isinstance(codec, PocketCodec) else 6
        return torch.randn(rows, width, frames, generator=generator)
    return torch.randint(codec.codebook_size, (rows, codec.codebooks, frames), generator=generator)


def pushed(codec: Any, codes: Tensor, lengths: list[int]) -> list[Tensor]:
    """The chunks of a stream."""
    stream = codec.stream()
    return [*(stream.push(chunk) for chunk in codes.split(lengths, dim=-1)), stream.finish()]


@contextmanager
def recorded_codecs() -> Iterator[Recordings]:
    """A context in which codecs capture their calls on a CPU; as on a device, a call is run once before."""
    with recorded_graphs() as found, pytest.MonkeyPatch.context() as patch:
        for module in (stepped_stream, overlap_graphs):
            patch.setattr(module, "use_cuda_graphs", lambda device: found.is_on)
        before = GraphCache.call

        def call(graphs: GraphCache, read: Any, *args: Any, **kwargs: Any) -> Any:
            known = len(graphs._calls)
            made = before(graphs, read, *args, **kwargs)
            if made is not None and len(graphs._calls) > known:
                made._run(read)
            return made

        patch.setattr(GraphCache, "call", call)
        yield found
