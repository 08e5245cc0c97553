"""Chameleon, and Anole and Lumina-mGPT, which were tuned from it to generate images.

The forward pass of transformers forbids all image tokens; decoding reads the head directly, and forbids them only in
calls without `prefix_allowed_tokens_fn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import ArgumentError, ModelError
from mmspec.hf.plan import Plan, PlanRequest, logits_size, refuse_inputs, shared_vocabulary_plan
from mmspec.sampling.constraints import Constraint


def vocab_size(model: Any) -> int:
    """The number of ids that the model's logits cover."""
    return logits_size(model.lm_head)


def plan(model: Any, request: PlanRequest) -> Plan:
    """How a request is decoded.

    `prefix_allowed_tokens_fn` sets the layout of the image, see `ImageConstraint`. Without it the codes of images are
    forbidden, as in the model's own generate.
    """
    refuse_inputs(model, request, "position_ids")
    result = shared_vocabulary_plan(model, model.model, model.get_input_embeddings(), model.lm_head, request)
    codes = model.model.vocabulary_mapping.image_tokens
    if request.allowed is not None or not codes:
        return result
    text = torch.ones(1, vocab_size(model), dtype=torch.bool, device=request.input_ids.device)
    text[0, codes] = False
    kind = torch.zeros(request.length, dtype=torch.int64, device=request.input_ids.device)
    return replace(result, constraint=Constraint(kind, text))


@dataclass(frozen=True)
class ChameleonIds:
    """Special ids; the defaults are those of the released vocabulary.

    Attributes:
        begin: Begin of image.
        end: End of image.
        stop: End of turn.
        newline: End of a line of a Lumina-mGPT image.
        size: The first id of the grid sizes of Lumina-mGPT: `size + n` is a height or width of 2 * n tokens.
    """

    begin: int = 8197
    end: int = 8196
    stop: int = 8710
    newline: int = 8803
    size: int = 8804

    @classmethod
    def of(cls, model: Any) -> ChameleonIds:
        """The special ids of a model, by their names in its vocabulary.

        Raises:
            ModelError: If a name is missing.
        """
        names = model.config.vocabulary_map or {}
        wanted = ("<racm3:break>", "<eoss>", "<reserved08706>", "<reserved08799>", "<reserved08800>")
        for name in wanted:
            if name not in names:
                raise ModelError(f"model.config.vocabulary_map has no {name!r}, which images of Chameleon require")
        return cls(*(names[name] for name in wanted))


class ImageConstraint:
    """The allowed tokens of an image after a prompt that ends with the begin-of-image token.

    Pass it to `model.generate` as `prefix_allowed_tokens_fn`, with `max_new_tokens=constraint.length`.

    Args:
        allowed: The ids that are allowed for each token of the image.
        begin: The begin-of-image id.
        width: Tokens per line.

    Attributes:
        length: Tokens of the image, end marks included.
        width: Tokens per line.
    """

    def __init__(self, allowed: Sequence[Sequence[int]], begin: int, width: int) -> None:
        self.length = len(allowed)
        self.width = width
        self._allowed = allowed
        self._begin = begin

    @classmethod
    def anole(cls, model: Any, side: int = 32, ids: ChameleonIds = ChameleonIds()) -> ImageConstraint:
        """Anole: `side` x `side` codes without line ends, then the end of the image.

        Its `negative_prompt_ids` are begin-of-text and begin-of-image.
        """
        return cls([codes_of(model)] * side**2 + [[ids.end]], ids.begin, side)

    @classmethod
    def lumina(cls, model: Any, height: int, width: int, ids: ChameleonIds = ChameleonIds()) -> ImageConstraint:
        """Lumina-mGPT: two sizes, `height` lines of `width` codes and a line end, the ends of image and turn.

        Its unconditional prompt is begin-of-image, which is the default of transformers without a negative prompt.

        Args:
            height: In tokens, even; 48 for 768 pixels.
            width: As `height`.
            ids: The special ids of the model.

        Raises:
            ArgumentError: If height or width is odd, or below 2.
        """
        if height < 2 or width < 2 or height % 2 or width % 2:
            raise ArgumentError(f"height={height}, width={width} is not allowed; they must be even and 2 or more")
        line = [codes_of(model)] * width + [[ids.newline]]
        sizes = [[ids.size + height // 2], [ids.size + width // 2]]
        return cls(sizes + line * height + [[ids.end], [ids.stop]], ids.begin, width + 1)

    def __call__(self, row: int, ids: Tensor) -> Sequence[int]:
        """The ids that may follow `ids`, int64 [n].

        Raises:
            ArgumentError: If `ids` contain no begin-of-image token.
        """
        begins = (ids == self._begin).nonzero()
        if not len(begins):
            raise ArgumentError(f"the prompt has no begin-of-image token ({self._begin}); it must end with it")
        made = len(ids) - 1 - int(begins[-1])
        return self._allowed[min(made, self.length - 1)]


def codes_of(model: Any) -> list[int]:
    """The ids of the image codes.

    Raises:
        ArgumentError: If the vocabulary names none.
    """
    codes: list[int] = model.model.vocabulary_mapping.image_tokens
    if not codes:
        raise ArgumentError("model.config.vocabulary_map names no image tokens (IMGIMG...Z)")
    return codes
