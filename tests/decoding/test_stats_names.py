"""Target calls have one name, and an alias in files."""

from __future__ import annotations

import json

import torch

from mmspec.decoding.stats import Meter


def test_target_calls_have_one_name() -> None:
    stats = Meter(torch.device("cpu"), 1, target_calls=4).stats(0)
    found = json.loads(json.dumps(stats.to_dict()))
    assert found["target_calls"] == found["nfe"] == stats.target_calls == stats.nfe == 4
    assert "target_calls" in found["rows"][0] and "calls" not in found["rows"][0]
