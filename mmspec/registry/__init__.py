"""Models, adapters, drafters, recipes, rules and metrics from outside: entry points, and `mmspec.register`.

| group             | entry-point name        | object                                                       |
| ----------------- | ----------------------- | ------------------------------------------------------------ |
| `mmspec.models`   | a model's name          | a function (device, dtype) that returns a pipeline           |
| `mmspec.adapters` | a transformers class    | a `mmspec.hf.adapters.GenerateAdapter`, a module or object   |
| `mmspec.drafters` | a recipe                | a builder, see `mmspec.decoding.resources.DraftingContext`   |
| `mmspec.recipes`  | a recipe                | a `mmspec.ways_to_draft.RecipeInfo`                          |
| `mmspec.rules`    | an acceptance rule      | a `mmspec.rules.Rule`                                        |
| `mmspec.heads`    | a kind of head          | a `mmspec.heads.info.HeadInfo`                               |
| `mmspec.starts`   | a value of `start`      | a `mmspec.drafters.recipe_info.Choice`                       |
| `mmspec.refreshes`| a value of `refresh`    | a `mmspec.drafters.recipe_info.Choice`                       |
| `mmspec.metrics`  | a metric                | a metric object, see docs/adding-a-metric.md                 |

Each group has a guide in docs/. Nothing is imported before it is used; an entry point that cannot be loaded is an error
of the calls that use it, and of no others. The names of mmspec are kept: an entry point of the same name is ignored.
What `mmspec.register` adds comes first, because it refuses such a name unless it is told to replace.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from mmspec.arguments import shown
from mmspec.drafters.recipe_info import REFRESH_VALUES, START_VALUES, Choice, RecipeInfo
from mmspec.environment.importing import resolve
from mmspec.errors import PluginError
from mmspec.heads.info import HeadInfo
from mmspec.methods import table
from mmspec.rules import RULES as CORE_RULES
from mmspec.rules import Rule

T = TypeVar("T")


@dataclass(frozen=True)
class Info:
    """A named component.

    Attributes:
        summary: One line.
        where: Where it is defined, "module:attribute" or "module"; or the object itself.
    """

    summary: str
    where: Any


# What `mmspec.register` added in this process: group -> name -> the object.
REGISTERED: dict[str, dict[str, Info]] = {}


@cache
def installed(group: str) -> dict[str, Info]:
    """The entry points of a group, by name."""
    return {e.name: Info(f"plug-in {e.value}", e.value) for e in entry_points(group=group)}


def registered(group: str) -> dict[str, Info]:
    """What was registered in this process for a group, by name."""
    return REGISTERED.get(group, {})


def plugins(group: str) -> dict[str, Info]:
    """The components of a group that are not of mmspec, by name."""
    return {**installed(group), **registered(group)}


def by_name(own: Mapping[str, T], group: str) -> dict[str, T | Info]:
    """Everything of a group by name: what is registered before what is mmspec's, and that before entry points.

    Args:
        own: The components of mmspec.
        group: The entry-point group.
    """
    return {**installed(group), **own, **registered(group)}


class Components(Mapping[str, T], Generic[T]):
    """Components of mmspec and of plug-ins, by name; a plug-in is imported when its component is looked up.

    Args:
        own: The components of mmspec, which keep their names.
        group: The entry-point group.
        more: Other components, by name.
        kept: Other names of mmspec, which entry points do not take.
    """

    def __init__(
        self,
        own: Mapping[str, T],
        group: str,
        more: Mapping[str, T] | None = None,
        kept: Sequence[str] = (),
    ) -> None:
        self._own, self._group, self._more, self._kept = own, group, more or {}, kept

    def __getitem__(self, name: str) -> T:
        """The component of that name.

        Raises:
            KeyError: If there is none.
            PluginError: If its plug-in cannot be loaded, or names something else.
        """
        found = next((layer[name] for layer in self._layers() if name in layer), None)
        if found is None:
            raise KeyError(name)
        if not isinstance(found, Info):
            return found
        made: T = component(found, self._group)
        return made

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and any(name in layer for layer in self._layers())

    def __iter__(self) -> Iterator[str]:
        return iter({name: None for layer in reversed(self._layers()) for name in layer})

    def __len__(self) -> int:
        return len(set(self))

    def _layers(self) -> tuple[Mapping[str, T | Info], ...]:
        """The components that names are looked up in, one mapping after the other."""
        others = {name: info for name, info in installed(self._group).items() if name not in self._kept}
        return registered(self._group), self._own, others, self._more

    def usable(self) -> dict[str, T]:
        """The components that can be loaded."""
        found = {}
        for name in self:
            try:
                found[name] = self[name]
            except PluginError:
                continue
        return found


# The acceptance rules of mmspec.
RULES: Mapping[str, Rule] = MappingProxyType({**CORE_RULES, **table.RULES})
# The kinds of heads of mmspec. The classes of other EAGLE heads are in `mmspec.heads.checkpoint`.
HEADS: Mapping[str, HeadInfo] = MappingProxyType(
    {
        "eagle": HeadInfo("mmspec.heads.eagle:EagleHead", "", "mmspec.drafters.eagle:build_runner", continues=True),
        **table.HEADS,
    }
)


def rules() -> Components[Rule]:
    """The acceptance rules of mmspec and of plug-ins, by name."""
    return Components(RULES, "mmspec.rules")


def heads() -> Components[HeadInfo]:
    """The kinds of trained drafters of mmspec and of plug-ins, by name."""
    return Components(HEADS, "mmspec.heads")


def starts() -> Components[Choice]:
    """The values of the knob `start` that the core does not have, by name."""
    return Components(table.STARTS, "mmspec.starts", kept=(*START_VALUES, "model", *HEADS))


def refreshes() -> Components[Choice]:
    """The values of the knob `refresh` that the core does not have, by name."""
    return Components(table.REFRESHES, "mmspec.refreshes", kept=(*REFRESH_VALUES, "model", *HEADS))


Expected = tuple[str, Callable[[Any], bool]]


def takes(found: Any, *arguments: Any, **keywords: Any) -> bool:
    """Whether an object can be called with such arguments, as far as its signature says."""
    try:
        inspect.signature(found).bind(*arguments, **keywords)
    except TypeError:  # also of what is no function
        return False
    except ValueError:  # a function without a signature
        return True
    return True


def _makes(rule: Rule) -> bool:
    knobs = {name: knob.default for name, knob in rule.knobs.items()}
    return isinstance(rule.make, str) or takes(rule.make, **rule.arguments(knobs, None, {}))


def _instance(kind: type[Any]) -> Expected:
    return f"a {kind.__module__}.{kind.__name__}", lambda found: isinstance(found, kind)


# By entry-point group: what a component must be, and whether an object is that.
EXPECTED: Mapping[str, Expected] = MappingProxyType(
    {
        "mmspec.models": (
            "a function (device, dtype) that returns a pipeline",
            lambda f: takes(f, device="cpu", dtype=None),
        ),
        "mmspec.adapters": (
            "a module or an object with the functions vocab_size and plan",
            lambda found: all(callable(getattr(found, name, None)) for name in ("vocab_size", "plan")),
        ),
        "mmspec.drafters": ("a function (context) that returns a drafter", lambda found: takes(found, None)),
        "mmspec.recipes": (
            "a mmspec.drafters.recipe_info.RecipeInfo (knobs are set where a recipe is named, as in 'scd:window=32')",
            lambda found: isinstance(found, RecipeInfo),
        ),
        "mmspec.rules": (
            "a mmspec.rules.Rule whose `make` takes its knobs by name",
            lambda found: isinstance(found, Rule) and _makes(found),
        ),
        "mmspec.heads": _instance(HeadInfo),
        "mmspec.starts": _instance(Choice),
        "mmspec.refreshes": _instance(Choice),
        "mmspec.metrics": ("a function (extractor) that returns a metric", lambda found: takes(found, None)),
    }
)


def component(found: str | Info, group: str) -> Any:
    """A component by where it is, imported.

    Args:
        found: "module:attribute" of one of mmspec, an `Info` of another.
        group: The entry-point group.

    Raises:
        PluginError: If it cannot be imported, or is not what its group requires.
    """
    if not isinstance(found, Info):
        return resolve(found)
    made, (must, fits) = resolve(found.where), EXPECTED[group]
    if not fits(made):
        raise PluginError(f"plug-in {found.where!r} ({group}) must be {must}, not {shown(made)}")
    return made
