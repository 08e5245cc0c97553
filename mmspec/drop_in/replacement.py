"""A method of one object, set on the instance in place of that of its class, and taken off again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, ClassVar

from torch import Tensor

from mmspec.decoding.stats import Stats
from mmspec.heads.head import Head
from mmspec.recipes import Recipe

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """How an accelerated object decodes; see `mmspec.accelerate`.

    Attributes:
        recipe: None is the default of the model and its device.
        draft_model: A smaller model, or None.
        heads: Draft heads on the model's features.
        table: Images for an n-gram table, or None.
    """

    recipe: Recipe | None = None
    draft_model: Any = None
    heads: Sequence[Head] = ()
    table: Tensor | None = None


class Replacement:
    """A method that stands on one object for that of its class.

    It is an attribute of the object, so that it is copied and pickled with it, with its settings and without its
    statistics.

    Args:
        owner: The object.
        settings: How it decodes.

    Attributes:
        stats: Statistics of the last call; None before the first one, and after one that ran without mmspec.
    """

    NAME: ClassVar[str]

    def __init__(self, owner: Any, settings: Settings) -> None:
        self.owner, self.settings = owner, settings
        self.stats: Stats | None = None
        self._noted: set[str] = set()
        # Another package may have set the method on the instance too.
        self._previous = [vars(owner)[self.NAME]] if self.NAME in vars(owner) else []

    def __call__(self, *positional: Any, **named: Any) -> Any:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "stats": None, "_noted": set()}

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The method that it stands for, whose signature `inspect` shows."""
        found: Callable[..., Any] = (
            self._previous[0] if self._previous else MethodType(getattr(type(self.owner), self.NAME), self.owner)
        )
        return found

    @property
    def name(self) -> str:
        """The method with the class of its object."""
        return f"{type(self.owner).__name__}.{self.NAME}"

    def install(self) -> None:
        """Sets the method on its object."""
        setattr(self.owner, self.NAME, self)

    def remove(self, owner: Any) -> None:
        """Leaves an object, the owner or a shallow copy of it, as it was."""
        if self._previous:
            setattr(owner, self.NAME, self._previous[0])
        else:
            delattr(owner, self.NAME)

    def keep(self, stats: Sequence[Stats], recipe: Recipe) -> None:
        """Keeps the statistics of a call, which are those of its runs, and logs them."""
        if not stats:  # an adapter of another package may have none
            self.stats = None
            return
        total = total_of(stats)
        self.stats = total
        log.info(
            "%s: %d tokens in %d calls, %.2f tokens per call, %.2f s (%s)",
            *(self.name, total.tokens, total.target_calls, total.tokens_per_call, total.seconds, recipe),
        )

    def note(self, reason: str) -> None:
        """Says that a call runs without mmspec, and why: as a warning for the first call with this reason."""
        self.stats = None
        level = logging.INFO if reason in self._noted else logging.WARNING
        self._noted.add(reason)
        log.log(level, "%s runs without mmspec: %s", self.name, reason)


def total_of(stats: Sequence[Stats]) -> Stats:
    """The statistics of several runs, one after the other."""
    total = stats[0]
    for each in stats[1:]:
        total = total.followed_by(each)
    return total


def found_on(owner: Any, name: str) -> Replacement | None:
    """The replacement that an object has for a method; None without."""
    method = vars(owner).get(name)
    return method if isinstance(method, Replacement) else None
