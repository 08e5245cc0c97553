"""Counted launches, and the predictions made from them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import predict as predict_script
import pytest
import torch
import torch.nn.functional as F
from gpu_bench.counting import Launch, Trace, fake_device, trace
from gpu_bench.devices import DEVICES
from gpu_bench.plan import tiny
from gpu_bench.prediction import between, predict, seconds_of, tokens_per_window
from gpu_bench.published import PUBLISHED

H100 = DEVICES["h100"]
TINY = tiny().models["llamagen-xl"]


def test_launches_bytes_and_operations_are_counted() -> None:
    with fake_device() as device, torch.inference_mode():
        x = torch.zeros(3, 8, dtype=torch.bfloat16, device=device)
        weight, table = torch.zeros(4, 8, dtype=torch.bfloat16, device=device), torch.zeros(100, 8, device=device)
        ids = torch.zeros(2, dtype=torch.int64, device=device)
        q = torch.zeros(1, 4, 2, 8, dtype=torch.bfloat16, device=device)
        k = torch.zeros(1, 2, 6, 8, dtype=torch.bfloat16, device=device)
        product = trace(lambda: F.linear(x, weight))
        views = trace(lambda: x.view(8, 3).t().unsqueeze(0).expand(4, -1, -1).flatten(1, 2).shape)
        lookup = trace(lambda: F.embedding(ids, table))
        attention = trace(lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True))
        norm = trace(lambda: F.rms_norm(x, (8,), x[0]))
    assert product == Trace(Counter({Launch("mm", 2 * (3 * 8 + 4 * 8 + 3 * 4), 2 * 3 * 4 * 8): 1}))
    assert [launch.name for launch in views.launches] == ["clone"]  # that of flatten, the only one that is no view
    assert lookup.bytes == 2 * 2 * 8 * 4 + 2 * 8 and lookup.count == 1
    assert attention.count == norm.count == 1 and attention.flops == 4 * 4 * 2 * 6 * 8


def test_kernels_of_layers_are_counted() -> None:
    """Split attention is two kernels, with the sums between them; of a cache only what is written counts."""
    attention = pytest.importorskip("mmspec.kernels.attention")
    from mmspec.kernels.layers import rotate_and_store

    with fake_device() as device, torch.inference_mode():
        q = torch.zeros(1, 4, 2, 32, dtype=torch.bfloat16, device=device)
        cache, mask = q.new_zeros(1, 2, 400, 32), q.new_zeros(1, 1, 2, 300)
        seen = cache[:, :, :300]
        attended = trace(lambda: attention.attend(q, seen, seen, mask, 1.0, splits=3))
        qkv, slots = q.new_zeros(1, 2, 3 * 64), torch.zeros(1, 2, dtype=torch.int64, device=device)
        turns = torch.zeros(1, 2, 32, device=device)
        stored = trace(lambda: rotate_and_store(qkv, turns, turns, slots, cache, cache.clone()))
    between = 2 * 3 * 16 * (32 + 2) * 4  # key heads, parts, padded queries, sums and two numbers more
    first, second = attended.launches
    assert (
        first.bytes == 2 * (4 * 2 * 32 + 2 * 2 * 300 * 32 + 2 * 300) + between and first.flops == 4 * 4 * 2 * 300 * 32
    )
    assert second.bytes == between + 2 * 4 * 2 * 32 and attended.count == 2 and attended.operators == 1
    (written,) = (launch for launch in stored.launches if launch.name == "rotate_and_store")
    assert written.bytes == 2 * (3 * 2 * 64) + 2 * 2 * 32 * 4 + 2 * 8 + 2 * (2 * 2 * 64) + 2 * (2 * 64)


def test_a_published_size_runs_its_fused_layers() -> None:
    pytest.importorskip("triton")
    model = replace(TINY, layers=3)
    with fake_device() as device, torch.inference_mode():
        found = trace(model.on(device, torch.bfloat16).step(1, 4, model.prompt + model.length // 2))
    assert sum(n for launch, n in found.launches.items() if launch.name == "swiglu") == 3


def test_waits_are_found() -> None:
    with fake_device() as device, torch.inference_mode():
        x = torch.zeros(3, device=device)
        assert trace(lambda: torch.zeros(3).to(device)).waits == ("_to_copy between host and device",)
        assert trace(lambda: x.cpu()).waits == ("_to_copy between host and device",)
        assert trace(lambda: x + 1).waits == trace(lambda: x.to(torch.float64)).waits == ()
        with pytest.raises(Exception, match="_local_scalar_dense"):
            trace(lambda: int(x.max()))


def test_a_call_takes_the_longer_of_its_bytes_and_operations_and_the_time_of_each_kernel() -> None:
    device = replace(H100, bandwidth=100.0, flops=10.0, kernel=1.0)
    traced = Trace(Counter({Launch("a", 200, 0): 2, Launch("b", 100, 50): 1}))
    assert seconds_of(traced, device) == 2 * (1 + 2) + (1 + 5)
    assert traced.followed_by(traced).without(traced) == traced and traced.count == 3 and traced.bytes == 500


def test_tokens_per_window() -> None:
    assert tokens_per_window([0.5], 1) == 1 and tokens_per_window([0.5], 3) == 1.75
    assert tokens_per_window([1.0, 0.5], 4) == 1 + 1 + 0.5 + 0.25


def test_predictions_of_a_tiny_model() -> None:
    model = replace(TINY, layers=3)
    found = predict(model, H100, [1], [(4, tokens_per_window([0.9], 4))])
    assert [(step.rows, step.width) for step in found.steps] == [(1, 1), (1, 4)]
    with fake_device() as device, torch.inference_mode():  # of all three layers, not of two and one more of the same
        three = trace(model.on(device, torch.bfloat16).step(1, 4, model.prompt + model.length // 2))
    assert found.steps[1].seconds == pytest.approx(seconds_of(three, H100))
    plain, window = (found.steps[n].seconds + between(H100, width) for n, width in ((0, 1), (1, 4)))
    gains = {(gain.rows, gain.width): gain for gain in found.gains}
    assert gains[1, 4].speedup == pytest.approx(plain / window * tokens_per_window([0.9], 4))
    assert gains[1, 1].speedup == 1 and found.best(1).width == 4 and found.ends_at() is None
    assert replace(found, gains=[replace(g, speedup=1.0) for g in found.gains]).ends_at() == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_size_is_counted(name: str) -> None:
    """Weights are read once in a step, and a step needs no host: bytes are those of the published parameters."""
    billions = {
        "llamagen-b": 0.1, "llamagen-l": 0.33, "llamagen-xl": 0.75, "llamagen-xxl": 1.38, "janus-7b": 6.1, "emu3": 7.1,
        "lumina-7b": 6.5, "cosyvoice2": 0.36, "llasa-1b": 1.1, "musicgen-large": 2.85, "csm": 0.97,
        "janus-1b": 1.27, "qwen3-tts": 1.42,
        "lumina2-7b": 6.54, "simplear-1.5b": 1.41, "liquid-7b": 7.78, "emu3.5": 31.9, "cosmos-4b": 3.75,
        "cosmos-12b": 11.2,
    }  # fmt: skip
    # Layers, width and tokens of attention in the middle of a long sequence; in all others it is within the tolerance.
    long = {
        "emu3": (32, 4096, 4100), "lumina2-7b": (32, 4096, 4720), "simplear-1.5b": (28, 1536, 2110),
        "emu3.5": (64, 8192, 2100), "cosmos-4b": (16, 4096, 7680), "cosmos-12b": (40, 4096, 7680),
    }  # fmt: skip
    layers, width, tokens = long.get(name, (0, 0, 0))
    attention = 2 * layers * width * tokens
    found = predict(PUBLISHED[name], H100, [1], [(16, 3.3)])
    counted = found.steps[0].flops / 2 / (1 + PUBLISHED[name].guided)
    assert counted == pytest.approx(1e9 * billions[name] + attention, rel=0.06)
    assert found.steps[0].bytes > 2e9 * billions[name] * 0.95


def test_the_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(PUBLISHED, "llamagen-b", TINY)
    predict_script.main(
        ["--device", "l4", "-m", "llamagen-b", "--batch", "1", "--window", "2,4:3.5", "--acceptance", "0.9"]
    )
    out = capsys.readouterr().out
    assert "NVIDIA L4" in out and "Nothing here was measured" in out and "1.90" in out and "3.50" in out
    with pytest.raises(SystemExit):
        predict_script.main(["-m", "llamagen"])
    assert "unknown model 'llamagen'" in capsys.readouterr().err


def test_predicted_against_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = {"model": "csm", "part": "depth", "rows": 1, "width": 4}
    measured = [step | {"device": 0.003, "wall": 0.01}, {"model": "csm", "rows": 1, "width": 1, "error": "no memory"}]
    parts = {"models": {"records": measured}, "predicted": {"records": [step | {"seconds": 0.002}]}}
    record = tmp_path / "gpu.json"
    record.write_text(json.dumps({"environment": {"device": "H100"}, "parts": parts}))
    predict_script.main(["--measured", str(record)])
    assert "csm, depth decoder" in (out := capsys.readouterr().out) and "1.50" in out
