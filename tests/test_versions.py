"""Which releases of other packages are tested, and what mmspec says about others."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiny_speech
import torch

import mmspec
from mmspec import versions
from mmspec.cli.app import main
from mmspec.versions import TESTED, UntestedVersionWarning, is_tested, warn_untested


@pytest.fixture
def transformers_next(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed transformers that is newer than all tested ones, in a process that has loaded nothing."""
    own = versions.installed
    monkeypatch.setattr(versions, "installed", lambda name: "5.99.1" if name == "transformers" else own(name))
    warn_untested.cache_clear()
    yield
    warn_untested.cache_clear()


@pytest.mark.parametrize(
    ("number", "inside"),
    [
        ("5.22.2", False),
        ("5.23.0", True),
        ("5.23.0.dev0", True),
        ("5.24.7", True),
        ("5.24.0+local", True),
        ("5.25.0", False),
        ("5.100.0", False),
        ("6.0.0rc1", False),
        ("4.57.6", False),
    ],
)
def test_a_version_is_inside_by_its_first_two_numbers(
    number: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TESTED, "transformers", ("5.23", "5.24"))
    assert is_tested("transformers", number) is inside


def generate() -> None:
    ids = torch.tensor([[1, 2, 3]])
    tiny_speech.flat().generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False, custom_generate=mmspec.generate
    )


@pytest.mark.parametrize("first", [lambda: mmspec.load("shapes"), generate], ids=["load", "generate"])
def test_the_first_load_warns_once(first: Callable[[], Any], transformers_next: None) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            first()
    (one,) = (each for each in found if each.category is UntestedVersionWarning)
    lowest, newest = TESTED["transformers"]
    assert str(one.message) == (
        f"transformers 5.99.1 is installed, and mmspec is tested with {lowest} to {newest}; see docs/compatibility.md"
    )
    shown = warnings.formatwarning(one.message, one.category, one.filename, one.lineno)
    assert shown.count("\n") == 1


def test_the_warning_can_be_switched_off(transformers_next: None, recwarn: pytest.WarningsRecorder) -> None:
    warnings.simplefilter("ignore", UntestedVersionWarning)
    mmspec.load("shapes")
    assert not [each for each in recwarn if each.category is UntestedVersionWarning]


@pytest.mark.parametrize("number", [None, "0.42.9"])
def test_what_is_tested_or_missing_needs_no_warning(number: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = {name: newest for name, (_, newest) in TESTED.items()} | {"triton": None, "diffusers": number}
    monkeypatch.setattr(versions, "installed", inside.__getitem__)
    warn_untested.cache_clear()
    warn_untested()  # warnings are errors in tests
    warn_untested.cache_clear()


def test_env_prints_the_tested_range_beside_what_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["env", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {name: tuple(ends) for name, ends in facts["tested"].items()} == TESTED
    assert set(TESTED) <= set(facts)
    assert main(["env"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    lowest, newest = TESTED["transformers"]
    assert lines["transformers"] == f"{facts['transformers']}  (tested: {lowest} to {newest})"
    assert "tested" not in lines["python"]
    monkeypatch.setitem(TESTED, "transformers", ("4.1", "4.2"))
    assert main(["env"]) == 0
    assert f"{facts['transformers']}  (not tested; tested: 4.1 to 4.2)" in capsys.readouterr().out


def test_versions_are_read_without_importing_what_is_read() -> None:
    code = "import sys, mmspec.versions as v; v.warn_untested(); print({*v.TESTED, 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr
