"""Requests of an engine, and the interface between an engine and a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from mmspec.decoding.resources import DraftResources
from mmspec.decoding.rows import JoinableBatch
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import UNWATCHED, Watch
from mmspec.decoding.window_policy import WindowPolicy
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class Request:
    """A request that an engine has accepted.

    Attributes:
        id: Names it in `Engine.cancel` and in outputs.
        user: The key of its line in the queue.
        seed: The seed of its tokens.
        notes: Remarks on the prompt.
    """

    id: str
    user: Hashable
    seed: int
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class RequestOutput:
    """What one step of the engine gave a request.

    Attributes:
        request_id: The request.
        tokens: The new tokens, int64 [n, *cell] on the CPU, as in the output of the pipeline; n may be 0.
        finished: Whether this is the last output of the request.
        finish_reason: "stop" for a complete result, "length" if a part reached its limit before its end, "cancelled",
            or "error"; None before the end.
        target_calls: Target calls that the request has taken part in.
        part: The index of the part that the tokens belong to: long texts are decoded in parts, such as sentences.
            Outputs come in the order of the parts.
        prompt: The prompt of the part, as it was decoded.
        result: When finished: the pipeline's output of this request; None if it was cancelled or failed.
        error: The exception, if `finish_reason` is "error".
    """

    request_id: str
    tokens: Tensor
    finished: bool
    finish_reason: FinishReason | None
    target_calls: int
    part: int = 0
    prompt: Any = None
    result: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class RowPrompt:
    """A row to decode: a prompt as its pipeline reads it.

    Attributes:
        prompt: The prompt, in the pipeline's own form.
        sampling: Its sampling parameters.
        seed: Its seed.
        kind: Rows of different kinds are not prepared together, such as images of different sizes.
    """

    prompt: Any
    sampling: SamplingParams
    seed: int
    kind: Hashable = None


@dataclass(frozen=True)
class PreparedRequest:
    """A request as its pipeline reads it.

    Attributes:
        rows: The parts that are decoded separately, in order: one for an image, one for each sentence of a text.
        finish: Makes the pipeline's output from the tokens of each part, [n, *cell], and the statistics.
        seed: The seed of the request.
        continued: If the later parts of a request continue its first one: makes such a part from the part, the first
            part, the tokens of the first part and whether these are truncated. They are then decoded after it.
        notes: Remarks for the caller.
        codes: Maps a row's tokens so far to those that are given out, such as the codes of an image without the ends of
            its lines; more tokens only append codes. None gives out the tokens themselves.
        chained: Whether each part continues the one just before it instead, as that was continued itself.
    """

    rows: Sequence[RowPrompt]
    finish: Callable[[Sequence[Tensor], Stats], Any]
    seed: int
    continued: Callable[[RowPrompt, RowPrompt, Tensor, bool], RowPrompt] | None = None
    notes: Sequence[str] = ()
    codes: Callable[[Tensor], Tensor] | None = None
    chained: bool = False


class DecodingBatch(JoinableBatch, Protocol):
    """A batch that is being decoded."""

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV caches, as far as known."""
        ...

    def stats(self) -> Stats:
        """The statistics so far; the counts of rows whose places others took are lost."""
        ...

    def use(self, policy: WindowPolicy | None = None, most_steps: int | None = None) -> None:
        """Sets the policy of the next windows; see `mmspec.decoding.loop.RunningBatch.use`."""
        ...

    def start(self) -> bool:
        """Reads the prompts and gives each row its first token; returns whether any row is running."""
        ...

    def step(self) -> bool:
        """Decodes one window; returns whether any row is running."""
        ...


class PreparedBatch(Protocol):
    """Rows that are ready to be decoded as a batch.

    Attributes:
        resources: Holds the window policies of the model.
        recipe: Replaces the recipe of the rows; None keeps it.
        tokens: Maps a row's tokens so far to those of the pipeline's output, before `PreparedRequest.codes`: the loop
            may number them from another id, or decode frames as a stream. None leaves them as they are.
    """

    @property
    def resources(self) -> DraftResources: ...

    @property
    def recipe(self) -> Recipe | None: ...

    @property
    def tokens(self) -> Callable[[Tensor], Tensor] | None: ...

    def batch(self, recipe: Recipe, seeds: Sequence[int], watch: Watch = UNWATCHED) -> DecodingBatch:
        """The batch, before its first token.

        Args:
            recipe: How it is decoded: `recipe` of this object, or else that of the rows.
            watch: What to show of the decoding.
        """
        ...


class EnginePipeline(Protocol):
    """A pipeline whose requests an engine can decode."""

    @property
    def config(self) -> Any:
        """The defaults of a call, with `recipe` among them."""
        ...

    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        """Reads a request; called in the thread of the caller, but in one thread of an engine at a time.

        Args:
            options: The arguments of a call of the pipeline by name, without None.
            recipe: How it is decoded.

        Raises:
            PromptError: If the model does not accept the prompt.
            ArgumentError: For an option that the pipeline does not have, or whose value is not allowed.
        """
        ...

    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedBatch:
        """Prepares rows of one kind as a batch; called in the thread that steps the engine."""
        ...
