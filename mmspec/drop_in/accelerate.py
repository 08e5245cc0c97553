"""`mmspec.accelerate`: the methods of an object that a script has already, decoded by mmspec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor

from mmspec.arguments import check_flag
from mmspec.decoding.stats import Stats
from mmspec.drop_in.kinds import replaceable
from mmspec.drop_in.replacement import Settings, found_on, total_of
from mmspec.errors import ArgumentError
from mmspec.heads.head import Head
from mmspec.hf.generate import choose_recipe
from mmspec.hf.options import check_options
from mmspec.knobs import Value
from mmspec.recipes import Recipe
from mmspec.registry import heads as head_kinds

T = TypeVar("T")


def accelerate(
    obj: T,
    recipe: str | Recipe | None = None,
    *,
    enabled: bool = True,
    draft_model: object = None,
    heads: Sequence[Head] = (),
    table: Tensor | None = None,
    **knobs: Value,
) -> T:
    """Lets the methods of an object decode with mmspec, with the arguments and results that they have.

    The methods are set on the object itself; classes and modules stay as they are. docs/accelerate.md lists the kinds
    of objects. A call that has no meaning with drafts, such as beam search, runs as without mmspec, and a warning of
    the logger `mmspec` says why. Tokens of greedy search are those of the untouched object. Samples follow the same
    distribution; seeds are drawn from torch's global generator, so that after `torch.manual_seed` the same call gives
    the same samples, which are not those of the untouched object. Accelerating twice replaces the recipe. Copies and
    pickles of the object are accelerated too. `draft_model`, `heads` and `table` are those of `mmspec.generate`.

    Args:
        obj: A model or pipeline that is loaded.
        recipe: How to decode, e.g. `"scd:window=32"`; None is the default of the model and its device.
        enabled: False gives the object back as it was.
        **knobs: Knobs of the recipe, as in `accelerate(model, "scd", window=32)`.

    Returns:
        The same object.

    Raises:
        ArgumentError: If mmspec does not know the kind of object, or an argument has a value that is not allowed.
        UnknownNameError: If there is no recipe or rule of that name.
    """
    check_flag("enabled", enabled)
    check_options(draft_model, table, heads, None, False)
    found = replaceable(obj)
    wanted = choose_recipe(recipe, draft_model)
    if knobs:  # those of a default give way; what the caller's recipe sets may not be set twice
        wanted = wanted.with_knobs(**knobs) if recipe is None else Recipe(str(wanted), knobs)
    refuse_misfits(wanted, draft_model, heads, table)
    # None is the default of each call, which may bring a draft model.
    chosen = None if recipe is None and not knobs else wanted
    for owner, kind in found:
        before = found_on(owner, kind.NAME)
        if before is not None:
            before.remove(owner)
        if enabled:
            kind(owner, Settings(chosen, draft_model, heads, table)).install()
    return obj


@contextmanager
def accelerated(
    obj: T,
    recipe: str | Recipe | None = None,
    *,
    draft_model: object = None,
    heads: Sequence[Head] = (),
    table: Tensor | None = None,
    **knobs: Value,
) -> Iterator[T]:
    """Accelerates an object within a `with` statement, and gives it back as it was before.

    Args:
        obj: A model or pipeline that is loaded.
        recipe: How to decode.
        draft_model: A smaller model.
        heads: Draft heads.
        table: Images for an n-gram table.
        **knobs: Knobs of the recipe.

    Yields:
        The same object.

    Raises:
        ArgumentError: As `accelerate`.
        UnknownNameError: As `accelerate`.
    """
    before = [(owner, kind, found_on(owner, kind.NAME)) for owner, kind in replaceable(obj)]
    accelerate(obj, recipe, enabled=True, draft_model=draft_model, heads=heads, table=table, **knobs)
    try:
        yield obj
    finally:
        for owner, kind, earlier in before:
            within = found_on(owner, kind.NAME)
            if within is not None:
                within.remove(owner)
            if earlier is not None:
                earlier.install()


def last_stats(obj: object) -> Stats | None:
    """The statistics of the last call of an accelerated object.

    Args:
        obj: The object. Those of several stages, such as Bark's, are added.

    Returns:
        None before the first call, and after one that ran without mmspec.

    Raises:
        ArgumentError: If the object is not accelerated.
    """
    parts = replaceable(obj)
    found = [found_on(owner, kind.NAME) for owner, kind in parts]
    if not all(found):
        raise ArgumentError(f"obj is a {type(obj).__name__} that is not accelerated; call mmspec.accelerate(obj)")
    stats = [each.stats for each in found if each is not None and each.stats is not None]
    return total_of(stats) if len(stats) == len({id(owner) for owner, _ in parts}) else None


def refuse_misfits(recipe: Recipe, draft_model: object, heads: Sequence[Head], table: Tensor | None) -> None:
    """Checks that a recipe has what it drafts with, which a call could not give, and nothing else.

    Raises:
        ArgumentError: If something is missing, or would have no effect.
    """
    networks = {recipe.info.runner, recipe.knobs.get("start"), recipe.knobs.get("refresh")}
    for needed, given, name in (
        (recipe.needs_draft_model, draft_model is not None, "draft_model"),
        (recipe.needs_table, table is not None, "table"),
        (bool(networks & {*head_kinds().usable()}), bool(heads), "heads"),
    ):
        if needed and not given:
            raise ArgumentError(f"recipe '{recipe}' drafts with {name}, which is missing; give {name}=")
        if given and not needed:
            raise ArgumentError(f"{name} has no effect: recipe '{recipe}' does not draft with it; leave it out")
