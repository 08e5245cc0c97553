"""Whether the codes of a request depend on the requests beside it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.batching.engine import ROUNDING, Engine
from mmspec.environment.importing import require_server
from mmspec.errors import ArgumentError
from mmspec.limits import CONNECTIONS
from mmspec.pipeline import makes_audio
from mmspec.recipes import Recipe

Result = Literal["passed", "FAILED", "not promised", "not checked"]
TOGETHER, LATE, SERVER = "in one batch", "joining late", "over the server"
STEPS_APART = 2  # windows between the arrivals of two late requests
TIMEOUT = 3600.0


@dataclass(frozen=True)
class Codes:
    """The codes of requests, decoded in one way, against those of each request alone.

    Attributes:
        way: How they were decoded.
        dtype: Of the weights.
        requests: Their number.
        equal: Requests with the same codes; vectors, up to rounding.
        first: The first position at which a request differs; None if none does.
        reason: Why this way was not possible.
    """

    way: str
    dtype: str
    requests: int
    equal: int = 0
    first: int | None = None
    reason: str | None = None

    @property
    def result(self) -> Result:
        """The verdict: equality is promised in float32."""
        if self.reason is not None:
            return "not checked"
        if self.equal == self.requests:
            return "passed"
        return "FAILED" if self.dtype == "float32" else "not promised"

    @property
    def figures(self) -> str:
        """The counts in words."""
        if self.reason is not None:
            return self.reason
        place = "" if self.first is None else f", the first difference is at position {self.first}"
        return f"{self.equal} of {self.requests} equal{place}"


def check_batch_invariance(pipe: Any, recipe: Recipe, prompts: Sequence[str], dtype: str) -> list[Codes]:
    """Decodes requests alone, in one batch, joining late, and over a server in this process.

    Request i has seed i.

    Args:
        pipe: The pipeline of a model.
        recipe: How to decode.
        prompts: The prompts of the requests.
        dtype: Of the weights, for the result.

    Raises:
        PromptError: If the model does not accept a prompt.
        ArgumentError: If engines do not support the pipeline.
    """
    alone = [decode(pipe, recipe, [prompt], seed)[0] for seed, prompt in enumerate(prompts)]
    together = decode(pipe, recipe, prompts)
    late = decode(pipe, recipe, prompts, apart=STEPS_APART, max_rows=max(2, len(prompts) // 2))
    found = [compare(TOGETHER, dtype, together, alone), compare(LATE, dtype, late, alone)]
    try:
        return [*found, compare(SERVER, dtype, decode_by_server(pipe, recipe, prompts), alone)]
    except ArgumentError as error:
        return [*found, Codes(SERVER, dtype, len(prompts), reason=str(error))]


def compare(way: str, dtype: str, codes: Sequence[Tensor], alone: Sequence[Tensor]) -> Codes:
    """Compares the codes of requests with those of each request alone."""
    places = [difference(one, other) for one, other in zip(codes, alone, strict=True)]
    different = [place for place in places if place is not None]
    return Codes(way, dtype, len(alone), len(alone) - len(different), min(different, default=None))


def difference(one: Tensor, other: Tensor) -> int | None:
    """The first position at which codes differ, int64 [n, *cell] or vectors [n, D]; None if they are equal."""
    n = min(len(one), len(other))
    if one.is_floating_point():
        equal = torch.isclose(one[:n], other[:n], rtol=ROUNDING, atol=ROUNDING)
    else:
        equal = one[:n] == other[:n]
    different = (~equal.reshape(n, -1).all(1)).nonzero()[:, 0] if n else equal.new_zeros(0)
    if len(different):
        return int(different[0])
    return None if len(one) == len(other) else n


def decode(
    pipe: Any, recipe: Recipe, prompts: Sequence[str], seed: int = 0, apart: int = 0, max_rows: int | None = None
) -> list[Tensor]:
    """The codes of requests in an engine.

    Args:
        recipe: How to decode.
        seed: Of the first request; each of the others has the next.
        apart: Steps between the arrivals of two requests.
        max_rows: Rows that are decoded at a time; None is all of them.
    """
    engine = Engine(pipe, recipe, max_rows=max_rows or max(len(prompts), 8))
    given: dict[str, list[Tensor]] = defaultdict(list)

    def step() -> None:
        for output in engine.step():
            if output.error is not None:
                raise output.error
            given[output.request_id].append(output.tokens)

    names = []
    for number, prompt in enumerate(prompts):
        names.append(engine.add(prompt, seed=seed + number, output_type="latent").id)
        for _ in range(apart):
            step()
    while engine.has_unfinished:
        step()
    return [torch.cat(given[name]) for name in names]


def decode_by_server(pipe: Any, recipe: Recipe, prompts: Sequence[str]) -> list[Tensor]:
    """The codes of requests that clients send to a server at the same time.

    Raises:
        ArgumentError: If the extra of the server is not installed, or the server cannot serve the model.
    """
    require_server()
    from mmspec.serving.app import Application
    from mmspec.serving.background import in_background
    from mmspec.serving.load import served_model

    model = served_model("model", pipe, recipe, max_rows=max(2, len(prompts) // 2), max_waiting=len(prompts))
    model.engine = kept = KeepingEngine(model.engine)
    most = min(len(prompts), CONNECTIONS.value)
    with in_background(Application([model])) as (address, _), ThreadPoolExecutor(most) as clients:
        speech = makes_audio(pipe)
        path = "/v1/audio/speech" if speech else "/v1/images/generations"
        bodies = [
            {"input": prompt, "response_format": "wav", "seed": seed} if speech else {"prompt": prompt, "seed": seed}
            for seed, prompt in enumerate(prompts)
        ]
        list(clients.map(lambda body: post(address + path, {"model": "model", **body}), bodies))
    return [torch.cat(kept.tokens[seed]) for seed in range(len(prompts))]


def post(url: str, body: Mapping[str, Any]) -> None:
    """Sends a request and reads the whole response.

    Raises:
        ArgumentError: If the server refuses the request.
        HTTPError: If the server fails.
    """
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            response.read()
    except urllib.error.HTTPError as error:
        if error.code >= 500:  # a fault of the server, not of the request
            raise
        with error:
            raise ArgumentError(f"the server answers with status {error.code}: {_message(error.read())}") from None


def _message(answer: bytes) -> str:
    """The message of an error in OpenAI's shape."""
    return str(json.loads(answer)["error"]["message"])


@dataclass
class KeepingEngine:
    """An engine of a served model that keeps the codes of each request by its seed.

    Attributes:
        tokens: What the requests were given.
    """

    engine: Any
    tokens: dict[int, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    async def generate(self, prompt: Any, request: Any) -> AsyncGenerator[Any, None]:
        async with aclosing(self.engine.generate(prompt, request)) as outputs:
            async for output in outputs:
                self.tokens[request.seed].append(output.tokens)
                yield output

    def stats(self) -> Mapping[str, float]:
        found: Mapping[str, float] = self.engine.stats()
        return found

    async def aclose(self) -> None:
        await self.engine.aclose()
