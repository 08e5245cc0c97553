"""LlamaGen read through buffers of fixed shapes: the same logits, row by row, as read the ordinary way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.graphed import GraphedTarget
from mmspec.vision.llamagen.target import LlamaGenTarget


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def test_recorded_calls_read_as_ordinary_ones_do(device: torch.device) -> None:
    """Windows of two widths, rows that part, a row that ends, and a cache that is read in two lengths."""
    torch.manual_seed(0)
    gpt = LlamaGenGPT(vocab_size=50, dim=32, n_layer=2, n_head=2, num_classes=5, grid_size=12).to(device).eval()
    condition, nothing = torch.tensor([1, 2, 3], device=device), gpt.unconditional(3)
    with torch.inference_mode():
        plain = LlamaGenTarget(gpt, condition, nothing, None, 4)
        graphed = GraphedTarget(LlamaGenTarget(gpt, condition, nothing, None, 4))
        assert torch.equal(plain.prefill().cond, graphed.prefill().cond)
        tokens = torch.randint(50, (3, 148), device=device)
        earlier = None
        for at, width in (([0, 0, 0], 1), ([1, 1, 1], 3), ([4, 2, 3], 3), ([4, 5, 4], 3), ([120, 126, 127], 3)):
            window = torch.stack([tokens[row, start : start + width] for row, start in enumerate(at)])
            wanted, got = (target.forward(window, np.array(at)) for target in (plain, graphed))
            assert wanted.uncond is not None and got.uncond is not None
            assert torch.allclose(got.cond, wanted.cond, atol=2e-5)
            assert torch.allclose(got.uncond, wanted.uncond, atol=2e-5)
            assert torch.allclose(graphed.features(), plain.features(), atol=2e-5)
            if earlier is not None:  # the logits of the last call, which a carried draft refers to
                assert torch.equal(*earlier)
            earlier = got.cond, got.cond.clone()
        for rows, at in (([0, 2], [121, 128]), ([1], [130])):
            plain.keep(rows)
            graphed.keep(rows)
            window = tokens[: len(rows), 5:8]
            wanted, got = (target.forward(window, np.array(at)) for target in (plain, graphed))
            assert torch.allclose(got.cond, wanted.cond, atol=2e-5)
            assert torch.allclose(graphed.features(), plain.features(), atol=2e-5)
