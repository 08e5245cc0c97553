"""Prompt tokens: what they read in decoding and in training, their gradient, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_llamagen
import torch
from batch_runs import run
from hf_image_cases import CASES, arguments, job_of
from torch import Tensor
from trainable import PROMPTS, tiny_pipe

import mmspec.methods.prompt.drafter
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.processed_target import ProcessedTarget
from mmspec.decoding.resources import DraftResources
from mmspec.drafters.tree.specinfer import DISTINCT
from mmspec.errors import ArgumentError, ModelError
from mmspec.methods.prompt.drafter import PromptRunner, with_prompts
from mmspec.methods.prompt.head import PromptTokens
from mmspec.methods.prompt.training import PLACES, prompt_loss
from mmspec.recipes import parse
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.exactness import check
from mmspec.testing.toys import FEATURES, ToyTarget
from mmspec.training.objectives import run_teacher
from mmspec.vision.llamagen.target import LlamaGenTarget

N, SETTING = 9, SamplingParams(guidance_scale=1.5)


def test_a_most_likely_token_tested_as_a_sample_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    argmax = replace(DISTINCT, draw=lambda q, u: q.topk(u.shape[-1]).indices.flatten(1))
    monkeypatch.setattr(mmspec.methods.prompt.drafter, "DISTINCT", argmax)
    result = check("prompt:branch=1/1", SamplingParams(temperature=1.6), 20_000, layout=Layout(4, 2), seed=3)
    assert not result.ok, result


def llamagen() -> LlamaGenTarget:
    torch.manual_seed(0)  # for the unconditional embedding
    gpt = tiny_llamagen.tiny(grid_size=4)
    condition = torch.randn(2, tiny_llamagen.T, tiny_llamagen.C, generator=torch.Generator().manual_seed(1))
    return LlamaGenTarget(gpt, condition, gpt.unconditional(2), None, slack=64)


def causal() -> Any:
    model = CASES["janus"].model()
    job = job_of(model, arguments("janus", model, True))
    return job.target(job.plan, 64)


def prompts_for(target: Any, count: int) -> PromptTokens:
    target.prefill()
    prompts = PromptTokens(target.vocab_size, target.features().shape[-1], count)
    torch.nn.init.normal_(prompts.weight, std=0.5, generator=torch.Generator().manual_seed(2))
    return prompts


@pytest.mark.parametrize("make", [llamagen, causal])
@torch.no_grad()
def test_prompts_read_the_same_in_decoding_as_after_the_accepted_tokens_alone(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every tree: rejected drafts, other prompts and rows of other lengths change nothing."""
    prompts, calls = prompts_for(make(), 2), list[tuple[list[Tensor], Tensor]]()

    class Recorded(PromptRunner):
        def root(self, state: BatchState) -> Tensor:
            rows = [state.at(np.arange(n)[None].repeat(len(state.ids), 0))[b] for b, n in enumerate(state.length)]
            calls.append((rows, dense(self._q)))
            return dense(super().root(state))

    monkeypatch.setattr(mmspec.methods.prompt.drafter, "PromptRunner", Recorded)
    resources = DraftResources(heads={"prompt": prompts})
    tokens = run(make(), parse("prompt:branch=2/2"), Layout(N), [SETTING] * 2, [1, 2], resources).tokens
    assert tokens.max() < prompts.vocab_size and len(calls) > 2
    sampler, first = TokenSampler([SETTING] * 2, None, torch.device("cpu")), np.zeros(2, dtype=np.int64)
    for rows, q in calls[1:4]:
        for row, known in enumerate(rows if len(rows) == 2 else []):
            target = make()
            target.read_prompts(prompts.weight)
            target.prefill()
            read = len(known) - 1  # the last token has been sampled since
            target.forward(known[None, :read].repeat(2, 1), first)
            tree = with_prompts(np.arange(read - 1)[None], np.array([read - 1]), 2, known.device)
            logits = target.forward_tree(target.vocab_size + torch.arange(2).repeat(2, 1), first, tree, read)
            expected = sampler(logits, Numbers(np.broadcast_to(len(known) + np.arange(2), (2, 2))))
            torch.testing.assert_close(expected[row], q[row], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("guidance_scale", [1.0, 1.5])
def test_the_gradient_goes_through_the_target_and_its_cache(guidance_scale: float) -> None:
    """It equals differences of the loss in two directions."""
    prepared = tiny_pipe().prepare(PROMPTS[:2], PLACES * 2, 1.0, guidance_scale)
    tokens = torch.randint(12, (2, 9), generator=torch.Generator().manual_seed(3))
    teacher = run_teacher(prepared, tokens)
    prompts = PromptTokens(12, 32, 2)
    torch.nn.init.normal_(prompts.weight, std=0.5, generator=torch.Generator().manual_seed(4))

    def loss() -> Tensor:
        return prompt_loss(prompts, prepared, teacher, "kl", torch.Generator().manual_seed(5))

    loss().backward()
    gradient = prompts.weight.grad
    assert gradient is not None
    for row in range(2):  # each prompt token
        direction = torch.zeros_like(gradient)
        direction[row] = gradient[row] / gradient[row].norm()
        with torch.no_grad():
            prompts.weight.add_(direction, alpha=0.005)
            above = loss()
            prompts.weight.sub_(direction, alpha=0.01)
            slope = float(above - loss()) / 0.01
            prompts.weight.add_(direction, alpha=0.005)
        assert abs(slope / float(gradient[row].norm()) - 1) < 0.02


def test_refusals() -> None:
    settings, toy = [SamplingParams()], ToyTarget(1, 3, 3, 0)
    prompts = DraftResources(heads={"prompt": PromptTokens(3, FEATURES, 2)})
    processed = ProcessedTarget(toy, [lambda prefix, logits: logits], torch.zeros(1, 0, dtype=torch.int64), 40)
    with pytest.raises(ArgumentError, match="ProcessedTarget reads no prompt tokens"):
        run(processed, parse("prompt:branch=1"), Layout(3), settings, [0], prompts)
    target = llamagen()
    narrow = DraftResources(heads={"prompt": PromptTokens(target.vocab_size, 7, 3)})
    with pytest.raises(ModelError, match="prompt tokens of width 7, the model embeddings of"):
        run(target, parse("prompt"), Layout(3), settings * 2, [0, 1], narrow)
