"""Requests of an engine, and the interface between an engine and a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Stats
from mmspec.decoding.target import Target
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
        calls: Target calls that the request has taken part in.
        part: The index of the part that the tokens belong to: long texts are decoded in parts, such as sentences.
            Outputs come in the order of the parts.
        result: When finished: the pipeline's output of this request; None if it was cancelled or failed.
        error: The exception, if `finish_reason` is "error".
    """

    request_id: str
    tokens: Tensor
    finished: bool
    finish_reason: FinishReason | None
    calls: int
    part: int = 0
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
            part and the tokens of the first part. They are then decoded after it.
        notes: Remarks for the caller.
        codes: Maps a row's tokens so far to those that are given out, such as the codes of an image without the ends of
            its lines; more tokens only append codes. None gives out the tokens themselves.
    """

    rows: Sequence[RowPrompt]
    finish: Callable[[Sequence[Tensor], Stats], Any]
    seed: int
    continued: Callable[[RowPrompt, RowPrompt, Tensor], RowPrompt] | None = None
    notes: Sequence[str] = ()
    codes: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class PreparedRows:
    """Rows that are ready to be decoded as a batch.

    Attributes:
        target: The model with the prompts of the rows, before its prefill.
        layout: The sequences to generate.
        samplings: Sampling parameters, one per row.
        resources: The resources of the model for drafters.
        limits: The largest number of tokens of each row; None is the length of the layout.
        seeds: Seeds of the rows that replace those of their prompts; None keeps these.
        tokens: Maps a row's tokens so far to those of the pipeline's output, before `PreparedRequest.codes`: the loop
            may number them from another id, or decode frames as a stream. None leaves them as they are.
        recipe: Replaces the recipe of the rows; None keeps it.
    """

    target: Target
    layout: Layout
    samplings: Sequence[SamplingParams]
    resources: DraftResources
    limits: Sequence[int] | None = None
    seeds: Sequence[int] | None = None
    tokens: Callable[[Tensor], Tensor] | None = None
    recipe: Recipe | None = None


class EnginePipeline(Protocol):
    """A pipeline whose requests an engine can decode."""

    @property
    def config(self) -> Any:
        """The defaults of a call, with `recipe` among them."""
        ...

    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        """Reads a request; called in the thread of the caller, but in one thread of an engine at a time.

        Args:
            prompt: The prompt.
            options: The arguments of a call of the pipeline by name, without None.
            recipe: How it is decoded.

        Raises:
            PromptError: If the model does not accept the prompt.
            ArgumentError: For an option that the pipeline does not have, or whose value is not allowed.
        """
        ...

    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedRows:
        """Prepares rows of one kind as a batch; called in the thread that steps the engine."""
        ...
