"""Every argument of transformers' `generate` does what it does there, or is refused in one line."""

from __future__ import annotations

import pytest
import transformers
from argument_table import CASES, DOC, OWN, Case, arguments_of_transformers, document, walk

from mmspec.errors import ArgumentError
from mmspec.hf.modes import refuse_settings

pytestmark = pytest.mark.releases


@pytest.fixture(scope="module")
def found() -> list[tuple[str, Case, str, str]]:
    return walk()


def test_no_argument_is_forgotten() -> None:
    missing = arguments_of_transformers() - set(CASES)
    assert not missing, f"add {sorted(missing)} to tests/helpers/argument_table.py"


def test_arguments_work_or_are_refused(found: list[tuple[str, Case, str, str]]) -> None:
    wrong = [(name, case.value, outcome, message) for name, case, outcome, message in found if outcome != case.outcome]
    assert not wrong
    for name, _, outcome, message in found:
        if outcome == OWN:
            assert "\n" not in message and len(message) < 250, name


def test_the_table_is_up_to_date(found: list[tuple[str, Case, str, str]]) -> None:
    assert document(found) == DOC.read_text(encoding="utf-8"), "run: python tests/helpers/argument_table.py"


@pytest.mark.parametrize("kind", ["offloaded", "offloaded_static", "quantized"])
def test_caches_that_mmspec_does_not_have_are_refused(kind: str) -> None:
    # On a CPU transformers refuses some of them before it calls a callable.
    config = transformers.GenerationConfig(cache_implementation=kind)
    with pytest.raises(ArgumentError, match=f"cache_implementation='{kind}' is not supported; mmspec uses a static KV"):
        refuse_settings(config)
