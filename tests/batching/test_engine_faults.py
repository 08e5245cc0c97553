"""An engine survives rows that fail, full queues, cancelled requests at any time, and several threads."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_pipe import N, ToyPipe

from mmspec.batching.async_engine import AsyncEngine, EngineClosedError, _Receiver
from mmspec.batching.engine import Engine, QueueFullError, _agree
from mmspec.batching.fair_queue import FairQueue
from mmspec.batching.group import Group
from mmspec.batching.request import PreparedRequest, RequestOutput
from mmspec.decoding.loop import RunningBatch
from mmspec.errors import ArgumentError, ModelError, PromptError, UnknownNameError
from mmspec.recipes import Recipe


def finish(engine: Engine, most: int = 300) -> dict[str, RequestOutput]:
    """Steps an engine until nothing is left; the last output of each request."""
    found: dict[str, RequestOutput] = {}
    given: dict[str, list[int]] = {}
    for _ in range(most):
        for output in engine.step():
            assert output.request_id not in found
            given.setdefault(output.request_id, []).extend(output.tokens.tolist())
            if output.finished:
                found[output.request_id] = output
                new = given[output.request_id]  # without those of earlier steps
                assert output.result is None or output.result[-len(new) :] == new
        if not engine.has_unfinished:
            assert engine.stats().running == engine.stats().waiting == 0
            return found
    raise AssertionError("the engine does not come to an end")


@pytest.mark.parametrize("fault", ["prepare", "prefill", "nan", "raise", "finish"])
@pytest.mark.parametrize("recipe", ["plain", "scd:window=3", "eagle:window=3", "tree:branch=2/1"])
def test_a_row_that_fails_takes_no_other_with_it(fault: str, recipe: str) -> None:
    pipe = ToyPipe()
    engine = Engine(pipe, recipe, max_rows=5)
    for i in range(3):
        engine.add("good", request_id=f"early {i}", seed=i)
    early = [engine.step(), engine.step()]
    engine.add(fault, request_id="bad", seed=9)
    engine.add("good", request_id="late", seed=3)
    last = {output.request_id: output for outputs in early for output in outputs if output.finished}
    given: dict[str, list[int]] = {name: [] for name in ("early 0", "early 1", "early 2", "late", "bad")}
    for outputs in (*early, *iter(lambda: engine.step() if engine.has_unfinished else None, None)):
        for output in outputs:
            given[output.request_id] += output.tokens.tolist()
            if output.finished:
                last[output.request_id] = output
    assert last["bad"].finish_reason == "error" and last["bad"].result is None
    assert isinstance(last["bad"].error, ModelError if fault == "nan" else RuntimeError)
    for seed, name in enumerate(["early 0", "early 1", "early 2", "late"]):
        assert last[name].finish_reason == "stop", last[name]
        assert last[name].result == given[name] == pipe.alone(recipe, seed)
    assert (engine.stats().completed, engine.stats().failed) == (4, 1)
    engine.add("good", seed=5)
    assert [output.result for output in finish(engine).values()] == [pipe.alone(recipe, 5)]


def test_arguments_are_refused_before_any_work() -> None:
    engine = Engine(ToyPipe(), max_rows=2)
    with pytest.raises(PromptError, match="prompt=''"):
        engine.add("")
    with pytest.raises(
        ArgumentError, match=r"temprature is not an option of this request \(did you mean 'temperature'"
    ):
        engine.add("good", temprature=1.0)
    with pytest.raises(ArgumentError, match="temperature=-1 is not allowed"):
        engine.add("good", temperature=-1)
    with pytest.raises(UnknownNameError, match="scdd"):
        engine.add("good", recipe="scdd")
    with pytest.raises(ArgumentError, match="request_id=7 is not allowed"):
        engine.add("good", request_id=7)  # type: ignore[arg-type]
    assert engine.step() == [] and not engine.has_unfinished
    with pytest.raises(ArgumentError, match="max_rows=0 is not allowed"):
        Engine(ToyPipe(), max_rows=0)
    with pytest.raises(ArgumentError, match="is not supported by engines"):
        Engine(object())
    assert engine.cancel("unknown") is False


def test_the_queue_is_bounded_and_names_are_unique() -> None:
    engine = Engine(ToyPipe(), max_rows=1, max_waiting=2)
    first, second = engine.add("good"), engine.add("good", request_id="second")
    with pytest.raises(QueueFullError, match="2 requests are waiting, as many as max_waiting allows"):
        engine.add("good")
    engine.step()
    with pytest.raises(ArgumentError, match="request_id='second' is not allowed"):
        engine.add("good", request_id="second")
    engine.cancel(second.id)
    engine.step()
    engine.add("good", request_id="second", seed=4)
    assert set(finish(engine)) == {first.id, "second"}


def test_no_more_rows_run_than_allowed() -> None:
    pipe = ToyPipe()
    engine = Engine(pipe, "plain", max_rows=3, max_prefill=2)
    for _ in range(10):
        engine.add("good")
    most = 0
    while engine.has_unfinished:
        engine.step()
        most = max(most, engine.stats().running)
    assert most == 3 and pipe.largest == 2


def test_the_bytes_of_kv_caches_are_bounded() -> None:
    engine = Engine(ToyPipe(), "plain", max_rows=8, max_cache_bytes=250)
    for _ in range(7):
        engine.add("good")
    most, largest = 0, 0
    while engine.has_unfinished:
        engine.step()
        most, largest = max(most, engine.stats().running), max(largest, engine.stats().cache_bytes)
    assert most == 2 and largest <= 250
    small = Engine(ToyPipe(), "plain", max_rows=8, max_cache_bytes=50)  # a row is larger on its own
    for _ in range(3):
        small.add("good")
    assert len(finish(small)) == 3


def test_tokens_that_change_after_a_new_start_end_the_request() -> None:
    pipe = ToyPipe()
    engine = Engine(pipe, "plain", max_rows=2)
    engine.add("good", request_id="good")
    for _ in range(3):
        engine.step()
    (row,) = engine._groups[0].rows.values()
    row.prompt = replace(row.prompt, seed=12345)  # as if a batch of another shape rounded differently
    engine.add("raise", request_id="bad")
    last = finish(engine)
    assert pipe.alone("plain", 0)[:3] != pipe.alone("plain", 12345)[:3]
    assert last["good"].finish_reason == last["bad"].finish_reason == "error"
    assert str(last["good"].error) == "a row raised"


def test_the_window_is_chosen_by_load() -> None:
    pipe = ToyPipe()
    engine = Engine(pipe, "scd:window=auto", max_rows=6)
    for seed in range(9):
        engine.add("good", seed=seed)
    found = finish(engine)
    assert all(len(output.result) == N for output in found.values())
    assert engine.stats().running == 0


def test_users_are_served_in_turn() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "a4", "b1", "c1", "c2"):
        queue.push(item[0], item)
    queue.remove(lambda item: item == "a2")
    assert queue.peek() == "a1" and len(queue) == 6
    assert [queue.pop() for _ in range(len(queue))] == ["a1", "b1", "c1", "a3", "c2", "a4"]
    with pytest.raises(IndexError):
        queue.pop()


def test_a_cancelled_request_leaves_at_the_next_step() -> None:
    engine = Engine(ToyPipe(), "plain", max_rows=2)
    running, waiting = engine.add("good").id, [engine.add("good").id for _ in range(3)]
    engine.step()
    assert engine.cancel(running) and engine.cancel(waiting[-1])
    ended = {output.request_id: output.finish_reason for output in engine.step() if output.finished}
    assert ended == {running: "cancelled", waiting[-1]: "cancelled"}
    assert engine.cancel(running) is False and engine.stats().running == 2
    assert set(finish(engine)) == set(waiting[:-1])


def test_one_thread_steps_and_others_add_and_cancel() -> None:
    pipe = ToyPipe()
    engine, added = Engine(pipe, "scd:window=3", max_rows=4), list[str]()

    def work(seed: int) -> None:
        for i in range(12):
            name = engine.add("good", request_id=f"{seed} {i}", seed=seed, user=seed).id
            if i % 3 == 2:
                engine.cancel(name)
            added.append(name)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    last: dict[str, RequestOutput] = {}
    while any(thread.is_alive() for thread in threads) or engine.has_unfinished:
        last |= {output.request_id: output for output in engine.step() if output.finished}
    assert set(last) == set(added) and len(last) == 48
    for name, output in last.items():
        if output.finish_reason != "cancelled":
            assert output.result == pipe.alone("scd:window=3", int(name.split()[0]))


def test_a_second_thread_cannot_step() -> None:
    engine = Engine(ToyPipe())
    with engine._stepping, pytest.raises(ArgumentError, match="another thread"):
        engine.step()


def test_finished_rows_leave_no_memory_behind() -> None:
    engine = Engine(ToyPipe(), "eagle:window=3", max_rows=4)
    sizes = []
    for _ in range(3):
        for seed in range(12):
            engine.add("good", seed=seed)
        finish(engine)
        gc.collect()
        sizes.append(sum(type(thing) is torch.Tensor for thing in gc.get_objects()))
    assert sizes[2] <= sizes[1]
    assert not engine._groups and not engine._requests and not engine._retries and not len(engine._queue)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 3), st.sampled_from([1, 2, N])),
            st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("fail"), st.sampled_from([0, 1, 2]), st.just(0)),
            st.tuples(st.just("step"), st.integers(1, 3), st.just(0)),
        ),
        max_size=25,
    ),
    st.sampled_from(["plain", "scd:window=3", "draft:window=3", "recycle:window=3"]),
    st.integers(1, 4),
)
def test_any_schedule_gives_each_request_its_own_tokens(events: list[Any], recipe: str, max_rows: int) -> None:
    pipe = ToyPipe()
    engine = Engine(pipe, recipe, max_rows=max_rows)
    wanted: dict[str, tuple[int, int]] = {}
    bad, given, last = set(), dict[str, list[int]](), dict[str, RequestOutput]()

    def step() -> None:
        for output in engine.step():
            assert output.request_id not in last
            given.setdefault(output.request_id, []).extend(output.tokens.tolist())
            if output.finished:
                last[output.request_id] = output

    for kind, number, length in events:
        if kind == "add":
            name = engine.add("good", seed=number, user=number % 2, length=length).id
            wanted[name] = number, length
        elif kind == "fail":
            bad.add(engine.add(["nan", "raise", "prefill"][number]).id)
        elif kind == "cancel" and (names := list(wanted)):
            engine.cancel(names[number % len(names)])
        else:
            for _ in range(number):
                step()
    for _ in range(400):
        if not engine.has_unfinished:
            break
        step()
    assert set(last) == set(wanted) | bad
    for name, (seed, length) in wanted.items():
        alone = pipe.alone(recipe, seed, length)
        assert given[name] == alone[: len(given[name])]
        assert last[name].finish_reason == "cancelled" or last[name].result == given[name] == alone
    assert all(last[name].finish_reason == "error" for name in bad)


async def collect(engine: AsyncEngine, seed: int, leave: int | None = None) -> list[int] | None:
    tokens: list[int] = []
    outputs = engine.generate("good", seed=seed, user=seed)
    async for output in outputs:
        tokens += output.tokens.tolist()
        if leave is not None and len(tokens) >= leave:
            await outputs.aclose()
            return None
        if output.finished:
            assert output.result == tokens
    return tokens


def wait_for_leavers(engine: AsyncEngine, leaves: Callable[[Any], bool], tokens: int) -> None:
    """Lets no step begin while a request that leaves after `tokens` tokens has them and has not left yet."""
    inner, step = engine.engine, engine.engine.step

    def held() -> list[RequestOutput]:
        deadline = time.monotonic() + 20
        for progress in list(inner._requests.values()):
            while leaves(progress.request) and progress.rows[0].given >= tokens and not progress.cancelled:
                assert time.monotonic() < deadline, "a request does not leave"
                time.sleep(0.001)
        return step()

    inner.step = held  # type: ignore[method-assign]


def test_async_requests_share_the_engine_and_leaving_cancels() -> None:
    pipe = ToyPipe()

    async def main() -> None:
        async with AsyncEngine(pipe, recipe="plain", max_rows=3) as engine:
            wait_for_leavers(engine, lambda request: request.seed % 4 == 3, 2)
            found = await asyncio.gather(*(collect(engine, i, 2 if i % 4 == 3 else None) for i in range(8)))
            assert found == [None if i % 4 == 3 else pipe.alone("plain", i) for i in range(8)]
            while engine.engine.has_unfinished:
                await asyncio.sleep(0.01)
            assert engine.stats().cancelled == 2 and engine.stats().completed == 6
            with pytest.raises(PromptError):
                await collect_prompt(engine, "")
            with pytest.raises(RuntimeError, match="a row raised"):
                await collect_error(engine)
        with pytest.raises(EngineClosedError):
            await collect(engine, 0)

    asyncio.run(main())


def test_a_step_wakes_the_loop_once_whatever_the_number_of_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = 0

    async def main() -> int:
        loop = asyncio.get_running_loop()
        call_soon = loop.call_soon_threadsafe

        def counted(*arguments: Any, **context: Any) -> asyncio.Handle:
            nonlocal wakes
            wakes += threading.current_thread().name == "mmspec-engine"
            return call_soon(*arguments, **context)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        engine = AsyncEngine(ToyPipe(), recipe="plain", max_rows=8)
        steps, step, all_are_there = 0, engine.engine.step, threading.Event()

        def held() -> list[RequestOutput]:
            nonlocal steps
            assert all_are_there.wait(20)
            steps += 1
            return step()

        engine.engine.step = held  # type: ignore[method-assign]
        tasks = [asyncio.create_task(collect(engine, seed)) for seed in range(8)]
        while engine.stats().requests < len(tasks):
            await asyncio.sleep(0.001)
        all_are_there.set()
        await asyncio.gather(*tasks)
        await engine.aclose()
        return steps

    steps = asyncio.run(main())
    assert 0 < wakes <= steps < 8 * N


async def collect_prompt(engine: AsyncEngine, prompt: str) -> None:
    async for _ in engine.generate(prompt):
        pass


async def collect_error(engine: AsyncEngine) -> None:
    async for output in engine.generate("raise"):
        if output.error is not None:
            raise output.error


@pytest.mark.parametrize("drain", [True, False])
def test_closing_drains_or_cancels(drain: bool) -> None:
    async def main() -> list[str | None]:
        engine = AsyncEngine(ToyPipe(), recipe="plain", max_rows=2)

        async def one(seed: int) -> str | None:
            return [output.finish_reason async for output in engine.generate("good", seed=seed)][-1]

        tasks = [asyncio.create_task(one(seed)) for seed in range(6)]
        while engine.stats().requests < 6:
            await asyncio.sleep(0.001)
        await engine.aclose(drain=drain)
        return await asyncio.gather(*tasks)

    reasons = asyncio.run(main())
    assert reasons == ["stop"] * 6 if drain else "cancelled" in reasons


def test_a_cancelled_task_cancels_its_request() -> None:
    async def main() -> None:
        async with AsyncEngine(ToyPipe(), recipe="plain", max_rows=1) as engine:
            tasks = [asyncio.create_task(collect(engine, seed)) for seed in range(3)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            while engine.engine.has_unfinished:
                await asyncio.sleep(0.005)

    asyncio.run(main())


class SlowPipe(ToyPipe):
    """A toy pipeline that reads the prompts "slow" and "" only when `read` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.read = threading.Event(), threading.Event()

    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        if prompt in ("", "slow"):
            self.reading.set()
            assert self.read.wait(20)
        return super().read_request("good" if prompt == "slow" else prompt, options, recipe)


def test_closing_ends_while_a_request_is_refused() -> None:
    pipe = SlowPipe()
    engine = AsyncEngine(pipe, recipe="plain")
    refused = threading.Thread(target=lambda: asyncio.run(refuse(engine)), daemon=True)
    refused.start()
    assert pipe.reading.wait(20)
    closing = threading.Thread(target=engine.close, daemon=True)
    closing.start()
    wait_for(lambda: engine._closing)
    pipe.read.set()
    refused.join(20)
    closing.join(5)
    assert not closing.is_alive()


async def refuse(engine: AsyncEngine) -> None:
    with pytest.raises(PromptError):
        await collect_prompt(engine, "")


def wait_for(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_closing_without_draining_cancels_a_request_that_is_being_added() -> None:
    pipe = SlowPipe()
    engine = AsyncEngine(pipe, recipe="plain")
    reasons: list[Any] = []

    async def one() -> None:
        reasons.extend([output.finish_reason async for output in engine.generate("slow")])

    adding = threading.Thread(target=lambda: asyncio.run(one()), daemon=True)
    adding.start()
    assert pipe.reading.wait(20)
    closing = threading.Thread(target=engine.close, args=(False,), daemon=True)
    closing.start()
    wait_for(lambda: engine._closing)
    pipe.read.set()
    adding.join(20)
    closing.join(20)
    assert reasons[-1] == "cancelled" and not closing.is_alive()


def test_a_request_whose_loop_ends_while_it_is_added_is_cancelled() -> None:
    pipe = SlowPipe()
    engine = AsyncEngine(pipe, recipe="plain")

    async def leave() -> None:
        task = asyncio.create_task(collect_prompt(engine, "slow"))
        while not pipe.reading.is_set():
            await asyncio.sleep(0.002)
        threading.Timer(0.2, pipe.read.set).start()  # after the loop has cancelled all tasks
        del task

    asyncio.run(leave())
    wait_for(lambda: engine.stats().requests == 1 and not engine.engine.has_unfinished)
    assert engine.stats().cancelled == 1
    engine.close()


def test_leaving_a_finished_request_cancels_no_other_of_its_name() -> None:
    pipe = SlowPipe()

    async def main() -> None:
        async with AsyncEngine(pipe, recipe="plain", max_rows=1) as engine:
            first = engine.generate("good", request_id="same")
            await anext(first)
            while engine.engine.has_unfinished:  # all outputs lie in the queue of `first`
                await asyncio.sleep(0.002)
            holder = engine.engine._stepping
            holder.acquire()
            try:
                engine.engine.add("good", request_id="same", seed=1)
                engine._receivers["same"] = _Receiver("same", asyncio.get_running_loop())
                await first.aclose()
                assert not engine.engine._requests["same"].cancelled
            finally:
                engine.engine._requests.clear()
                engine.engine._queue.remove(lambda _: True)
                engine._receivers.clear()
                holder.release()

    asyncio.run(main())


def test_a_request_of_the_inner_engine_does_not_end_the_outer_one() -> None:
    async def main() -> None:
        async with AsyncEngine(ToyPipe(), recipe="plain", max_rows=2) as engine:
            engine.engine.add("good")
            assert await collect(engine, 1) is not None
            assert not engine.has_failed

    asyncio.run(main())


class ConvertingPipe(ToyPipe):
    """A toy pipeline whose prompt "codes" fails where its tokens are converted, and "later" in its second part."""

    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        found = super().read_request(prompt, options, recipe)

        def fail(*_: Any) -> Any:
            raise RuntimeError("the tokens could not be converted")

        if prompt == "codes":
            return replace(found, codes=fail)
        if prompt == "later":
            return replace(found, rows=[*found.rows, *found.rows], continued=fail)
        return found


@pytest.mark.parametrize("fault", ["codes", "later"])
def test_tokens_that_cannot_be_converted_end_their_request_alone(fault: str) -> None:
    pipe = ConvertingPipe()
    engine = Engine(pipe, "plain", max_rows=3)
    engine.add("good", request_id="early")
    engine.step()
    engine.add(fault, request_id="bad")
    engine.add("good", request_id="late", seed=2)
    last = finish(engine)
    assert str(last["bad"].error) == "the tokens could not be converted"
    assert last["early"].result == pipe.alone("plain", 0) and last["late"].result == pipe.alone("plain", 2)


def test_no_more_rows_run_than_allowed_while_failed_ones_start_anew() -> None:
    engine = Engine(ToyPipe(), "plain", max_rows=4)
    for _ in range(3):
        engine.add("good")
    engine.add("prefill")
    for _ in range(8):
        engine.add("good")
    while engine.has_unfinished:
        engine.step()
        assert sum(len(group.rows) for group in engine._groups) <= 4


def test_a_user_that_cannot_be_a_key_is_refused() -> None:
    engine = Engine(ToyPipe())
    with pytest.raises(ArgumentError, match=r"user=\[\] is not allowed; it must be hashable"):
        engine.add("good", user=[])  # type: ignore[arg-type]
    assert not engine.has_unfinished


def test_a_row_that_is_shorter_after_a_new_start_ends_with_the_error() -> None:
    engine = Engine(ToyPipe(), "plain", max_rows=2)
    engine.add("good", request_id="good")
    for _ in range(3):
        engine.step()
    (row,) = engine._groups[0].rows.values()
    row.prompt = replace(row.prompt, prompt=("good", 2))  # as if it ended sooner in a batch of another shape
    assert row.given > 2
    engine.add("raise", request_id="bad")
    assert finish(engine)["good"].finish_reason == "error"


def test_a_batch_that_failed_leaves_no_memory_while_its_rows_start_anew() -> None:
    engine = Engine(ToyPipe(), "plain", max_rows=3)
    for _ in range(2):
        engine.add("good")
    engine.step()
    engine.step()
    batch = engine._groups[0].batch
    assert isinstance(batch, RunningBatch)
    target = weakref.ref(batch.target)
    del batch
    engine.add("raise")
    while engine._groups:
        engine.step()
    assert engine._retries
    gc.collect()
    assert target() is None


def test_requests_are_read_one_at_a_time() -> None:
    """Tokenizers of transformers keep padding and truncation in one place for all threads."""
    inside: list[int] = []

    class Pipe(ToyPipe):
        def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
            inside.append(len(inside))
            time.sleep(0.01)
            assert len(inside) == 1
            inside.pop()
            return super().read_request(prompt, options, recipe)

    engine = Engine(Pipe(), "plain", max_rows=2)
    failures: list[BaseException] = []

    def add() -> None:
        try:
            engine.add("good")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(finish(engine)) == 4


def test_a_batch_whose_rows_have_ended_elsewhere_takes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(ToyPipe):
        def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
            found = super().read_request(prompt, options, recipe)
            (row,) = found.rows
            return replace(found, rows=[row, replace(row, prompt=("raise", N))])

    running: list[int] = []
    step = Group.step

    def watched(group: Group) -> None:
        running.append(group.running)
        step(group)

    monkeypatch.setattr(Group, "step", watched)
    engine = Engine(Pipe(), "plain", max_rows=4)
    engine.add("good", request_id="both")  # its parts start anew in two batches, and the second one fails
    assert str(finish(engine)["both"].error) == "a row raised"
    assert running and all(running) and not engine._groups


def test_parts_of_a_failed_request_do_not_wait_any_more() -> None:
    class Pipe(ToyPipe):
        def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
            found = super().read_request(prompt, options, recipe)
            return replace(found, rows=[*found.rows] * 3)

    engine = Engine(Pipe(), "plain", max_rows=4)
    engine.add("prefill", request_id="bad")
    assert finish(engine)["bad"].finish_reason == "error"
    assert not any(engine._retries)


def test_vectors_that_were_given_out_agree_up_to_rounding() -> None:
    """A number near 0 is off by as much as the others of its vector, thousands of times its own size."""
    seen = torch.tensor([[0.9, -1.1], [1e-4, 0.7]])
    rounded = seen + 2e-6 * torch.tensor([[1.0, -1.0], [1.0, -1.0]])
    assert _agree(rounded, seen, whole=True) and _agree(rounded[:1], seen, whole=False)
    assert not _agree(rounded[:1], seen, whole=True) and not _agree(seen + 0.1, seen, whole=True)
    assert not _agree(torch.tensor([3, 5]), torch.tensor([3, 4]), whole=True)
