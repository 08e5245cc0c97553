"""An engine gives each request the tokens that it gets alone, and survives what may happen to it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from toy_pipe import END, N, ToyPipe

from mmspec.batching.engine import Engine
from mmspec.batching.request import RequestOutput

RECIPES = [
    "plain",
    "draft:window=3",
    "draft:window=3,guidance=2",
    "layer-skip:window=3",
    "table:window=3",
    "recycle:window=3",
    "stand:window=4",
    "retrieval:window=3",
    "draft-stop:window=4,stop=0.5",
    "short-cache:window=3",
    "cascade:window=4,inner=2",
    "eagle:window=3",
    "medusa:window=3",
    "sjd:window=4,start=left",
    "sjd:window=4,start=model",
    "scd:window=3",
    "scd:window=5,coupling=gumbel,start=random",
    "scd:window=3,start=eagle",
    "scd:window=3,start=medusa",
    "scd:window=4,start=recycle",
    "block:window=3",
    "grid:window=3",
    "scd:window=4,start=grid",
    "scd:window=4,refresh=block",
    "tree-block:branch=2/2",
    "scd:window=4,refresh=model",
    "scd:window=4,refresh=eagle,refreshed=2",
    "scd:window=4,refresh=medusa,refreshed=3,weight=0.5,start=left",
    "scd:window=4,refresh=outer,passes=2",
    "tree:branch=2/2/1",
    "tree-chains:branch=3/1",
    "spectr:drafts=3,length=2",
    "tree-table:branch=2/1/2/1",
    "tree-dynamic:window=7,depth=3,top=2",
    "tree-sampled:window=6",
    "tree-eagle:branch=2/2",
    "tree-medusa:branch=2/2",
    "swift:window=3",
    "pearl:window=2",
    "masked:window=3",
    "tree-hydra:branch=2/2",
    "kangaroo:window=3",
    "prompt:branch=2/1",
    "one-step:window=3",
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_k": 3},
    {"top_p": 0.8},
    {"temperature": 0},
    {"guidance_scale": 2.0},
    {"guidance_scale": 1.5, "temperature": 1.3, "top_p": 0.9},
]


def finish(engine: Engine, most: int = 500) -> dict[str, list[RequestOutput]]:
    """Steps an engine until nothing is left; the outputs of each request."""
    found: dict[str, list[RequestOutput]] = {}
    for _ in range(most):
        for output in engine.step():
            found.setdefault(output.request_id, []).append(output)
        if not engine.has_unfinished:
            return found
    raise AssertionError("the engine does not come to an end")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("ends", [False, True])
def test_a_request_gets_the_tokens_that_it_gets_alone(recipe: str, ends: bool) -> None:
    """Requests of other sampling parameters, guidance and lengths come at any time, and some are cancelled."""
    chance, pipe = random.Random(1), ToyPipe(ends)
    engine = Engine(pipe, recipe, max_rows=5)
    wanted: dict[str, list[int]] = {}
    given: dict[str, list[int]] = {}
    finished: dict[str, RequestOutput] = {}
    cancelled = set[str]()
    for step in range(50):
        for _ in range(chance.choice([0, 0, 1, 2, 3]) if step < 12 else 0):
            seed, options, length = chance.randrange(10**6), chance.choice(OPTIONS), chance.choice([N, N, 2, 4])
            name = f"request {len(wanted):02}"
            engine.add("a prompt", request_id=name, seed=seed, user=seed % 3, length=length, **options)
            wanted[name] = pipe.alone(recipe, seed, length, **options)
        if chance.random() < 0.2 and (unfinished := sorted(wanted.keys() - finished.keys() - cancelled)):
            cancelled.add(name := chance.choice(unfinished))
            assert engine.cancel(name)
        for output in engine.step():
            given.setdefault(output.request_id, []).extend(output.tokens.tolist())
            if output.finished:
                assert output.request_id not in finished
                finished[output.request_id] = output
    assert not engine.has_unfinished and len(finished) == len(wanted) > 8 and cancelled
    for name, output in finished.items():
        if name in cancelled:
            assert output.finish_reason == "cancelled" and output.result is None
            assert given[name] == wanted[name][: len(given[name])]
        else:
            assert output.result == given[name] == wanted[name], name
            cut = ends and wanted[name][-1] != END
            assert output.finish_reason == ("length" if cut else "stop")
    stats = engine.stats()
    assert (stats.completed, stats.cancelled) == (len(wanted) - len(cancelled), len(cancelled))
    assert stats.running == stats.waiting == 0 and stats.tokens == sum(map(len, given.values()))
