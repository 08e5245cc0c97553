"""What drafters and acceptance rules of other packages return, checked where the loop takes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import missing, refused, shown
from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.environment.importing import resolve
from mmspec.errors import PluginError
from mmspec.sampling.acceptance import Accept, FeatureRule
from mmspec.sampling.rejection import Draft
from mmspec.sampling.tree import TreeDraft


class CheckedRule:
    """An acceptance function of another package, with a check of what it returns.

    Args:
        name: Of the rule.
        accept: The function.
    """

    def __init__(self, name: str, accept: Any) -> None:
        self._name, self._accept = name, accept

    def __call__(self, p: Tensor, q: Tensor, x: Tensor, *features: Tensor) -> Tensor:
        """The acceptance probabilities; the arguments are those of `Accept` or `FeatureAccept`.

        Raises:
            PluginError: If they are none.
        """
        found = self._accept(p, q, x, *features)
        if not isinstance(found, Tensor) or found.shape != x.shape or not found.is_floating_point():
            must = f"the probability of each draft, float32 {list(x.shape)}"
            raise refused(f"the rule {self._name!r}", must, found)
        return found


def checked_rule(name: str, rule: Any) -> Accept:
    """A rule of another package that says which it is when it returns something else.

    Raises:
        PluginError: If it is no function.
    """
    accept = rule.accept if isinstance(rule, FeatureRule) else rule
    if not callable(accept):
        raise refused(f"the factory of the rule {name!r}", "a function (p, q, x)", accept)
    if hasattr(accept, "kernel_rule"):  # a kernel evaluates it
        return rule
    checked = CheckedRule(name, accept)
    return replace(rule, accept=checked) if isinstance(rule, FeatureRule) else checked


def checked_drafter(builder: Any, context: DraftingContext) -> Any:
    """Builds the drafter of another package.

    Args:
        builder: The builder of the recipe, or "module:function".

    Raises:
        PluginError: If it cannot be loaded, or does not return a drafter.
    """
    make, recipe = resolve(builder), context.recipe
    what = f"the builder '{getattr(builder, '__qualname__', builder)}' of recipe {recipe.name!r}"
    if not callable(make):
        raise PluginError(f"{what} must be a function, not {shown(make)}")
    drafter, kind = make(context), "TreeDrafter" if recipe.info.tree else "Drafter"
    if lacks := missing(drafter, ("propose", "observe", "calls", *(["verify"] if recipe.info.tree else []))):
        raise PluginError(f"{what} must return a {kind}, not {shown(drafter)}, which has no {', '.join(lacks)}")
    if not hasattr(drafter, "ROWS") and hasattr(drafter, "select_rows"):
        raise PluginError(
            f"{what} made a {type(drafter).__name__} with select_rows; name its attributes with a value per row in "
            "ROWS instead, see docs/adding-a-drafter.md"
        )
    return drafter


def check_draft(drafter: Any, method: str, draft: Any, state: BatchState, count: int) -> None:
    """Checks what a drafter has returned.

    Args:
        method: The name of the method that was called.
        draft: What it has returned.
        state: The batch.
        count: The number of drafts of each row.

    Raises:
        PluginError: If it is no `Draft` of so many tokens.
    """
    shape = len(state.ids), count, *state.layout.cell
    if isinstance(draft, Draft) and state.layout.kind == "latents":  # vectors, of a length that the model knows
        return
    if not isinstance(draft, Draft) or not _are_tokens(draft.tokens, shape):
        must = f"a mmspec.sampling.rejection.Draft with tokens, int64 {list(shape)}"
        raise refused(_called(drafter, method), must, getattr(draft, "tokens", draft))
    if not hasattr(draft.q, "shape") or tuple(draft.q.shape[:-1]) != shape:
        must = f"a Draft with q, float32 [{', '.join(map(str, shape))}, vocabulary]"
        raise refused(_called(drafter, method), must, draft.q)


def check_tree(drafter: Any, draft: Any, rows: int) -> None:
    """Checks what the `propose` of a drafter of trees has returned, for a batch of `rows`.

    Raises:
        PluginError: If it is no `TreeDraft` of as many rows.
    """
    tokens = getattr(draft, "tokens", None)
    shape = (rows, *tokens.shape[1:]) if isinstance(tokens, Tensor) else ()
    if not isinstance(draft, TreeDraft) or not _are_tokens(tokens, shape):
        must = f"a mmspec.sampling.tree.TreeDraft with tokens, int64 [{rows}, nodes]"
        raise refused(_called(drafter, "propose"), must, getattr(draft, "tokens", draft))


def _are_tokens(found: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(found, Tensor) and found.dtype == torch.int64 and tuple(found.shape) == shape


def _called(drafter: Any, method: str) -> str:
    return f"`{method}` of the drafter {type(drafter).__name__}"
