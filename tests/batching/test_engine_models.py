"""Engines of real model classes: a request that joins a running batch gets the tokens that it gets alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pipe_cases import CASES, SOUND
from torch import Tensor

from mmspec.audio.pipeline import SpeechPipeline
from mmspec.batching.engine import Engine
from mmspec.hf import causal_target
from mmspec.vision.llamagen import target as llamagen_target

# diffusers hands tensors to NumPy in its solver.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
SLOW = {"glm", "qwen3-tts-ahead"}


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        pytest.param(name, recipe, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, case in CASES.items()
        for recipe in case.recipes
    ],
)
def test_a_request_gets_the_tokens_that_it_gets_alone(name: str, recipe: str, tmp_path: Path) -> None:
    case = CASES[name]
    pipe = case.make(tmp_path)
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    engine = Engine(pipe, recipe, max_rows=4)
    requests = [(prompt, {"seed": 7 * i, **case.options(i)}) for i, prompt in enumerate(case.prompts)]
    found: dict[str, Any] = {}
    given: dict[str, list[Tensor]] = {}
    added, most = 0, 0
    while added < len(requests) or engine.has_unfinished:
        if added < len(requests):
            prompt, options = requests[added]
            engine.add(prompt, request_id=str(added), output_type="latent", **options)
            added += 1
        for output in engine.step():
            given.setdefault(output.request_id, []).append(output.tokens)
            if output.finished:
                assert output.error is None, output.error
                found[output.request_id] = output
        most = max(most, len(engine._groups))
    for i, (prompt, options) in enumerate(requests):
        call = {"prompt": prompt, "output_type": "latent"}
        if isinstance(pipe, SpeechPipeline):
            call = {"text": prompt}
        whole = pipe(**call, **options, recipe=recipe)
        tokens = found[str(i)].result.tokens
        for own, alone in zip(tokens, whole.tokens, strict=True):
            if own.is_floating_point():  # batches of other shapes round differently
                torch.testing.assert_close(pipe.adapter.codes(own), pipe.adapter.codes(alone), atol=1e-4, rtol=1e-4)
                continue
            assert torch.equal(own, alone)
        parts = [each for each in given[str(i)] if len(each)]
        assert torch.equal(torch.cat(parts), torch.cat(list(tokens)))
    assert most <= case.groups


@pytest.mark.parametrize("name", [name for name in SOUND if name not in SLOW])
def test_streams_have_the_audio_of_a_call_of_several_texts(name: str, tmp_path: Path) -> None:
    case = SOUND[name]
    pipe, texts, how = case.make(tmp_path), case.prompts[-3:], {"recipe": case.recipes[0]}
    for i, whole in enumerate(pipe(texts, seed=5, batch_size=2, **how)):
        chunks = [np.zeros_like(whole.audio[:, :0]), *pipe.stream(texts[i], seed=5 + i, first=2, every=3, **how)]
        np.testing.assert_allclose(np.concatenate(chunks, axis=-1), whole.audio, atol=1e-4)


@pytest.mark.parametrize("name", ["dia", "musicgen"])
def test_rows_join_columns_with_captured_calls(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As below, with texts of several lengths."""
    monkeypatch.setattr(causal_target, "use_cuda_graphs", lambda device: True)
    test_a_request_gets_the_tokens_that_it_gets_alone(name, "scd:window=4", tmp_path)


@pytest.mark.parametrize("recipe", ["plain", "scd:window=4"])
def test_rows_join_targets_with_captured_calls(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU captured calls run eagerly, through the same buffers and places of rows as on a CUDA device."""
    monkeypatch.setattr(llamagen_target, "use_cuda_graphs", lambda device: True)
    pipe = CASES["llamagen"].make(Path())
    pipe.set_progress_bar_config(disable=True)
    labels = [3, 1, 4, 1, 5, 0, 2]
    engine, found = Engine(pipe, recipe, max_rows=4), dict[str, Tensor]()
    for i, label in enumerate(labels):
        engine.add(None, class_labels=label, request_id=str(i), seed=i, output_type="latent")
        for output in engine.step() + engine.step():
            if output.finished:
                found[output.request_id] = output.result.tokens[0]
    while engine.has_unfinished:
        found |= {output.request_id: output.result.tokens[0] for output in engine.step() if output.finished}
    for i, label in enumerate(labels):
        alone = pipe(class_labels=label, seed=i, recipe=recipe, output_type="latent")
        assert torch.equal(found[str(i)], alone.tokens[0])
