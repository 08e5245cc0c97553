"""`mmspec.register`: adds a model, adapter, drafter, recipe, rule or metric to this process by one call."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, get_args

from mmspec.arguments import check_flag, shown
from mmspec.errors import ArgumentError, did_you_mean
from mmspec.registry import EXPECTED, REGISTERED, Info, installed, registered

Kind = Literal["model", "adapter", "drafter", "recipe", "rule", "metric", "head", "start", "refresh"]
_LATEST = dict[tuple[str, str], "Registration"]()
_NAME = re.compile(r"\w[\w.@-]*")


@dataclass(eq=False, repr=False)
class Registration:
    """A registered name; as a context manager it is undone at the end of the block."""

    kind: Kind
    name: str
    _info: Info
    _before: Registration | None
    _stands: bool = True

    def undo(self) -> None:
        """Takes the registration back: the name means what it did before. Does nothing if that has happened."""
        self._stands, known, before = False, REGISTERED[_group(self.kind)], self._before
        if known.get(self.name) is not self._info:
            return  # a later one has replaced it
        while before is not None and not before._stands:
            before = before._before
        del known[self.name]
        if before is not None:
            known[self.name] = before._info

    def __enter__(self) -> Registration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}, registered in this process>"


def register(kind: Kind, name: str, component: Any, *, replace: bool = False) -> Registration:
    """Registers a component under a name, in this process.

    The name then works as one of an installed package does. Other processes, such as the command line and the workers
    of a cluster, do not know it: there, declare an entry point, or call this too. A second call with the same kind and
    name replaces the first, as when a cell of a notebook runs again.

    Args:
        kind: "drafter": a function that builds it from a `mmspec.decoding.resources.DraftingContext`. "rule": a
            `mmspec.rules.Rule`. "metric": a `mmspec.metrics.metric.Metric`. "adapter": a
            `mmspec.hf.adapters.GenerateAdapter` for the class of transformers that `name` names. "model": a function
            (device, dtype) that returns a pipeline. "recipe": a `mmspec.ways_to_draft.RecipeInfo`. "head": a
            `mmspec.heads.info.HeadInfo`. "start" and "refresh": a `mmspec.drafters.recipe_info.Choice`, a value of the
            knob of that name.
        name: The name, such as "lookup".
        component: The object.
        replace: Whether it may take over a name of mmspec or of an installed package.

    Returns:
        A `Registration`, whose `undo()` takes it back.

    Raises:
        ArgumentError: If an argument is not allowed, or the name is taken.
        PluginError: If a metric cannot be computed from anything.
    """
    if kind not in get_args(Kind):
        near = did_you_mean(kind, get_args(Kind)) if isinstance(kind, str) else ""
        raise ArgumentError(f"kind={shown(kind)} is not allowed{near}; it is one of {', '.join(get_args(Kind))}")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ArgumentError(f"name={shown(name)} is not allowed; it is letters, digits and . _ - @, such as 'lookup'")
    if kind == "adapter" and not name.isidentifier():
        raise ArgumentError(f"name={name!r} is not allowed for an adapter; it is a class, such as 'LlamaForCausalLM'")
    check_flag("replace", replace)
    _check_component(kind, name, component)
    _check_name(kind, name, replace)
    known = REGISTERED.setdefault(_group(kind), {})
    before = _LATEST.get((kind, name)) if name in known else None
    found = Registration(kind, name, Info(f"registered {_described(component)}", component), before)
    known[name], _LATEST[kind, name] = found._info, found
    return found


def _group(kind: Kind) -> str:
    return "mmspec.refreshes" if kind == "refresh" else f"mmspec.{kind}s"


def _described(component: Any) -> str:
    """A component in a listing."""
    name = getattr(component, "__qualname__", None) or getattr(component, "__name__", None)
    return str(name or type(component).__qualname__)


def _check_component(kind: Kind, name: str, component: Any) -> None:
    """Checks that an object is what its kind requires."""
    from mmspec.metrics.registry import EXTRACTOR, checked

    if kind == "metric" and not name.endswith(EXTRACTOR):
        checked(name, f"component={shown(component)}", component)
        return
    what, fits = EXPECTED[_group(kind)]
    if not fits(component):
        raise ArgumentError(f"component={shown(component)} is not allowed for kind={kind!r}; it must be {what}")


def _check_name(kind: Kind, name: str, replace: bool) -> None:
    """Checks that a name is free, or only mmspec or a package has it and `replace` is true."""
    from mmspec.registry import rules
    from mmspec.ways_to_draft import ways_to_draft

    drafting: tuple[Kind, ...] = ("drafter", "recipe")
    siblings = drafting if kind in drafting else (kind,)
    for other in siblings:
        if other != kind and name in registered(_group(other)):
            raise ArgumentError(f"name={name!r} is registered as a {other}; undo that first, or choose another name")
    # A recipe is named after a way of drafting, a rule or both.
    if (kind == "rule" and name in ways_to_draft()) or (kind in drafting and name in rules()):
        other = "recipe" if kind == "rule" else "rule"
        raise ArgumentError(f"name={name!r} is not allowed for a {kind}: a {other} has it; choose another name")
    owner = f"mmspec's own {kind}" if name in _own(kind) else ""
    if not owner and any(name in installed(_group(sibling)) for sibling in siblings):
        owner = "an installed package"
    if owner and not replace:
        raise ArgumentError(
            f"name={name!r} is taken by {owner}; choose another name, or pass replace=True to take it over"
        )


def _own(kind: Kind) -> Collection[str]:
    """The names that mmspec itself has."""
    if kind == "model":
        from mmspec.loading import MODELS

        return MODELS
    if kind == "adapter":
        from mmspec.hf.adapters import GENERATE_ADAPTERS

        return GENERATE_ADAPTERS
    if kind == "metric":
        from mmspec.metrics.registry import METRICS

        return METRICS
    from mmspec.registry import HEADS, RULES
    from mmspec.ways_to_draft import RECIPES

    if kind in ("start", "refresh"):
        return RECIPES["scd"].knobs[kind].choices
    return RULES if kind == "rule" else HEADS if kind == "head" else RECIPES
