"""Suites of `mmspec eval`: their files, prompts in the published formats, dry runs, and one from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fake_pipe import Pipe, evaluated_pipe
from image_pipelines import llamagen

import mmspec
from mmspec.cli.app import main
from mmspec.errors import ArgumentError, UnknownNameError
from mmspec.metrics.evaluation.scores import read_scores
from mmspec.metrics.evaluation.suites.classes import check_has_classes
from mmspec.metrics.evaluation.suites.prediction import BANDWIDTH, OVERHEAD, predict
from mmspec.metrics.evaluation.suites.prompts import suite_prompts
from mmspec.metrics.evaluation.suites.suite import ModelSize, all_settings, find_suite, settings_of, suite_names
from mmspec.metrics.registry import find_metric

NAMES = ["coco", "dpg", "drawbench", "geneval", "imagenet50k", "libritts", "partiprompts", "seed-tts"]


def test_every_suite_names_its_sources_and_known_metrics() -> None:
    assert suite_names() == NAMES
    for name in NAMES:
        suite = find_suite(name)
        assert suite.sources and suite.where and suite.samples_per_prompt >= 1
        for one in [*suite.metrics, *suite.optional]:
            assert find_metric(one).kind in (None, suite.kind), (name, one)
    with pytest.raises(UnknownNameError, match="partiprompts"):
        find_suite("partiprompt")


def test_settings_are_found_by_the_model_s_name() -> None:
    named = {
        "Alpha-VLLM/Lumina-mGPT-7B-768": "lumina-mgpt", "deepseek-community/Janus-Pro-7B": "janus-pro",
        "/models/t2i_XL_stage2_512.pt": "llamagen", "Emu3-community/Emu3-Gen-hf": "emu3",
        "leloy/Anole-7b-v0.1-hf": "anole", "FunAudioLLM/CosyVoice2-0.5B": "cosyvoice", "HKUSTAudio/Llasa-1B": "llasa",
        "facebook/musicgen-medium": "musicgen",
    }  # fmt: skip
    for model, file in named.items():
        assert settings_of(model) is all_settings()[file]
    assert settings_of("shapes") is None and set(named.values()) == set(all_settings())
    for paper in all_settings().values():
        assert paper.sources and set(paper.settings) <= {"temperature", "top_k", "top_p", "guidance_scale"}


def test_prompts_are_read_in_the_published_formats(tmp_path: Path) -> None:
    def written(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    tsv = written("p.tsv", 'Prompt\tCategory\n"a ""red""  cat"\tAnimals\na dog\tAnimals\na dog\tAgain\n')
    assert suite_prompts(find_suite("partiprompts"), tsv) == ['a "red" cat', "a dog"]
    csv = written("d.csv", "Prompts,Category\na cat,x\n")
    assert suite_prompts(find_suite("drawbench"), csv) == ["a cat"]
    lines = written(
        "g.jsonl", '{"prompt": "a photo of a cat", "tag": "single_object"}\n\n{"prompt": "a photo of a cow"}\n'
    )
    assert suite_prompts(find_suite("geneval"), lines, 1) == ["a photo of a cat"]
    captions = [{"image_id": 2, "caption": "two"}, {"image_id": 1, "caption": "one\n"}, {"image_id": 2, "caption": "x"}]
    coco = written("c.json", json.dumps({"annotations": captions}))
    assert suite_prompts(find_suite("coco"), coco) == ["one", "two"]
    written("dpg/b.txt", "second\nline")
    written("dpg/a.txt", "first")
    assert suite_prompts(find_suite("dpg"), str(tmp_path / "dpg")) == ["first", "second line"]
    lst = written("meta.lst", "x|spoken|prompt-wavs/x.wav|to be said\n")
    assert suite_prompts(find_suite("seed-tts"), lst) == ["to be said"]
    written("libri/1/2/1_2_3.normalized.txt", "Some words.")
    assert suite_prompts(find_suite("libritts"), str(tmp_path / "libri")) == ["Some words."]
    classes = suite_prompts(find_suite("imagenet50k"), None)
    assert len(classes) == 1000 and classes[:2] == ["0", "1"]
    plain = written("any.txt", "# comment\na cat\n")
    assert suite_prompts(find_suite("geneval"), plain) == ["a cat"]
    for name, source, message in [
        ("partiprompts", None, "which mmspec does not hold: PartiPrompts.tsv"),
        ("partiprompts", csv, "has no column 'Prompt'"),
        ("geneval", tsv, "not valid JSON"),
        ("coco", written("e.json", "[]"), "holds no captions"),
        ("seed-tts", written("bad.lst", "a|b\n"), "has 2 fields"),
        ("dpg", tsv, "must be a folder"),
        ("dpg", str(tmp_path / "libri"), "holds no prompt"),
        ("partiprompts", "hub:x", "must be hub:OWNER/NAME/FILE"),
        ("partiprompts", str(tmp_path / "none.tsv"), "cannot read"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            suite_prompts(find_suite(name), source)


def test_predictions_are_what_the_formula_says() -> None:
    size = ModelSize(parameters=1e9, layers=10, kv_heads=4, head_dim=64, rows=2, tokens=100, unit="image")
    found = predict(size, 7, 2, ["plain", "scd"], 4, reference=True, processes=2)
    assert (found.samples, found.pipeline_calls, found.target_calls) == (42, 12, 1200)
    cache = 2 * 10 * 4 * 64 * 2 * 100 * 2 * 4
    assert found.memory == 2e9 + cache
    assert found.hours == pytest.approx(1200 * ((2e9 + cache / 2) / BANDWIDTH + OVERHEAD) / 3600 / 2)
    assert predict(None, 7, 2, ["plain"], 4, reference=False, processes=1).hours is None


def test_a_dry_run_says_what_it_predicts_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    prompts = tmp_path / "p.tsv"
    prompts.write_text("Prompt\na cat\na dog\n")
    words = ["eval", "--suite", "partiprompts", "-m", "Alpha-VLLM/Lumina-mGPT-7B-768", "--recipes", "scd,gsd"]
    assert main([*words, "--prompts", str(prompts), "-o", str(tmp_path / "out"), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "PREDICTED, nothing was run or loaded:\nsamples      6" in text
    assert "settings of Lumina-mGPT 7B at 768 x 768" in text and "temperature 1, top_k 2000, guidance_scale 3" in text
    assert "on each of 8 device(s)" in text and "2 of 1,632, samples of each: 1" in text and "SJD-PAC 4.62" in text
    assert not (tmp_path / "out").exists()
    assert main([*words, "-o", str(tmp_path / "out"), "--dry-run"]) == 2
    assert "which mmspec does not hold" in capsys.readouterr().err


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    return evaluated_pipe(monkeypatch)


def test_a_suite_from_end_to_end(pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, out = tmp_path / "p.csv", tmp_path / "out"
    prompts.write_text("Prompts,Category\na red circle,x\na blue star,x\n")
    words = [
        "eval", "--suite", "drawbench", "--prompts", str(prompts), "--recipes", "scd,lantern:delta=0.9", "--batch", "4",
    ]  # fmt: skip
    words += ["--metrics", "attributes,nll,diversity@shapes", "-o", str(out)]
    assert main(words) == 0
    record = json.loads((out / "results.json").read_text())
    assert record["config"]["suite"] == "drawbench" and record["config"]["seeds"] == [0, 1, 2, 3]
    assert record["config"]["prompts"] == ["a red circle", "a blue star"]
    spread = {row["recipe"]: row["quality"]["diversity@shapes"] for row in record["rows"]}
    assert spread["plain"]["value"] == spread["scd"]["value"] > 0
    scores = read_scores(out)
    assert scores is not None and set(scores.scores) == {"attributes", "nll"}
    for row in record["rows"]:
        values = scores.scores["nll"][row["recipe"]]
        assert len(values) == 8 and np.mean(values) == pytest.approx(row["quality"]["nll"]["value"])
    text = (out / "report.html").read_text()
    assert "Which prompts lose" in text and "The worst pairs" in text
    count = len(pipe.calls)
    assert main(words) == 0 and len(pipe.calls) == count  # resumed: nothing was missing


def test_distances_of_a_suite_need_real_samples(pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "any.txt"
    prompts.write_text("a red circle\na blue star\na red star\na blue cross\n")
    words = [
        "eval", "--suite", "coco", "--prompts", str(prompts), "--metrics", "fd@shapes", "-o", str(tmp_path / "out"),
    ]  # fmt: skip
    assert main(words) == 2
    assert "fd@shapes of MS-COCO 2017" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_suite_of_classes_needs_a_model_with_classes() -> None:
    check_has_classes(llamagen())
    for of_texts in (Pipe(), mmspec.load("shapes")):  # the latter is a LlamaGen, whose calls have class_labels
        with pytest.raises(ArgumentError, match="class-conditional"):
            check_has_classes(of_texts)
