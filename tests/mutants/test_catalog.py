"""Every mutant still applies; `python tests/mutants/run.py` runs the tests against each of them."""

from __future__ import annotations

import ast

import pytest
from mutant_catalog import ROOT, Mutant, catalog

MUTANTS = list(catalog())


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_mutant_applies(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    changed = mutant.apply(source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    for test in mutant.tests:
        assert (ROOT / "tests" / test.partition(" -k ")[0]).is_file(), test


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 100 and sum(bool(mutant.lives) for mutant in MUTANTS) < 12
