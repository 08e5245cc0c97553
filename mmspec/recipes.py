"""Recipes: named combinations of a drafter and an acceptance rule, with their knobs.

A recipe has the same text form everywhere: `scd`, `scd:window=32`, `scd:window=32,coupling=gumbel`. The name is a way
of drafting, a rule, or both, as in `table+lantern:window=8,delta=0.2`; a rule alone drafts as `scd` does. This module
does not import torch, so that a command can check a recipe before it loads a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from mmspec.arguments import shown
from mmspec.errors import ArgumentError, did_you_mean, unknown_name
from mmspec.knobs import BY_MODEL, DEEPEST, LARGEST, Value, branches, nodes
from mmspec.registry import heads, refreshes, rules, starts
from mmspec.rules import Rule
from mmspec.ways_to_draft import RecipeInfo, networks, ways_to_draft

DEFAULT = "scd"  # the way of drafting of a recipe that names a rule only


@dataclass(frozen=True)
class Recipe:
    """A recipe with its knobs set, from its text: `Recipe("scd:window=32")`, which `str()` returns.

    Attributes:
        name: A way of drafting, a rule, or "drafting+rule"; when it is made, the whole text may be given here.
        knobs: The value of every knob; those that are not given get their defaults.

    Raises:
        UnknownNameError: If the name is unknown.
        ArgumentError: If the text cannot be parsed, or a knob does not exist or has a value that is not allowed.
    """

    name: str
    knobs: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ArgumentError(f"name={shown(self.name)} is not allowed; it must be a string such as 'scd'")
        if not isinstance(self.knobs, Mapping) or not all(isinstance(knob, str) for knob in self.knobs):
            raise ArgumentError(
                f"knobs={shown(self.knobs)} is not allowed; it must be a mapping such as {{'window': 32}}"
            )
        name, written = _read(self.name)
        for knob in set(written) & set(self.knobs):
            raise ArgumentError(f"recipe={self.name!r} sets {knob!r} twice, as knobs={shown(self.knobs)} does too")
        object.__setattr__(self, "name", name)
        given = {**written, **self.knobs}
        # A rule for vectors also applies to plain decoding, because it sets the noise that tokens are sampled with.
        if not self.info.drafts and self.rule_name != "exact" and not self.rule.continuous:
            raise ArgumentError(f"recipe {self.name!r} is not possible: plain decoding has no drafts to accept")
        known = {**self.info.knobs, **self.rule.knobs}
        if given.keys() & {"start", "refresh"}:
            _load_choices(given)
        for knob in given:
            if knob not in known:
                listed = f"its knobs are {', '.join(known)}" if known else "it has no knobs"
                raise ArgumentError(f"recipe {self.name!r} has no knob {knob!r}{did_you_mean(knob, known)}; {listed}")
        values = {k: knob.read(f"{self.name}:{k}", given.get(k, knob.default)) for k, knob in known.items()}
        object.__setattr__(self, "knobs", MappingProxyType(values))
        if changed := self.changed.keys() - {"window"}:
            self._check_jacobi(changed)

    def _check_jacobi(self, changed: set[str]) -> None:
        """Refuses knobs that no value of `start` and `refresh` reads, and two networks."""
        start, refresh = self.knobs.get("start", "model"), str(self.knobs.get("refresh", "none"))
        known, runners = refreshes().usable(), networks()
        used = known[refresh].uses if refresh in known else {}
        for knob in ("layers", "guidance"):
            if knob in changed and "model" not in (start, refresh) and knob not in used:
                raise ArgumentError(f"recipe '{self}' sets {knob}, which requires start=model or refresh=model")
        for knob in ("refreshed", "weight"):
            if knob in changed and refresh not in runners:
                raise ArgumentError(f"recipe '{self}' sets {knob}, which requires refresh={'|'.join(runners)}")
        for name, choice in known.items():
            for knob in changed & set(choice.knobs) - {*(known[refresh].knobs if refresh in known else ())}:
                raise ArgumentError(f"recipe '{self}' sets {knob}, which requires refresh={name}")
        if refresh != "none" and start in runners:
            raise ArgumentError(
                f"recipe '{self}' sets refresh and start={start}; take one network, to refresh or to start"
            )

    @property
    def changed(self) -> dict[str, Value]:
        """The knobs that do not have their defaults."""
        known = {**self.info.knobs, **self.rule.knobs}
        return {knob: value for knob, value in self.knobs.items() if value != known[knob].default}

    @property
    def parts(self) -> tuple[str, str]:
        """The names of the way of drafting and of the acceptance rule."""
        drafting, plus, rule = self.name.partition("+")
        known = ways_to_draft()
        if plus and drafting in known and rule in rules():
            return drafting, rule
        if self.name in known:
            return self.name, "smoothed" if known[self.name].continuous else "exact"
        if self.name in rules():
            return DEFAULT, self.name
        raise unknown_name("recipe", self.name, [*known, *(name for name in rules() if name != "exact")])

    @property
    def info(self) -> RecipeInfo:
        return ways_to_draft()[self.parts[0]]

    @property
    def rule_name(self) -> str:
        return self.parts[1]

    @property
    def rule(self) -> Rule:
        return rules()[self.rule_name]

    @property
    def exact(self) -> bool:
        """Whether the output follows the target distribution."""
        return self.rule.exact

    @property
    def window(self) -> int:
        """Tokens in one target call, prompt tokens included; the maximum if that is chosen later."""
        if "branch" in self.knobs:
            entries = LARGEST if self.auto_branch else 1 + nodes(branches(str(self.knobs["branch"])))
            return entries * (1 + self.depth) if self.info.prompts else entries
        if "drafts" in self.knobs:
            return 1 + int(self.knobs["drafts"]) * int(self.knobs["length"])
        return LARGEST if self.auto or self.window_by_model else int(self.knobs.get("window", 1))

    @property
    def auto(self) -> bool:
        """Whether the window is chosen while decoding."""
        return self.knobs.get("window") == "auto"

    @property
    def window_by_model(self) -> bool:
        """Whether the window is that of `mmspec.decoding.default_window` for the model."""
        return self.knobs.get("window") == BY_MODEL

    @property
    def auto_branch(self) -> bool:
        """Whether the shape of the tree is chosen while decoding."""
        return self.knobs.get("branch") == "auto"

    @property
    def needs_draft_model(self) -> bool:
        """Whether it drafts with a smaller model, not with the target's first layers, a head or an n-gram table."""
        networks = {self.knobs.get("start", "model"), self.knobs.get("refresh", "none")}
        uses = "layers" in self.knobs and self.info.runner == "model" and "model" in networks
        return self.info.draft_model or (uses and not int(self.knobs["layers"]))

    @property
    def drafts_frames(self) -> bool:
        """Whether it drafts with a frame head, whose windows span several frames."""
        named = {self.info.runner, self.knobs.get("start"), self.knobs.get("refresh")}
        return any(head.frames for name, head in heads().usable().items() if name in named)

    @property
    def needs_table(self) -> bool:
        """Whether it drafts from the model's n-gram table."""
        return self.info.table or self.knobs.get("start") == "table"

    @property
    def depth(self) -> int:
        """The largest number of tokens that it drafts ahead."""
        if self.auto_branch:
            return DEEPEST
        if "branch" in self.knobs:
            return len(branches(str(self.knobs["branch"])))
        if "drafts" in self.knobs:
            return int(self.knobs["length"])
        return int(self.knobs.get("depth", self.window - 1))

    def with_knobs(self, **knobs: Value) -> Recipe:
        """The same recipe with some knobs changed."""
        return replace(self, knobs={**self.changed, **knobs})

    def __str__(self) -> str:
        changed = [f"{knob}={value}" for knob, value in self.changed.items()]
        return f"{self.name}:{','.join(changed)}" if changed else self.name

    def __reduce__(self) -> tuple[type[Recipe], tuple[str, dict[str, Value]]]:
        return type(self), (self.name, dict(self.knobs))

    def __hash__(self) -> int:
        return hash(str(self))


def parse(recipe: str | Recipe) -> Recipe:
    """Parses `"name"` or `"name:knob=value,knob=value"`; returns a `Recipe` unchanged.

    Raises:
        UnknownNameError: If the name is unknown.
        ArgumentError: If the text cannot be parsed, or a knob does not exist or has a value that is not allowed.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str):
        raise ArgumentError(
            f"recipe={shown(recipe)} is not allowed; it must be a string such as 'scd:window=32', or a Recipe"
        )
    return Recipe(recipe)


def _load_choices(given: Mapping[str, Value]) -> None:
    """Imports the values of `start` and `refresh` that are of other packages."""
    for knob, known in (("start", starts()), ("refresh", refreshes())):
        for parts in (known, heads()):
            if (name := given.get(knob)) in parts:
                parts[str(name)]


def _read(text: str) -> tuple[str, dict[str, Value]]:
    """Name and knobs of `"name"` or `"name:knob=value,knob=value"`."""
    name, colon, settings = text.strip().partition(":")
    knobs: dict[str, Value] = {}
    for setting in filter(None, settings.split(",")) if colon else ():
        knob, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not value:
            raise ArgumentError(f"recipe={text!r} is not readable at {setting!r}; write name:knob=value,knob=value")
        if knob in knobs:
            raise ArgumentError(f"recipe={text!r} sets {knob!r} twice")
        rule = value.partition("+")[2].partition(":")[0]
        if rule in rules():
            raise ArgumentError(
                f"recipe={text!r} is not readable at {setting!r}; the knobs follow both names: {name}+{rule}:knob=value"
            )
        knobs[knob] = value
    return name, knobs


def configured_recipe(pipe: Any) -> str:
    """The recipe in the configuration of a pipeline; plain if there is none."""
    config = getattr(pipe, "config", {})
    return str(config.get("recipe", "plain") if isinstance(config, Mapping) else getattr(config, "recipe", "plain"))


def default_recipe(pipe: Any) -> Recipe:
    """The recipe of a pipeline's calls that give none: the configured one."""
    return parse(configured_recipe(pipe))


def recipe_of_call(pipe: Any, recipe: str | Recipe | None) -> Recipe:
    """The recipe that a call of a pipeline gives, or the default one."""
    return default_recipe(pipe) if recipe is None else parse(recipe)
