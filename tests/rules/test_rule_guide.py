"""docs/adding-a-rule.md, followed to the letter by a package that is none of ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmspec.testing.exactness import FEATURES

GUIDE = Path(__file__).parents[1] / "docs" / "adding-a-rule.md"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as pip leaves it: the module of the guide, and its entry point."""
    (module,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (section, line) = re.findall(r'\[project.entry-points."(.*?)"\]\n(.*?)\n```', GUIDE.read_text(), re.DOTALL)[0]
    (tmp_path / "judge_rule.py").write_text(module)
    # Drafts are good after which the first symbol is likely: the features of the toy are its next logits.
    weight = torch.zeros(1, FEATURES).index_fill_(1, torch.tensor([0]), 2.0)
    torch.save({"weight": weight, "bias": torch.zeros(1)}, tmp_path / "judge.pt")
    installed = tmp_path / "judge_rule-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: judge-rule\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{section}]\n{line.replace(chr(34), '')}\n")
    return tmp_path


def mmspec(site: Path, *words: str) -> str:
    paths = [str(site), str(GUIDE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "mmspec", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def test_a_strangers_rule_is_listed_checked_and_exact_at_zero(site: Path) -> None:
    rules = {rule["name"]: rule for rule in json.loads(mmspec(site, "ls", "rules", "--json"))["rules"]}
    assert rules["judge"]["knobs"] == ["leniency"] and not rules["judge"]["exact"]
    relaxed, exact = (
        json.loads(mmspec(site, "check", recipe, "--samples", "20000", "--json"))["results"][0]
        for recipe in ("table+judge:leniency=0.9", "table+judge:leniency=0")
    )
    assert relaxed["passed"] and relaxed["tv_bound"] > 0.01 and relaxed["tv"] > relaxed["limit"]
    assert exact["passed"] and exact["tv_bound"] == 0 and exact["tv"] <= exact["limit"]
    assert relaxed["tokens_per_call"] > exact["tokens_per_call"]
