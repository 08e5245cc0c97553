"""Recipes: named combinations of drafter, acceptance rule and carry, with their knobs.

A recipe is written the same way everywhere: `scd`, `scd:window=32`, `scd:window=32,coupling=gumbel`. The name is a way
of drafting, a rule, or both: `table+lantern:window=8,delta=0.2`; a rule alone goes with `scd`. This module imports
nothing heavy, so that a command line can check a recipe before it loads a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from mmspec.errors import ArgumentError, did_you_mean, unknown_name
from mmspec.knobs import LARGEST, RUNNERS, Branching, Knob, Value, branches, nodes
from mmspec.registry import plugins, resolve, rules
from mmspec.rules import Rule


@dataclass(frozen=True)
class RecipeInfo:
    """A way of drafting.

    Attributes:
        summary: One line.
        builders: What makes the drafter, "module:function", by the kind of token: "tokens", "columns" (one token per
            codebook), "latents" (vectors). The function takes a `mmspec.decoding.resources.DraftingContext`. Without
            any builder there are no drafts: plain decoding.
        knobs: Its settings.
        tree: Whether its drafts branch; the builder then returns a `mmspec.decoding.tree_loop.TreeDrafter`.
        runner: The network that a chain or a tree is sampled from: "model", "eagle" or "medusa".
        table: Whether it drafts from the model's n-gram table.
    """

    summary: str
    builders: Mapping[str, str] = field(default_factory=dict)
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    tree: bool = False
    runner: str = "model"
    table: bool = False

    @property
    def drafts(self) -> bool:
        return bool(self.builders)

    @property
    def continuous(self) -> bool:
        """Whether it is for vectors alone; its rule is `smoothed` unless another is named."""
        return list(self.builders) == ["latents"]

    def supports(self, kind: str) -> bool:
        """Whether it decodes this kind of token."""
        return not self.builders or kind in self.builders


def _window(default: int) -> Knob:
    return Knob(
        default,
        "tokens in one target call, the last accepted one included; auto: whatever is quickest, so that a seed gives "
        "other tokens of the same distribution in another run",
        low=2,
        high=1024,
        choices=("auto",),
    )


def _nodes(default: int) -> Knob:
    return Knob(default, "tokens in one target call, the last accepted one included", low=2, high=1024)


def _branch(default: str) -> Branching:
    return Branching(default, "children of an entry at each depth", high=1023)


_START = Knob(
    "auto",
    "drafts for new positions; auto: the model's table where it has one, else the token above, else the one before; "
    "recycle: a table made while decoding; model, eagle, medusa: what the recipes draft, eagle and medusa draft with",
    choices=("auto", "random", "left", "up", "table", "recycle", *RUNNERS),
)

_GUIDANCE = Knob(1.0, "guidance of the drafts; 1 is none, and half the work", low=0.0, high=1e4)
_MODEL = {
    "layers": Knob(0, "draft with so many of the target's own first layers; 0: with the draft model", low=0, high=1000),
    "guidance": _GUIDANCE,
}

_MODEL_BUILDERS = {
    "tokens": "mmspec.drafters.draft_model:build",
    "columns": "mmspec.drafters.draft_model:build",
    "latents": "mmspec.continuous.draft_model:build",
}
_JACOBI_BUILDERS = {
    "tokens": "mmspec.drafters.jacobi:build",
    "columns": "mmspec.drafters.columns.jacobi:build",
    "latents": "mmspec.continuous.jacobi:build",
}


RECIPES: Mapping[str, RecipeInfo] = MappingProxyType(
    {
        "plain": RecipeInfo("one token per target call; the baseline"),
        "draft": RecipeInfo("a smaller model drafts", _MODEL_BUILDERS, {"window": _window(5), **_MODEL}),
        "layer-skip": RecipeInfo(
            "the target's own first layers draft, on its own cache",
            _MODEL_BUILDERS,
            {
                "window": _window(5),
                "layers": Knob(2, "how many of the target's first layers", low=1, high=1000),
                "guidance": _GUIDANCE,
            },
        ),
        "table": RecipeInfo(
            "an n-gram table drafts from the left and the upper neighbour",
            {"tokens": "mmspec.drafters.jacobi:build_ngram"},
            {"window": _window(9)},
            table=True,
        ),
        "recycle": RecipeInfo(
            "such a table, made from the target's own distributions while decoding, drafts",
            {
                "tokens": "mmspec.drafters.jacobi:build_recycle",
                "columns": "mmspec.drafters.columns.jacobi:build_recycle",
            },
            {"window": _window(9)},
        ),
        "eagle": RecipeInfo(
            "an EAGLE head drafts from the target's own features",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": _window(5)},
            runner="eagle",
        ),
        "medusa": RecipeInfo(
            "Medusa heads draft, each one place further on, from the target's last feature",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": _window(5)},
            runner="medusa",
        ),
        "sjd": RecipeInfo(
            "speculative Jacobi decoding: leftovers of the window are resampled",
            _JACOBI_BUILDERS,
            {"window": _window(16), "start": _START, **_MODEL},
        ),
        "scd": RecipeInfo(
            "speculative coupled decoding: leftovers of the window are coupled to what they were",
            _JACOBI_BUILDERS,
            {
                "window": _window(16),
                "start": _START,
                "coupling": Knob("maximal", "how leftovers follow the new distribution", choices=("maximal", "gumbel")),
                **_MODEL,
            },
        ),
        "few-steps": RecipeInfo(
            "the target drafts with fewer steps of its diffusion head; for tokens that are vectors",
            {"latents": "mmspec.continuous.draft_model:build_few_steps"},
            {"window": _window(5), "steps": Knob(4, "steps of the head when it drafts", low=1, high=1000)},
        ),
        "tree": RecipeInfo(
            "a smaller model drafts a tree; siblings are drawn without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": _branch("3/2/1"), **_MODEL},
            tree=True,
        ),
        "tree-chains": RecipeInfo(
            "a smaller model drafts several times, each draft independent of the others",
            {"tokens": "mmspec.drafters.tree.specinfer:build_independent"},
            {"branch": _branch("4/1/1/1"), **_MODEL},
            tree=True,
        ),
        "spectr": RecipeInfo(
            "such drafts, tested as SpecTr does: all that agree with what was accepted go on",
            {"tokens": "mmspec.drafters.tree.specinfer:build_k_seq"},
            {
                "drafts": Knob(4, "how many", low=1, high=64),
                "length": Knob(4, "tokens of each", low=1, high=64),
                **_MODEL,
            },
            tree=True,
        ),
        "tree-table": RecipeInfo(
            "an n-gram table drafts a tree; its several guesses are siblings",
            {"tokens": "mmspec.drafters.tree.ngram_tree:build"},
            {"branch": _branch("3/2/1")},
            tree=True,
            table=True,
        ),
        "tree-dynamic": RecipeInfo(
            "a smaller model drafts the tree of largest joint probability, of another shape at each call",
            {"tokens": "mmspec.drafters.tree.eagle2:build"},
            {
                "window": _nodes(16),
                "depth": Knob(5, "longest path of drafts", low=1, high=64),
                "top": Knob(4, "children of an entry, and entries with children at each depth", low=1, high=64),
                **_MODEL,
            },
            tree=True,
        ),
        "tree-sampled": RecipeInfo(
            "a smaller model draws the tree node by node, each where it is worth most (DySpec)",
            {"tokens": "mmspec.drafters.tree.dyspec:build"},
            {"window": _nodes(16), "depth": Knob(8, "longest path of drafts", low=1, high=64), **_MODEL},
            tree=True,
        ),
        "tree-eagle": RecipeInfo(
            "an EAGLE head drafts a tree; siblings are drawn without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": _branch("3/2/1")},
            tree=True,
            runner="eagle",
        ),
        "tree-medusa": RecipeInfo(
            "Medusa heads draft a tree; siblings are drawn without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": _branch("3/2/1")},
            tree=True,
            runner="medusa",
        ),
        "eagle-2": RecipeInfo(
            "an EAGLE head drafts the tree of largest joint probability, of another shape at each call",
            {"tokens": "mmspec.drafters.tree.eagle2:build"},
            {
                "window": _nodes(16),
                "depth": Knob(5, "longest path of drafts", low=1, high=64),
                "top": Knob(4, "children of an entry, and entries with children at each depth", low=1, high=64),
            },
            tree=True,
            runner="eagle",
        ),
    }
)


DEFAULT = "scd"


@cache
def ways_to_draft() -> dict[str, RecipeInfo]:
    """The recipes by name: those of mmspec, and those of plug-ins.

    A plug-in's entry point in the group `mmspec.recipes` names a `RecipeInfo`. One in the group `mmspec.drafters` names
    a builder, and is a recipe of that name with the knob `window`.
    """
    drafters = {
        name: RecipeInfo(info.summary, {"tokens": info.where}, {"window": _window(5)})
        for name, info in plugins("mmspec.drafters").items()
    }
    recipes: dict[str, RecipeInfo] = {name: resolve(info.where) for name, info in plugins("mmspec.recipes").items()}
    return {**RECIPES, **drafters, **recipes}


@dataclass(frozen=True)
class Recipe:
    """A recipe with its knobs set; `str()` gives the text that `parse` reads.

    Raises:
        UnknownNameError: For a name nobody knows.
        ArgumentError: For a knob that does not exist or a value out of range.
    """

    name: str
    knobs: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A rule for vectors also says how tokens are drawn: with what noise after the head.
        if not self.info.drafts and self.rule_name != "exact" and not self.rule.continuous:
            raise ArgumentError(f"recipe {self.name!r} is not possible: plain decoding has no drafts to accept")
        known = {**self.info.knobs, **self.rule.knobs}
        for knob in self.knobs:
            if knob not in known:
                listed = f"its knobs are {', '.join(known)}" if known else "it has no knobs"
                raise ArgumentError(f"recipe {self.name!r} has no knob {knob!r}{did_you_mean(knob, known)}; {listed}")
        values = {k: knob.read(f"{self.name}:{k}", self.knobs.get(k, knob.default)) for k, knob in known.items()}
        object.__setattr__(self, "knobs", MappingProxyType(values))
        for knob in ("layers", "guidance"):
            if values.get("start", "model") != "model" and values[knob] != known[knob].default:
                raise ArgumentError(f"recipe '{self}' sets {knob}, which goes with start=model only")

    @property
    def parts(self) -> tuple[str, str]:
        """The names of the way of drafting and of the rule."""
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
        """Whether the outcome follows the target distribution."""
        return self.rule.exact

    @property
    def window(self) -> int:
        """Tokens in one target call; where the window is `auto`, at most so many."""
        if "branch" in self.knobs:
            return 1 + nodes(branches(str(self.knobs["branch"])))
        if "drafts" in self.knobs:
            return 1 + int(self.knobs["drafts"]) * int(self.knobs["length"])
        return LARGEST if self.auto else int(self.knobs.get("window", 1))

    @property
    def auto(self) -> bool:
        """Whether the window is chosen while decoding."""
        return self.knobs.get("window") == "auto"

    @property
    def needs_draft_model(self) -> bool:
        """Whether it drafts with a smaller model: not with the target's first layers, nor with a head or a table."""
        uses = "layers" in self.knobs and self.info.runner == "model" and self.knobs.get("start", "model") == "model"
        return uses and not int(self.knobs["layers"])

    @property
    def needs_table(self) -> bool:
        """Whether it drafts from the model's n-gram table."""
        return self.info.table or self.knobs.get("start") == "table"

    @property
    def depth(self) -> int:
        """Tokens that it drafts ahead, at most."""
        if "branch" in self.knobs:
            return len(branches(str(self.knobs["branch"])))
        if "drafts" in self.knobs:
            return int(self.knobs["length"])
        return int(self.knobs.get("depth", self.window - 1))

    def with_knobs(self, **knobs: Value) -> Recipe:
        """The same recipe with some knobs changed."""
        return Recipe(self.name, {**self.knobs, **knobs})

    def __str__(self) -> str:
        known = {**self.info.knobs, **self.rule.knobs}
        changed = [f"{k}={v}" for k, v in self.knobs.items() if v != known[k].default]
        return f"{self.name}:{','.join(changed)}" if changed else self.name

    def __reduce__(self) -> tuple[type[Recipe], tuple[str, dict[str, Value]]]:
        return Recipe, (self.name, dict(self.knobs))

    def __hash__(self) -> int:
        return hash(str(self))


def parse(recipe: str | Recipe) -> Recipe:
    """Reads `"name"` or `"name:knob=value,knob=value"`; a `Recipe` is returned as it is."""
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str):
        raise ArgumentError(f"recipe={recipe!r} is not allowed; it must be a text such as 'scd:window=32', or a Recipe")
    name, colon, settings = recipe.strip().partition(":")
    knobs: dict[str, Value] = {}
    for setting in filter(None, settings.split(",")) if colon else ():
        knob, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not value:
            raise ArgumentError(f"recipe={recipe!r} is not readable at {setting!r}; write name:knob=value,knob=value")
        if knob in knobs:
            raise ArgumentError(f"recipe={recipe!r} sets {knob!r} twice")
        knobs[knob] = value
    return Recipe(name, knobs)
