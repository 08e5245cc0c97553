"""Target calls have one name; the old one is readable everywhere."""

from __future__ import annotations

import json

import torch

from mmspec.batching.request import RequestOutput
from mmspec.decoding.stats import Meter
from mmspec.decoding.step import Step


def test_target_calls_have_one_name() -> None:
    meter = Meter(torch.device("cpu"), 1, target_calls=3)
    meter.nfe += 1
    stats = meter.stats(0)
    step, output = Step(4, 1, 2, []), RequestOutput("0", torch.zeros(0), False, None, 4)
    assert stats.target_calls == stats.nfe == step.target_calls == step.nfe == output.target_calls == output.calls == 4
    assert {key: json.loads(json.dumps(stats.to_dict()))[key] for key in ("target_calls", "nfe")} == {
        "target_calls": 4,
        "nfe": 4,
    }
