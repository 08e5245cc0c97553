"""`mmspec export-drafter`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmspec.cli.app import main
from mmspec.heads.checkpoint import load_head
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.methods.medusa.head import MedusaHeads


def test_a_drafter_is_written_for_the_verifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 12}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    Eagle3Head(9, 16, 24, 2).save_pretrained(tmp_path / "drafter")
    arguments = ["export-drafter", str(tmp_path / "drafter"), "--verifier", str(tmp_path / "model")]
    options = ["--verifier-name", "some/model", "--tokens", "3", "-o"]
    assert main([*arguments, *options, str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    described = written["speculators_config"]
    assert described["verifier"] == {"name_or_path": "some/model", "architectures": ["LlamaForCausalLM"]}
    assert described["proposal_methods"][0]["speculative_tokens"] == 3
    assert written["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
    assert isinstance(load_head(tmp_path / "out"), Eagle3Head)
    assert main([*arguments, "-o", str(tmp_path / "out")]) == 2
    assert "already exists" in capsys.readouterr().err
    MedusaHeads(9, 16).save_pretrained(tmp_path / "drafter")
    assert main([*arguments, "-o", str(tmp_path / "other")]) == 2
    assert "is a MedusaHeads, which is not part of the format" in capsys.readouterr().err
    none = str(tmp_path / "none")
    for name, words in (("DRAFTER", [none, *arguments[2:]]), ("--verifier", [arguments[1], "--verifier", none])):
        assert main(["export-drafter", *words, "-o", str(tmp_path / "other")]) == 2
        assert f"{name}: '{none}' is not a folder with a config.json" in capsys.readouterr().err
