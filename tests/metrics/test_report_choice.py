"""The slider: which recipe is the fastest within a loss, in Python and in the browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chromium import Page, in_frame

from mmspec.metrics.comparisons import compare_all, detectable, holm, p_value, widening
from mmspec.metrics.report.choice import choose, scale_of, worst_loss
from mmspec.metrics.report.differences import compared
from mmspec.metrics.report.page import common_metrics, named_rows, page
from mmspec.metrics.report.runs import ReportRun
from mmspec.metrics.report.slider import answers, scales


@pytest.fixture(scope="module")
def run(root: Path) -> ReportRun:
    record = json.loads((root / "examples/quality_vs_speed/relaxed.json").read_text())
    return ReportRun("", record, root / "none")


def interval(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def row(recipe: str, speed: float, difference: float | None, half: float = 0.01, gate: bool | None = None) -> Any:
    return {
        "recipe": recipe,
        "exact": gate is not None,
        "gate": gate,
        "speed": {
            "speedup": None if gate is False else interval(speed, 0.1),
            "tokens_per_call": interval(2 * speed, 0.1),
        },
        "quality": {"attributes": {"difference": None if difference is None else interval(difference, half)}},
    }


def test_the_fastest_recipe_within_a_loss_is_chosen() -> None:
    rows = [
        row("plain", 1, None, gate=True),
        row("scd", 2, -0.03, gate=True),  # by chance: it keeps the distribution
        row("broken", 9, 0.0, gate=False),  # failed its check
        row("mild", 3, -0.005),
        row("strong", 4, -0.04),
    ]
    picks = [choose(rows, "attributes", loss, comparisons=1)["recipe"] for loss in (0, 0.014, 0.0151, 0.049, 0.0501)]  # type: ignore[index]
    assert picks == ["scd", "scd", "mild", "mild", "strong"]
    # Two relaxed recipes: each interval is widened by 2.24 / 1.96, so that mild reaches 0.0164.
    assert widening(2) == pytest.approx(2.2414 / 1.95996, abs=1e-4)
    assert choose(rows, "attributes", 0.016)["recipe"] == "scd"  # type: ignore[index]
    assert choose(rows, "attributes", 0.0165)["recipe"] == "mild"  # type: ignore[index]
    assert worst_loss(rows[3], "attributes") == pytest.approx(0.015)
    scale = scale_of(rows, "attributes")
    assert scale is not None and scale.unit == "points" and scale.top == pytest.approx(5.2, abs=0.3)
    assert scale_of(rows, "none such") is None


def test_lower_is_better_turns_the_sign_around() -> None:
    one = row("x", 2, 0.5, 0.1)
    one["quality"] = {"nll": one["quality"]["attributes"]}
    assert worst_loss(one, "nll") == pytest.approx(0.6)
    one["quality"]["nll"]["difference"] = interval(-0.5, 0.1)
    assert worst_loss(one, "nll") == 0.0


def test_holm_and_power() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # the textbook's example
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert p_value(interval(1.959964, 1.959964)) == pytest.approx(0.05, abs=1e-5)
    assert p_value(interval(0.0, 0.0)) == 1.0 and p_value(interval(1.0, 0.0)) == 0.0
    assert detectable(interval(0, 1.959964)) == pytest.approx(1.95996 + 0.84162, abs=1e-4)
    found = compare_all([interval(1, 0.5), interval(0.52, 0.5), interval(0.1, 0.5)])
    assert [one.significant for one in found] == [True, False, False]  # 0.52 alone is: p = 0.042


def test_no_correction_claims_more_than_one_error_in_twenty_tables() -> None:
    # 400 tables of 20 true nulls: the share with any claim is 5 %; its limit of five standard errors is 10.4 %.
    import numpy as np

    rng = np.random.default_rng(0)
    tables = [[interval(float(v), 1.959964) for v in rng.standard_normal(20)] for _ in range(400)]
    assert np.mean([any(one.significant for one in compare_all(table)) for table in tables]) < 0.104
    assert np.mean([any(p_value(one) < 0.05 for one in table) for table in tables]) > 0.5  # uncorrected


def test_committed_results_give_answers(run: ReportRun) -> None:
    rows = named_rows([run])
    offered = scales(rows, common_metrics([run]))
    found = {(a.scale.metric, a.allowed): a.by_calls["recipe"] for a in answers(rows, offered)}
    assert found["attributes", "1 point"] == "scd" and found["attributes", "0 points"] == "scd"
    assert found["attributes", "5 points"] == "omega"
    seen = compared(rows)
    assert len(seen) == 19 * 8
    assert seen["lantern:delta=0.8", "attributes"].significant and not seen["scd", "attributes"].significant


@pytest.mark.browser
def test_the_slider_of_the_page_agrees(tab: Page, run: ReportRun, tmp_path: Path) -> None:
    rows = named_rows([run])
    asked = [
        (scale.metric, loss * scale.factor, axis, together)
        for scale in scales(rows, common_metrics([run]))
        for loss in scale.fixed[1:]
        for axis in ("tokens_per_call", "speedup")
        for together in (True, False)
    ]
    script = """
    (() => {
      const frameWindow = frame.contentWindow, fire = (id, kind) =>
        page.querySelector(id).dispatchEvent(new frameWindow.Event(kind, {bubbles: true}));
      return ASKED.map(([metric, loss, axis, together]) => {
        page.querySelector('#metric').value = metric; fire('#metric', 'change');
        page.querySelector('#together').checked = together;
        page.querySelector('#by-' + axis).checked = true; fire('#by-' + axis, 'change');
        page.querySelector('#loss-number').value = loss; fire('#loss-number', 'input');
        return page.querySelector('#chosen').textContent;
      }).join(' ');
    })()""".replace("ASKED", json.dumps(asked))
    text, console = in_frame(tab, page([run]), tmp_path, 1280, script)
    assert not console
    wanted = []
    for metric, loss, axis, together in asked:
        factor = next(scale.factor for scale in scales(rows, [metric]))
        found = choose(rows, metric, loss / factor, axis, None if together else 1)
        assert found is not None
        wanted.append(found["recipe"])
    assert text.split(" ") == wanted and len(set(wanted)) > 3


@pytest.mark.browser
def test_tables_sort_and_links_mark_a_recipe(tab: Page, run: ReportRun, tmp_path: Path) -> None:
    script = """
    (() => {
      const table = page.querySelector('#recipes-part table');
      const first = () => table.tBodies[0].rows[0].cells[0].textContent;
      const button = table.tHead.rows[0].cells[3].querySelector('button');
      const seen = [first()];
      button.click(); seen.push(first(), button.parentElement.getAttribute('aria-sort'));
      button.click(); seen.push(first(), button.parentElement.getAttribute('aria-sort'));
      const link = [...table.querySelectorAll('a')].find((a) => a.textContent === 'beta:beta=0.05');
      seen.push(link.getAttribute('href'));
      page.querySelector('g[data-recipe="beta:beta=0.05"]').dispatchEvent(new frame.contentWindow.Event('click'));
      return seen.join(' ');
    })()"""
    text, console = in_frame(tab, page([run]), tmp_path, 1280, script)
    assert text == "plain plain ascending lantern:delta=0.8 descending #recipe=beta:beta=0.05" and not console
