"""`mmspec bench predict` on a tiny pipeline of every adapter: a report, or one line that says why there is none."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from every_pipe import IMAGES, MUSIC, SIZES, SPEECH

from mmspec.errors import ArgumentError
from mmspec.metrics.bench import predict as module
from mmspec.metrics.bench.predict import predict
from mmspec.recipes import parse

TEXTS = dict.fromkeys(("shapes", "scenes", "shapes-latent"), "a red circle") | {
    "scenes": "a solid red circle at the top left on a sandy gray background",
    "yue": "[verse]\none two",
}
MASKED = "a masked model fills places in any order"
CONTINUOUS = "this model has continuous tokens; use scd+smoothed"
REFUSED = {
    "amused": MASKED, "magnet": MASKED, "shapes-latent": CONTINUOUS, "pocket": CONTINUOUS, "vibevoice": CONTINUOUS,
}  # fmt: skip
NO_END = {"spark"}  # what random weights write cannot be decoded with every seed
QUICK = {*IMAGES, "flat", "soprano", "moss-local"} - {"shapes", "scenes", "glm", "liquid"}
EVERY = {**IMAGES, **MUSIC, **SPEECH}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in EVERY if name not in NO_END],
)
def test_a_pipeline_is_predicted_or_refused_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WIDTHS", (4,))
    monkeypatch.setattr(module, "TIMED", 2)
    pipe = EVERY[name](tmp_path)
    if name in IMAGES:
        pipe.set_progress_bar_config(disable=True)
    call: Any = partial(pipe, **SIZES.get(name, {}))
    prompts = [TEXTS.get(name, "one two")] * 2
    if name in REFUSED:
        with pytest.raises(ArgumentError, match=re.escape(REFUSED[name])) as refused:
            predict(call, prompts, [parse("scd")])
        assert "\n" not in str(refused.value)
        return
    report = predict(call, prompts, [parse("scd")])
    assert [row.recipe for row in report.rows] == ["scd:window=4"] and report.plain_seconds > 0
    assert report.samples == 2 and report.rows[0].tokens_per_call.value >= 1
