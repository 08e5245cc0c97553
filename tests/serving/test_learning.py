"""`mmspec serve --learn`: the drafter learns in pauses, from requests of the model's own settings alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trainable import PROMPTS, settings, tiny_pipe

from mmspec.errors import ArgumentError, ModelError
from mmspec.serving.engines import new_engine
from mmspec.serving.generation import DecodingRequest
from mmspec.serving.learning import LearningEngine, drafter_kind, learning
from mmspec.training.kinds import new_drafter
from mmspec.training.online import OnlineDistillation

RECIPE = "medusa:window=3"


def pipe_with_heads(folder: Path) -> Any:
    pipe = tiny_pipe()
    new_drafter(pipe, settings("medusa")).save_pretrained(folder)
    pipe.add_drafter(folder)
    return pipe


async def codes(engine: Any, prompt: str, seed: int, **given: Any) -> Tensor:
    request = DecodingRequest(seed, RECIPE, **given)
    return torch.cat([output.tokens async for output in engine.generate(prompt, request)])


def test_the_drafter_learns_in_pauses(tmp_path: Path) -> None:
    pipe = pipe_with_heads(tmp_path / "first")
    before = [w.clone() for w in pipe.heads["medusa"].parameters()]

    async def serve() -> None:
        engine = learning(new_engine(pipe, RECIPE, 4, 64), pipe, RECIPE, tmp_path / "learned")
        # Only the eighth request of the model's own settings makes an update, when the last of them has ended.
        first = await asyncio.gather(*(codes(engine, PROMPTS[i % 4], i) for i in range(7)))
        await codes(engine, PROMPTS[0], 7, settings={"temperature": 0.5})
        await asyncio.gather(*engine._tasks)
        assert engine.stats()["drafter_updates"] == 0 and not (tmp_path / "learned").exists()
        again = await codes(engine, PROMPTS[1], 1)
        assert torch.equal(again, first[1]), "the same drafter gives the same tokens"
        await asyncio.gather(*engine._tasks)
        assert engine.stats()["drafter_updates"] == 1 and engine.stats()["running"] == 0
        await engine.aclose()

    asyncio.run(serve())
    assert not all(torch.equal(a, b) for a, b in zip(before, pipe.heads["medusa"].parameters(), strict=True))
    assert (tmp_path / "learned" / "config.json").is_file()


@pytest.mark.parametrize("error", [ModelError("the loss of update 1 is nan"), torch.OutOfMemoryError("no memory")])
def test_an_update_that_fails_ends_the_learning_and_no_request(
    error: Exception, tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = pipe_with_heads(tmp_path / "first")
    online = OnlineDistillation(pipe, "medusa", tmp_path / "learned", every=1)

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(online, "observe", fail)

    async def serve() -> None:
        engine = LearningEngine(new_engine(pipe, RECIPE, 4, 64), online)
        for seed in range(2):
            assert len(await codes(engine, PROMPTS[0], seed)) == 9
        await engine.aclose()

    asyncio.run(serve())
    assert caplog.text.count(f"the drafter learns no more: {error}") == 1


def test_no_drafter_changes_before_a_cancelled_request_has_left_its_batch(tmp_path: Path) -> None:
    pipe, observed = pipe_with_heads(tmp_path / "first"), list[str]()
    engine = new_engine(pipe, RECIPE, 4, 64)
    left = engine.stats()
    online = OnlineDistillation(pipe, "medusa", tmp_path / "learned", every=1)
    learner = LearningEngine(engine, online)
    learner._observe = lambda images: observed.extend(prompt for prompt, _ in images)  # type: ignore[method-assign]

    async def serve() -> None:
        await codes(learner, PROMPTS[0], 0)
        await asyncio.gather(*learner._tasks)
        assert observed == [*PROMPTS[:1]]
        await codes(engine, PROMPTS[0], 1)
        engine.stats = lambda: {**left, "running": 1.0}  # type: ignore[method-assign]
        await codes(learner, PROMPTS[1], 1)
        await asyncio.gather(*learner._tasks)
        assert observed == [*PROMPTS[:1]]
        engine.stats = lambda: left  # type: ignore[method-assign]
        await codes(learner, PROMPTS[2], 2)
        await asyncio.gather(*learner._tasks)
        assert observed == [*PROMPTS[:3]]
        await learner.aclose()

    asyncio.run(serve())


def test_a_request_waits_for_one_of_many_images_that_wait(tmp_path: Path) -> None:
    pipe, events = pipe_with_heads(tmp_path / "first"), list[str]()
    learner = LearningEngine(
        new_engine(pipe, RECIPE, 4, 64), OnlineDistillation(pipe, "medusa", tmp_path / "learned", every=1)
    )

    async def serve() -> None:
        await codes(learner, PROMPTS[0], 0)
        await asyncio.gather(*learner._tasks)
        learner._finished.extend([(PROMPTS[0], torch.zeros(9, dtype=torch.int64))] * 5)
        requests: list[Any] = []
        loop = asyncio.get_running_loop()

        async def request() -> None:
            await codes(learner, PROMPTS[1], 1)
            events.append("request")

        def observe(images: Any) -> None:
            events.append("update")
            if not requests:  # arrives while the drafter learns
                asyncio.run_coroutine_threadsafe(arrive(), loop).result()

        async def arrive() -> None:
            requests.append(asyncio.create_task(request()))
            await asyncio.sleep(0)

        learner._observe = observe  # type: ignore[method-assign]
        await learner._learn()
        await requests[0]
        await asyncio.gather(*learner._tasks)
        await learner.aclose()

    asyncio.run(serve())
    assert events == ["update", "request", *["update"] * 5]


def test_what_can_learn() -> None:
    pipe = tiny_pipe()
    assert drafter_kind(pipe, "draft:window=4") == "small" == drafter_kind(pipe, "scd:start=model")
    for recipe in ("scd", "recycle", "medusa", "plain"):
        with pytest.raises(ArgumentError, match="--learn requires a recipe with a drafter that can be trained"):
            drafter_kind(pipe, recipe)
