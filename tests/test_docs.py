"""Names and paths in the documentation exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*/*.md")]
# Entry-point groups are dotted names too, and no modules.
GROUPS = {f"mmspec.{group}" for group in ("models", "adapters", "drafters", "recipes", "rules", "metrics")}


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute inside one."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            # Fields of a dataclass without a default are no attributes of the class.
            if not hasattr(found, name) and name not in getattr(found, "__annotations__", {}):
                return False
            found = getattr(found, name, None)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_and_paths_exist(page: Path) -> None:
    text = page.read_text()
    if page.name == "CHANGELOG.md":
        text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)  # the table of old names
    dotted = set(re.findall(r"(?<![\w./-])mmspec(?:\.[A-Za-z_]\w*)+", text)) - GROUPS
    assert not [name for name in sorted(dotted) if not exists(name)]
    folders = "|".join(("mmspec", "vision", "audio", "kernels", "metrics", "tests", "examples", r"\.ci"))
    paths = set(re.findall(rf"(?<![\w./-])(?:{folders})/[\w./-]*\w", text))
    assert not [path for path in sorted(paths) if not (ROOT / path).exists() and "NAME" not in path]
