"""What a signal handler raises while an engine works reaches the caller, and no request is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from toy_pipe import FaultyTarget, ToyPipe

from mmspec.batching.engine import Engine
from mmspec.batching.signal_handlers import raised_by_handler


class Stop(Exception):
    pass


class Method:
    def stop(self, *_: Any) -> None:
        raise Stop

    __call__ = stop


def stop(*_: Any) -> None:
    raise Stop


@pytest.fixture
def set_handler() -> Iterator[Callable[[Any], None]]:
    before = signal.getsignal(signal.SIGUSR1)

    def change(handler: Any) -> None:
        signal.signal(signal.SIGUSR1, handler)

    yield change
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "handler", [stop, lambda *_: stop(), Method(), Method().stop], ids=["function", "lambda", "object", "method"]
)
def test_errors_of_handlers_are_known(handler: Any, set_handler: Callable[[Any], None]) -> None:
    set_handler(handler)
    with pytest.raises(Stop) as found:
        signal.raise_signal(signal.SIGUSR1)
    assert raised_by_handler(found.value)
    assert not raised_by_handler(Stop())


@pytest.mark.parametrize("where", ["forward", "prefill"])
def test_a_timeout_in_a_step_reaches_the_caller_and_loses_nothing(
    where: str, set_handler: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens(interrupted: bool) -> tuple[dict[str, list[int]], int]:
        calls = raised = 0
        own = getattr(FaultyTarget, where)

        def call(self: Any, *args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if interrupted and calls == 1:
                signal.raise_signal(signal.SIGUSR1)
            return own(self, *args, **options)

        found: dict[str, list[int]] = {}
        with monkeypatch.context() as patch:
            patch.setattr(FaultyTarget, where, call)
            engine = Engine(ToyPipe(), recipe="scd:window=3")
            for i in range(4):
                engine.add("a", seed=i, request_id=str(i))
            while engine.has_unfinished:
                try:
                    outputs = engine.step()
                except Stop:
                    raised += 1
                    continue
                for output in outputs:
                    assert output.error is None
                    found.setdefault(output.request_id, []).extend(output.tokens.tolist())
        return found, raised

    set_handler(stop)
    assert tokens(True) == (tokens(False)[0], 1)
    assert torch.is_grad_enabled()
