"""Captured calls of models, by what they read: the width of a window, the part of the cache, the layers that run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.decoding.graph_capture import RefusesSynchronization, capturing, streams, with_plans
from mmspec.decoding.target import EarlyExit
from mmspec.environment.setup_work import record_setup

MAX_WIDTH = 128  # tokens per row; wider calls keep the device busy anyway, and a graph would hold on to their memory
_GRAPH_BYTES = 2**21  # that a driver needs for the kernels of a graph, about 1 KiB each

# (tokens int64 [R, W, *cell], slots int64 [R, W], number of cache slots to read, early exit) -> logits
# [R, W, *cell, V] and features [R, W, D].
Read = Callable[[Tensor, Tensor, int, EarlyExit | None], tuple[Tensor, Tensor]]
# What a graph is of: an early exit of the model, the name of a loop with calls of the model, or None for the model.
CapturedPart = EarlyExit | str | None


class GraphCache:
    """Captured calls, by window width and cache length, of the whole model, of its early exits and of loops.

    The graphs of one part of the model share one memory pool, so the output of a call must be copied before the next
    call of that part. States of layers have one place for all calls that collect the same layers: early exits read what
    a call of the whole model has put there.

    Attributes:
        tensors: The tensors that the graphs read and write besides the weights, where these are known: see
            `mmspec.decoding.kept_graphs`.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] | None = None
        self._calls: dict[tuple[Any, ...], CapturedCall] = {}  # the part is last
        self._states: dict[tuple[int, ...], Tensor] = {}
        self._heads: dict[EarlyExit, list[int]] = {}  # addresses of what takes the place of skipped layers
        self._pools: dict[CapturedPart, Any] = {}
        self._fails: set[CapturedPart] = set()  # the parts of which a call could not be captured
        self._memory = 0  # bytes by which what torch has reserved grew in captures

    def works(self, part: CapturedPart = None) -> bool:
        """Whether every call of a part of the model could be captured so far; None is the whole model."""
        return part not in self._fails

    @property
    def nbytes(self) -> int:
        """Bytes of the `tensors`, and of the graphs: of the memory that captures took and of their kernels, a guess."""
        own = sum(t.nbytes for t in (*(self.tensors or ()), *self._states.values()))
        return own + self._memory + _GRAPH_BYTES * len(self._calls)

    @property
    def has_calls(self) -> bool:
        """Whether any call was captured."""
        return bool(self._calls)

    def call(
        self,
        read: Read,
        batch_size: int,
        width: int,
        end: int,
        device: torch.device,
        part: EarlyExit | None = None,
        cell: tuple[int, ...] = (),
        layers: tuple[int, ...] = (),
    ) -> CapturedCall | None:
        """The captured call of a shape, captured now if it is new; None if a call of its part cannot be captured.

        Args:
            read: The call.
            batch_size: R.
            width: W.
            end: The number of cache slots to read.
            device: Of the call.
            part: The early exit; None is the whole model.
            cell: The shape of a token.
            layers: Those whose states it collects or reads.
        """

        def inputs() -> list[Tensor]:
            tokens = torch.zeros(batch_size, width, *cell, dtype=torch.int64, device=device)
            return [tokens, torch.arange(width, device=device).repeat(batch_size, 1) + (end - width)]

        return self.of(read, inputs, (end, part), (width, end, layers, part), device)

    def of(
        self,
        run: Callable[..., Any],
        inputs: Callable[[], list[Tensor]],
        fixed: tuple[Any, ...],
        key: tuple[Any, ...],
        device: torch.device,
    ) -> CapturedCall | None:
        """A captured call, captured now if it is new; None if a call of its part cannot be captured.

        Args:
            run: The call. It takes the inputs, and then what is fixed.
            inputs: Makes the input buffers.
            fixed: Further arguments.
            key: What distinguishes the call from others; its part of the model is last.
            device: The device of the buffers.
        """
        part = key[-1]
        if not self.works(part):  # another attempt would run the call, to warm up, and fail again
            return None
        found = self._calls.get(key)
        if found is None:
            found = CapturedCall(inputs, fixed)
            if device.type == "cuda":
                try:
                    with capturing:
                        pool = self._pools.setdefault(part, torch.cuda.graph_pool_handle())
                        before = torch.cuda.memory_reserved(device)
                        found.capture(run, pool, first=all(known != part for *_, known in self._calls))
                        # At most: others may reserve memory meanwhile, and a cache that is allocated now counts twice.
                        self._memory += max(0, torch.cuda.memory_reserved(device) - before)
                except RuntimeError:  # raised by torch and CUDA for operations that cannot be captured
                    self._fails.add(part)
                    # The earlier calls of this part will not be replayed either; their pool is freed with them.
                    self._drop(part)
                    return None
            self._calls[key] = found
            record_setup()
        return found

    def states(self, layers: tuple[int, ...], rows: int, width: int, like: Tensor) -> Tensor:
        """The place of the states of some layers, [R, W, layers * D].

        Args:
            rows: R, the same in each call.
            width: W, at most `MAX_WIDTH`.
            like: States of these layers, [..., layers * D].
        """
        if layers not in self._states:
            with torch.inference_mode(False):
                # Zeros: slots of a window that no call has written are read, and not used.
                shape = rows, MAX_WIDTH, like.shape[-1]
                self._states[layers] = torch.zeros(shape, dtype=like.dtype, device=like.device)
        return self._states[layers][:, :width]

    def expect(self, part: EarlyExit) -> None:
        """Drops the calls of a part that read weights of a head (`EarlyExit.change`) where they are no longer."""
        weights = [*part.change.parameters(), *part.change.buffers()] if isinstance(part.change, nn.Module) else []
        places = [weight.data_ptr() for weight in weights]
        if self._heads.setdefault(part, places) != places:
            self._drop(part)
            self._heads[part] = places

    def _drop(self, part: CapturedPart) -> None:
        self._calls = {shape: call for shape, call in self._calls.items() if shape[-1] != part}
        self._pools.pop(part, None)


class CapturedCall:
    """A call with its input buffers; on a CPU it runs eagerly.

    Args:
        inputs: Makes the buffers; of a window, its tokens int64 [R, W, *cell] and its slots int64 [R, W].
        fixed: Further arguments of the call.

    Attributes:
        inputs: The buffers.
    """

    def __init__(self, inputs: Callable[[], list[Tensor]], fixed: tuple[Any, ...]) -> None:
        with torch.inference_mode(False):  # the buffers may be written outside of inference mode later
            self.inputs = inputs()
        self._fixed = fixed
        self._out: Any = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def capture(self, read: Callable[..., Any], pool: Any, first: bool) -> None:
        """Captures the call in a CUDA graph.

        Args:
            read: The call.
            pool: The memory pool that all graphs share.
            first: Whether no call of this part was captured before; it then runs twice to warm up.

        Raises:
            RuntimeError: If the call cannot be captured.
        """
        device = self.inputs[0].device
        current, (warmup_stream, capture_stream) = torch.cuda.current_stream(device), streams(device)
        # The current stream is set explicitly, because a capture that fails would leave its own stream set.
        with torch.cuda.device(device), torch.cuda.stream(current), with_plans():
            warmup_stream.wait_stream(current)
            try:
                # Initialization on the first call must not be captured.
                with torch.cuda.stream(warmup_stream):
                    if first:
                        self._run(read)
                    with RefusesSynchronization():
                        self._run(read)
            finally:
                current.wait_stream(warmup_stream)  # an eager call would write to the same cache slots next
            graph = torch.cuda.CUDAGraph()
            # The default capture stream of torch belongs to the first device that anything was captured on.
            with torch.cuda.graph(graph, pool=pool, stream=capture_stream, capture_error_mode="thread_local"):
                self._out = self._run(read)
            self._graph = graph

    def _run(self, read: Callable[..., Any]) -> Any:
        return read(*self.inputs, *self._fixed)

    def __call__(self, read: Callable[..., Any]) -> Any:
        if self._graph is None:
            return self._run(read)
        self._graph.replay()
        return self._out
