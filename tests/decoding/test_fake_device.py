"""Every `read` that CUDA graphs capture, traced on a fake CUDA device: no operator whose result depends on data, and no
copy between host and device. A capture would fail on either, and decoding would silently be slow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import tiny_higgs_v3
import tiny_moss
import tiny_music
import tiny_speech
import tiny_zonos2
import torch
from fake_targets import made_targets, problems, traced_reads
from gpu_bench.counting import fake_device, trace
from hf_image_cases import CASES, GUIDANCE, arguments, ours
from transformers import GenerationMixin

import mmspec
from mmspec.decoding.graph_capture import RefusesSynchronization

IDS = torch.tensor([[5, 6, 7, 8], [4, 9, 3, 4]])
HIGGS = torch.tensor([[5, 6, 7, 31], [4, 9, 3, 31]])
TEXT: dict[str, Any] = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "max_new_tokens": 6}


class Enough(Exception):
    """Ends a run after its first call."""


def stop(step: object) -> None:
    raise Enough


def music(**kind: Any) -> Callable[[], object]:
    more = {"max_new_tokens": 10} | ({"guidance_scale": 3.0} if kind.pop("guided", False) else {})
    return lambda: generate(tiny_music.musicgen(0, **kind), **TEXT | more)


def generate(model: Any, **call: Any) -> object:
    return GenerationMixin.generate(model, **call, custom_generate=mmspec.generate, recipe="scd:window=3", on_step=stop)


def dia(**more: Any) -> object:
    """Rows of text without a voice: the first column, and the padding that its delays leave."""
    columns = torch.full((2, 4, 3), 17)
    columns[:, 0], columns[:, :3, 1], columns[:, :, 2] = 18, 18, 18
    given = {"decoder_input_ids": columns.int(), "decoder_attention_mask": torch.ones(2, 4).long()}
    return generate(tiny_music.dia(), **TEXT | given | more | {"max_new_tokens": 12})


OTHERS: dict[str, Callable[[], object]] = {
    "llama": lambda: generate(tiny_speech.flat(), **TEXT),
    "qwen": lambda: generate(tiny_speech.flat(qwen=True), **TEXT),
    "musicgen": music(),
    "musicgen guided": music(guided=True),
    "stereo": music(channels=2),
    "dia": dia,
    "dia guided": lambda: dia(guidance_scale=3.0),
    "higgs": lambda: generate(tiny_music.higgs(), **TEXT | {"input_ids": HIGGS, "max_new_tokens": 12}),
    "csm": lambda: generate(tiny_speech.csm(), **TEXT | {"do_sample": False}),
}
CELLS = {"csm": (4,)}  # of targets that do not tell


@pytest.mark.parametrize(("name", "guided"), GUIDANCE)
def test_image_models_of_transformers(name: str, guided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CASES[name].model()
    with made_targets(monkeypatch) as made, pytest.raises(Enough):
        ours(model, arguments(name, model, guided), recipe="scd:window=3", on_step=stop)
    assert made and not problems(traced_reads(made[0]))


@pytest.mark.parametrize("name", OTHERS)
def test_audio_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with made_targets(monkeypatch) as made, pytest.raises(Enough):
        OTHERS[name]()
    assert made and not problems(traced_reads(made[0], CELLS.get(name, ())))


WRITERS = {tiny_higgs_v3: tiny_higgs_v3.higgs_v3, tiny_moss: tiny_moss.moss, tiny_zonos2: tiny_zonos2.zonos2}


@pytest.mark.parametrize("tiny", [tiny_higgs_v3, tiny_moss, tiny_zonos2])
def test_published_audio_models(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = WRITERS[tiny](tmp_path / "model")
    pipe = mmspec.load(str(folder), config={"codec": tiny.Codec(), "frames": 8})
    with made_targets(monkeypatch) as made, pytest.raises(Enough):
        pipe("one two", recipe="scd:window=3", seed=0, on_step=stop)
    assert made and not problems(traced_reads(made[0]))


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("guided", [False, True])
def test_llamagen(guided: bool, blocks: bool) -> None:
    from mmspec.vision.llamagen.blocks import BlockTransformer
    from mmspec.vision.llamagen.target import LlamaGenTarget
    from mmspec.vision.llamagen.transformer import LlamaGenTransformer

    torch.manual_seed(0)
    kind = BlockTransformer if blocks else LlamaGenTransformer
    gpt = kind(vocab_size=20, dim=16, n_layer=2, n_head=2, num_classes=5, grid_size=4).eval()
    uncond = gpt.unconditional(2) if guided else None
    assert not problems(traced_reads(LlamaGenTarget(gpt, torch.arange(2), uncond, None, 4)))


def test_captures_refuse_what_synchronizes_in_their_own_thread() -> None:
    """As a warm-up of a capture meets it: reads of values and copies, but no arithmetic with numbers of the host."""
    with fake_device() as device, torch.inference_mode():
        x, host = torch.arange(4.0, device=device), torch.arange(4.0)
        with RefusesSynchronization():
            assert (2 * x + torch.tensor(1.0)).to(torch.float64).is_cuda
            for refused in (lambda: x.cpu(), lambda: host.to(device), lambda: x.copy_(host), lambda: x[x > 1]):
                with pytest.raises(RuntimeError, match="synchronizes|copies"):
                    refused()
            found: list[Any] = []
            thread = Thread(target=lambda: found.append(torch.arange(3).to(torch.float32).sum().item()))
            thread.start()
            thread.join()
        assert found == [3.0] and x.cpu().device.type == "cpu"


def test_a_read_of_values_is_found() -> None:
    with fake_device() as device, pytest.raises(Exception, match="_local_scalar_dense"):
        slots = torch.arange(4, device=device)
        trace(lambda: slots[: int(slots.max())])
