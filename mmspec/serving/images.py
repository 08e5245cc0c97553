"""`POST /v1/images/generations`."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec import limits
from mmspec.errors import ArgumentError
from mmspec.serving.accounting import Accounting
from mmspec.serving.errors import ApiError
from mmspec.serving.generation import DecodingRequest, Generation
from mmspec.serving.models import ServedModel
from mmspec.serving.raster import Raster, encoded_image
from mmspec.serving.schemas import ImageRequest
from mmspec.serving.sse import event
from mmspec.serving.stand_ins import stand_in


@dataclass
class ImageJob:
    """An image request that has been checked.

    Args:
        accounting: Counts what the request does.
        address: The address of an image file; its argument is the content.
        sizes: Sizes in place of those that the model does not have.

    Raises:
        ApiError: If the request asks for something that is not possible.
        ArgumentError: If the model does not have such images.
    """

    model: ServedModel
    request: ImageRequest
    accounting: Accounting
    address: Callable[[bytes, str], str]
    sizes: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(init=False)
    recipe: str = field(init=False)
    seed: int = field(init=False)
    raster: Raster = field(init=False)
    size: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        request, number = self.request, self.request.n or 1
        limits.INPUT.check("prompt", len(request.prompt))
        limits.INPUT.check("negative_prompt", len(request.negative_prompt or ""))
        limits.IMAGES.check("n", number)
        if request.stream and number > 1:
            raise ApiError(400, f"n={number} is not possible with stream; it is 1", "invalid_value", "n")
        if request.stream and request.response_format == "url":
            raise ApiError(400, "response_format='url' is not possible with stream", "invalid_value", "response_format")
        self.recipe = self.model.check_recipe(request.recipe)
        self.seed = secrets.randbits(62) if request.seed is None else request.seed
        if self.seed + number > 2**63:
            raise ApiError(400, f"seed={self.seed} is not allowed: seed + n exceeds 2**63", "invalid_value", "seed")
        self.notes = request.notes()
        if request.output_compression is not None and self.format == "png":
            self.notes.append(f"output_compression={request.output_compression} has no effect on png")
        try:
            self.size, self.raster = self.model.sized(request.size)
        except ArgumentError:
            other = stand_in(self.sizes, str(request.size))
            if other is None:
                raise
            self.size, self.raster = self.model.sized(other)
            self.notes.append(f"size={request.size!r} became {self.raster.size!r}")

    @property
    def format(self) -> str:
        """Of the image files."""
        return self.request.output_format or "png"

    def start(self, index: int = 0) -> Generation:
        """Hands image `index` to the engine."""
        request = self.request
        settings = DecodingRequest(
            self.seed + index, self.recipe, request.user, request.settings(), request.negative_prompt, self.size
        )
        return self.model.generate(request.prompt, settings)

    async def image(self, codes: Tensor) -> str:
        """An image of the codes so far, in base64."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self.model.worker,
            encoded_image,
            self.model.pipe,
            codes,
            self.size,
            self.format,
            self.request.output_compression if self.format != "png" else None,
        )

    async def respond(self) -> dict[str, Any]:
        """The body of the response without `stream`."""
        async with AsyncExitStack() as stack:
            generations = []
            for index in range(self.request.n or 1):
                generations.append(self.start(index))
                stack.push_async_callback(generations[-1].close)
            data = []
            for index, generation in enumerate(generations):
                await generation.finish()
                self.accounting.add(generation)
                content = await self.image(codes_of(generation))
                entry: dict[str, Any] = {"seed": self.seed + index}
                if self.request.response_format != "url":
                    entry["b64_json"] = content
                if self.request.response_format != "b64_json":
                    entry["url"] = self.address(base64.b64decode(content), self.format)
                data.append(entry)
        cost = {"usage": self.accounting.usage(), "notes": self.notes}
        return {"created": int(time.time()), **self._kind(), "data": data, **cost}

    async def parts(self, generation: Generation) -> AsyncIterator[bytes]:
        """The events of the response with `stream`."""
        shown, sent, index = 0, 0, 0
        marks = self._marks()
        while True:
            await generation.news()
            for step in generation.steps[sent:] if self.request.steps else ():
                yield event(step.event())
            sent = len(generation.steps)
            if generation.done:
                break
            codes = codes_of(generation)
            reached = sum(len(codes) >= mark for mark in marks)
            if reached > shown:
                shown = reached
                content = await self.image(codes)
                yield event(self._event("partial_image", content) | {"partial_image_index": index})
                index += 1
        self.accounting.add(generation)
        content = await self.image(codes_of(generation))
        usage = self.accounting.usage()
        yield event(self._event("completed", content) | {"usage": usage, "seed": self.seed, "notes": self.notes})

    def _marks(self) -> list[int]:
        """Numbers of codes after which there is a partial image."""
        rows = self.raster.rows
        wanted = rows - 1 if self.request.partial_images is None else self.request.partial_images
        chosen = {round((i + 1) * rows / (wanted + 1)) for i in range(min(wanted, rows - 1))}
        return [row * self.raster.columns for row in sorted(chosen) if 0 < row < rows]

    def _kind(self) -> dict[str, Any]:
        return {"background": "opaque", "output_format": self.format, "size": self.raster.size}

    def _event(self, name: str, content: str) -> dict[str, Any]:
        kind = {"type": f"image_generation.{name}", "b64_json": content, "created_at": int(time.time())}
        return kind | {"quality": "auto"} | self._kind()


def codes_of(generation: Generation) -> Tensor:
    """The codes so far, int64 [n], blocks of them, int64 [n, K], or latents [n, D]."""
    return torch.cat([output.tokens for output in generation.outputs] or [torch.zeros(0, dtype=torch.int64)])
