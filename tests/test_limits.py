"""Limits on small inputs that ask for much, and documents of unknown origin."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from mmspec import limits
from mmspec.cli.app import main
from mmspec.cli.memory import bounded_memory
from mmspec.errors import ArgumentError
from mmspec.files.documents import parse_json, read_json, read_yaml
from mmspec.limits import Limit


def test_a_limit_names_itself_and_how_to_raise_it(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit("MMSPEC_MAX_THINGS", 10, "things")
    limit.check("-n", 10)
    with pytest.raises(ArgumentError, match=r"-n: 11 things exceed the limit of 10; MMSPEC_MAX_THINGS=N raises it"):
        limit.check("-n", 11)
    with pytest.raises(ArgumentError, match=r"-n: more than 1,000,000,000,000,000 things exceed"):
        limit.check("-n", 10**5000)
    monkeypatch.setenv("MMSPEC_MAX_THINGS", "11")
    limit.check("-n", 11)
    for text in ("0", "-1", "x", "", "9" * 19, "\u0663"):
        monkeypatch.setenv("MMSPEC_MAX_THINGS", text)
        with pytest.raises(ArgumentError, match="MMSPEC_MAX_THINGS=.* must be a whole number of at least 1"):
            limit.check("-n", 1)


def test_the_documentation_lists_every_limit(root: Path) -> None:
    rows = re.findall(
        r"^\| `(MMSPEC_MAX_\w+)` \| ([\d,]+) \| (.+) \|$", (root / "docs/cli.md").read_text(), re.MULTILINE
    )
    assert [(name, int(value.replace(",", "")), unit) for name, value, unit in rows] == [
        (limit.variable, limit.default, limit.unit) for limit in limits.LIMITS
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["image", "x", "-n", "100000000"], "outputs: 100,000,000 outputs of one command exceed the limit of 10,000"),
        (["bench", "kernels", "--vocab", "1000000", "--batch", "4096", "--window", "1024"], "logits (rows x slots"),
        (["bench", "kernels", "--threads", str(2**40)], "--threads: 1,099,511,627,776 threads exceed the limit of"),
        (["bench", "image", "--threads", "9999"], "--threads: 9,999 threads exceed"),
        (["bench", "image", "--batch", "8,20000"], "--batch: 20,000 outputs of one command exceed"),
        (["music", "a", "-n", "9" * 20], "outputs: more than"),
        (["eval", "-o", "x", "--seeds", "0..99999"], "--seeds: 100,000 seeds exceed the limit of 10,000"),
        (["eval", "-o", "x", "--recipes", "gsd:window=2..900/900,delta=0.1..0.5/900"], "recipes exceed the limit"),
        (["eval", "-o", "x", "--prompts", "long.txt"], "a line of 'long.txt': 100,001 characters of one text exceed"),
    ],
)  # fmt: skip
def test_commands_refuse_endless_work(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("long.txt").write_text("x" * 100_001)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.endswith("=N raises it\n") and error.count("\n") == 1
    assert os.listdir() == ["long.txt"]


def test_json_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    deepest = limits.DEPTH.value
    path.write_text("[" * deepest + "]" * deepest)
    assert read_json(path, "--config") is not None
    for text, message in [
        ("[" * (deepest + 1) + "]" * (deepest + 1), "nested deeper than the limit of 64 levels"),
        ('{"a":' * 10**6, "nested deeper than the limit"),
        ("[" * 10**6, "nested deeper than the limit"),
        ("9" * 5000, "is not valid JSON: Exceeds the limit"),
        ("{", "is not valid JSON"),
        ("", "is not valid JSON"),
    ]:
        path.write_text(text)
        with pytest.raises(ArgumentError, match=message) as found:
            read_json(path, "--config")
        assert str(found.value).startswith(f"--config: '{path}'")
    with pytest.raises(ArgumentError, match="line 3 is not valid JSON"):
        parse_json(b"\xff\xfe", "line 3")
    monkeypatch.setenv("MMSPEC_MAX_FILE_BYTES", "10")
    path.write_text("[1, 2, 3, 4]")
    with pytest.raises(ArgumentError, match="12 bytes of one JSON or YAML file exceed the limit of 10"):
        read_json(path, "--config")
    with pytest.raises(ArgumentError, match="--config: cannot read '.*': No such file"):
        read_json(tmp_path / "none.json", "--config")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 100_000, "nested deeper than the limit of 64 levels"),
        ("a: &x [1]\nb: *x", r"aliases \(\*x\) are not allowed"),
        ("a: 2020-99-99", "month must be in 1..12"),
        ("a: " + "9" * 5000, "Exceeds the limit"),
        ("a: !!bool x", "cannot read"),
        ("a: !!timestamp x", "cannot read"),
        ("a: !!float x", "cannot read"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("? [a]\n: b", "unhashable key"),
        ("a: \x00", "cannot read"),
        ("a: 'x", "cannot read"),
    ],
)
def test_yaml_is_bounded(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=message) as found:
        read_yaml(path, "--config")
    assert "\n" not in str(found.value)


def test_yaml_that_is_fine_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: [1, 2.5, text]\nb: {c: true}\nd:\n")
    found: Any = read_yaml(path, "--config")
    assert found == {"a": [1, 2.5, "text"], "b": {"c": True}, "d": None}


def test_a_failed_allocation_is_an_error_of_the_arguments() -> None:
    import torch

    for work in (lambda: torch.empty(2**45), lambda: torch.empty(2**62), lambda: bytearray(2**60)):
        with pytest.raises(ArgumentError, match="--batch need more memory than there is"), bounded_memory("--batch"):
            work()
    with pytest.raises(RuntimeError, match="other"), bounded_memory("--batch"):
        raise RuntimeError("other")
