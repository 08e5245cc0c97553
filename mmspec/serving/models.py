"""The models of a server, and the engines that decode their requests."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from weakref import WeakSet

from mmspec import limits
from mmspec.audio.adapter import PreparedText
from mmspec.errors import ArgumentError, did_you_mean
from mmspec.pipeline import makes_audio
from mmspec.recipes import Recipe, default_recipe, parse
from mmspec.serving.errors import ApiError, cut_off
from mmspec.serving.generation import DecodingRequest, Engine, Generation
from mmspec.serving.raster import Raster, raster_of, size_of, takes_size
from mmspec.serving.stand_ins import check_aliases
from mmspec.serving.step_clock import StepClock

Kind = Literal["image", "speech"]
PLAIN = "plain"


@dataclass
class ServedModel:
    """A model with its engine.

    Attributes:
        name: Its name in requests.
        recipe: The recipe of requests that name none.
        engine: Decodes requests.
        created: When the model was loaded, in seconds of the epoch.
        clock: Of the steps of its engine.
        worker: Decodes tokens to pixels or audio, one request at a time.
    """

    name: str
    pipe: Any
    recipe: str
    engine: Engine
    created: int = field(default_factory=lambda: int(time.time()))
    clock: StepClock = field(default_factory=StepClock)
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "mmspec-decode"))
    _generations: WeakSet[Generation] = field(default_factory=WeakSet)

    @property
    def kind(self) -> Kind:
        """What it generates."""
        return "speech" if makes_audio(self.pipe) else "image"

    @cached_property
    def raster(self) -> Raster:
        """The grid of an image model's default images."""
        return raster_of(self.pipe)

    def sized(self, size: str | None) -> tuple[tuple[int, int] | None, Raster]:
        """Height and width of the image, None for the model's default, and its grid.

        Raises:
            ArgumentError: If the model has no images of this size.
        """
        default, wanted = self.raster, size_of(size)
        if wanted in (None, (default.height, default.width)):
            return None, default
        assert wanted is not None
        limits.PIXELS.check("size", wanted[0] * wanted[1])
        if not takes_size(self.pipe):
            raise ArgumentError(f"size={size!r} is not allowed; this model has images of {default.size}")
        try:
            return wanted, raster_of(self.pipe, wanted)
        except ArgumentError as error:
            raise ArgumentError(f"size={size!r} is not allowed: {error}; auto is {default.size}") from error

    @property
    def voices(self) -> Sequence[str]:
        """Its voices, the default first; may be empty."""
        return tuple(self.pipe.adapter.voices) if self.kind == "speech" else ()

    def check_recipe(self, recipe: str | None) -> str:
        """The recipe of a request, which is the model's if it names none.

        Raises:
            ApiError: If it is neither "plain" nor the model's recipe.
        """
        chosen = self.recipe if recipe is None else recipe
        if chosen not in (PLAIN, self.recipe):
            raise ApiError(
                400, f"recipe={chosen!r} is not allowed; this server runs {self.recipe!r} and {PLAIN!r}",
                "invalid_value", "recipe",
            )  # fmt: skip
        return chosen

    def describe(self, name: str) -> dict[str, Any]:
        """The model in `GET /v1/models`, by one of its names."""
        entry: dict[str, Any] = {"id": name, "object": "model", "created": self.created, "owned_by": "mmspec"}
        entry["root"] = self.name
        entry |= {"kind": self.kind, "recipe": self.recipe, "exact": parse(self.recipe).exact}
        if self.kind == "speech":
            return entry | {"voices": list(self.voices), "sampling_rate": self.pipe.sampling_rate}
        return entry | {"size": self.raster.size, "rows": self.raster.rows, "columns": self.raster.columns}

    def generate(self, prompt: str | PreparedText, request: DecodingRequest) -> Generation:
        """Hands a request to the engine.

        Args:
            prompt: The prompt of an image, or the prepared text of speech.
            request: Its settings.
        """
        found = Generation(self.engine.generate(prompt, request), self.clock)
        self._generations.add(found)
        return found

    def cut_off(self) -> int:
        """Ends all requests with an error, and returns their number."""
        return sum(generation.fail(cut_off()) for generation in list(self._generations))

    async def aclose(self) -> None:
        """Ends the engine."""
        await self.engine.aclose()
        self.worker.shutdown(wait=False, cancel_futures=True)


class Models:
    """The models of a server, by name.

    Args:
        models: At least one.
        aliases: Other names of some.

    Raises:
        ArgumentError: If another name is that of a model, or stands for none.
    """

    def __init__(self, models: Sequence[ServedModel], aliases: Mapping[str, str] | None = None) -> None:
        self.all = {model.name: model for model in models}
        self._aliases = dict(aliases or {})
        check_aliases(self._aliases, list(self.all))

    @property
    def names(self) -> list[str]:
        """All names that requests may use."""
        return [*self.all, *self._aliases]

    def get(self, name: str) -> ServedModel | None:
        """The model of a name, or None."""
        return self.all.get(self._aliases.get(name, name))

    def find(self, name: str | None, kind: Kind) -> ServedModel:
        """The model of a request.

        Args:
            name: Its name; None and "" are the first of the kind.
            kind: What it must generate.

        Raises:
            ApiError: With status 404, if there is none.
        """
        able = [model for model in self.all.values() if model.kind == kind]
        if not name and able:
            return able[0]
        if not name:
            raise ApiError(404, f"this server has no model for {kind}", "model_not_found", "model")
        found = self.get(name)
        if found is None:
            names = [other for other in self.names if self.get(other) in able]
            raise ApiError(
                404,
                f"model {name!r} is not served here{did_you_mean(name, names)}; models for {kind}: "
                f"{', '.join(names) or 'none'}",
                "model_not_found",
                "model",
            )
        if found.kind != kind:
            raise ApiError(404, f"model {name!r} generates {found.kind}, not {kind}", "model_not_found", "model")
        return found


def recipe_of(pipe: Any, recipe: Recipe | None) -> str:
    """The recipe of a model's requests: the one that is given, or the pipeline's default."""
    return str(default_recipe(pipe) if recipe is None else recipe)
