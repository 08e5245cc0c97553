"""`mmspec ls`: the models, adapters, recipes and their parts, rules and metrics that are installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from mmspec.cli.options import Json
from mmspec.errors import PluginError, unknown_name

T = TypeVar("T")
KINDS = ("models", "adapters", "drafters", "recipes", "rules", "metrics", "heads", "starts", "refreshes")


def ls(
    what: Annotated[str | None, typer.Argument(metavar=f"[{'|'.join(KINDS)}]", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """List what is installed, plug-ins included.

    Exact recipes and rules keep the target distribution. Drafters are listed for plug-ins only; each is a recipe.
    Starts and refreshes are values of the knobs of these names beside those of `mmspec ls recipes`.
    """
    if what is not None and what not in KINDS:
        raise unknown_name("list", what, KINDS)
    listing = {kind: _entries(kind) for kind in KINDS if what in (None, kind)}
    if as_json:
        print(json.dumps(listing))
        return
    for kind, entries in listing.items():
        print(kind if entries else f"{kind}\n  no plug-ins installed")
        width = max((len(entry["name"]) for entry in entries), default=0)
        for entry in entries:
            if "error" in entry:
                print(f"  {entry['name']:<{width}}  {entry['error']}")
                continue
            guarantee = "" if "exact" not in entry else "exact    " if entry["exact"] else "relaxed  "
            knobs = f" [{', '.join(entry['knobs'])}]" if entry.get("knobs") else ""
            print(f"  {entry['name']:<{width}}  {guarantee}{entry['summary']}{knobs}")


def _entries(kind: str) -> list[dict[str, Any]]:
    """Name and summary of each; of recipes and rules also whether they are exact, and their knobs."""
    from mmspec.hf.adapters import adapters
    from mmspec.loading import models
    from mmspec.metrics.registry import metrics
    from mmspec.registry import Info, heads, installed, plugins, refreshes, registered, rules, starts
    from mmspec.ways_to_draft import RECIPES, ways_to_draft

    if kind == "recipes":
        return _described(
            ways_to_draft(), lambda info: {"exact": True, "summary": info.summary, "knobs": list(info.knobs)}
        )
    if kind == "rules":
        return _described(
            rules(), lambda rule: {"exact": rule.exact, "summary": rule.summary, "knobs": list(rule.knobs)}
        )
    if kind == "heads":
        return _described(heads(), lambda head: {"summary": str(head.head)})
    if kind in ("starts", "refreshes"):
        choices = starts() if kind == "starts" else refreshes()
        return _described(choices, lambda choice: {"summary": choice.summary, "knobs": list(choice.knobs)})
    named: Mapping[str, str | Info]
    if kind == "models":
        named = models()
    elif kind == "adapters":
        named = adapters()
    elif kind == "metrics":
        named = metrics()
    else:  # a recipe of the same name hides an entry point
        hidden = {*RECIPES, *installed("mmspec.recipes")} - {*registered("mmspec.drafters")}
        named = {name: info for name, info in plugins("mmspec.drafters").items() if name not in hidden}
    return [{"name": name, "summary": getattr(found, "summary", found)} for name, found in named.items()]


def _described(components: Mapping[str, T], describe: Callable[[T], dict[str, Any]]) -> list[dict[str, Any]]:
    """Name and description of each; name and error of a plug-in that cannot be loaded."""
    entries = []
    for name in components:
        try:
            entries.append({"name": name, **describe(components[name])})
        except PluginError as error:
            entries.append({"name": name, "error": str(error)})
    return entries
