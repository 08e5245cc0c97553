"""`examples/peers` at tiny sizes, for the peers that need only transformers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

SMALL = ["--size", "tiny", "--tokens", "6", "--rounds", "1"]


@pytest.fixture
def runner(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(root / "examples/peers"))
    yield import_module("peers")
    for name in ("cases", "peers", "pocket", "repositories", "table", "transformers_models"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "peer",
    [
        *(pytest.param(name, marks=pytest.mark.releases) for name in ("assisted", "bark")), "pocket",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("neutts", "llasa", "musicgen", "csm")),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")  # the peers' own
def test_greedy_tokens_are_equal_and_times_are_written(runner: Any, tmp_path: Path, peer: str) -> None:
    out = tmp_path / "results.json"
    runner.main(["--peer", peer, *SMALL, "--threads", str(torch.get_num_threads()), "--out", str(out)])
    (result,) = json.loads(out.read_text())
    lines = import_module("table").table([result]).splitlines()
    assert len(lines) == 2 + len(result["jobs"]) and lines[3].endswith("| equal |")
    differ = result["greedy"]["differ_from"]
    assert differ["mmspec plain"] is None and not any(differ.values())
    assert {"mmspec plain", runner.AGAIN} < set(result["jobs"])
    for row in result["jobs"].values():
        assert row["steps"] == 6 and min(row["cpu_ms"]) > 0 and min(row["cpu_ratio"]) > 0
    if peer == "assisted":
        assert result["jobs"]["mmspec draft:window=5"]["tokens_per_call"][0] > 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--peer", "llamagen"], "--peer llamagen needs --repository"),
        (["--peer", "bark", "--repository", "x"], "--peer bark takes no --repository"),
        (["--peer", "scd", "--repository", "x"], "--sjd-repository is for --peer scd, which needs it"),
    ],
)
def test_clones_are_asked_for(runner: Any, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    with pytest.raises(SystemExit):
        runner.main(words)
    assert said in capsys.readouterr().err


def test_other_tokens_end_the_script(runner: Any) -> None:
    cases = import_module("cases")
    right, wrong = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 4]])
    case = cases.Case("x", {"a": lambda _: cases.Run(right, 3), "b": lambda _: cases.Run(wrong, 3)})
    assert runner.compare_greedy(case, strict=False) == {"tokens": 3, "differ_from": {"b": 2}}
    with pytest.raises(SystemExit, match="b: greedy tokens differ from those of a from place 2 on"):
        runner.compare_greedy(case, strict=True)
