"""Calls whose unknown arguments are refused with a line that names the closest known one."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from mmspec.errors import ArgumentError, did_you_mean

# Arguments that the calls of other libraries' pipelines have -> what to do instead: the first text all of whose
# arguments, which stand before a "=", the method has.
CALLS = "the number of calls follows from the model and the recipe; choose with recipe="
SETTINGS = "pass temperature=, top_k=, ... to the call itself"
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "num_inference_steps": ("use steps=", CALLS),
    "timesteps": ("use steps=", CALLS),
    "latents": ("use seed= or generator=", "use seed="),
    "callback": ("use callback_on_step_end=", "use on_step="),
    "callback_steps": (
        "callback_on_step_end= is called after each target call",
        "on_step= is called after each target call",
    ),
    "negative_prompt": (
        "the model takes no negative prompt; guidance_scale= is relative to its unconditional prompt",
        "the model takes no negative prompt",
    ),
    "height": ("the model has images of one size",),
    "width": ("the model has images of one size",),
    "num_return_sequences": (
        "use num_images_per_prompt=",
        "use num_videos_per_prompt=",
        "pass the text several times",
    ),
    "do_sample": ("use temperature=0 for greedy decoding",),
    "max_new_tokens": ("the model ends its output itself",),
    "generate_kwargs": (SETTINGS,),
    "forward_params": (SETTINGS,),
    "draft_model": ("pass it when the model is loaded, and recipe='draft' to the call",),
    "assistant_model": ("pass it as draft model when the model is loaded, and recipe='draft' to the call",),
}


def check_config(config: Iterable[str], owner: str, names: Sequence[str]) -> None:
    """Checks that the options of a `config` are among those that a model has.

    Raises:
        ArgumentError: If one is not.
    """
    for name in sorted(set(config) - set(names)):
        raise ArgumentError(
            f"config has {name!r}, which {owner} does not have{did_you_mean(name, names)}; it may have "
            f"{', '.join(map(repr, names))}"
        )


P = ParamSpec("P")
R = TypeVar("R")


def check_options(options: Iterable[str], names: Sequence[str]) -> None:
    """Checks that options by name are among those that a request takes.

    Raises:
        ArgumentError: If one is not.
    """
    for name in options:
        if name not in names:
            raise ArgumentError(
                f"{name} is not an option of this request{did_you_mean(name, names)}; it takes {', '.join(names)}"
            )


def refuse_keywords(reason: str, *names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a method so that arguments of other pipelines, which mean nothing here, are refused with a reason.

    Args:
        reason: Why, as a clause.
        names: Arguments that the method does not have.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in names:
                if name in kwargs:
                    raise ArgumentError(f"{name} is not an argument of {type(args[0]).__name__}: {reason}")
            return method(*args, **kwargs)

        return checked

    return decorate


def refuse_unknown_keywords(method: Callable[P, R]) -> Callable[P, R]:
    """Decorates a method so that arguments that do not fit its signature raise an `ArgumentError`."""
    signature = inspect.signature(method)
    names = list(signature.parameters)[1:]

    @functools.wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        kind = type(args[0]).__name__
        for name in kwargs:
            if name not in names:
                raise ArgumentError(
                    f"{name} is not an argument of {kind}{_instead(name, names)}; it takes {', '.join(names)}"
                )
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{kind}: {error}; it takes {', '.join(names)}") from None
        return method(*args, **kwargs)

    return checked


def _instead(name: str, names: Sequence[str]) -> str:
    """What to use instead of an argument that a method does not have, for an error; "" if nothing is known."""
    for hint in ELSEWHERE.get(name, ()):
        if set(re.findall(r"(\w+)=", hint)) <= set(names):
            return f": {hint}"
    return did_you_mean(name, names)
