"""GenEval's rules against the original's verdicts; preference scores and DNSMOS against their definitions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tiny_hpsv3
import tiny_image_reward
import tiny_utmos
import torch
from safetensors.torch import save_file
from transformers import (
    BertTokenizer,
    BlipConfig,
    BlipForQuestionAnswering,
    BlipImageProcessor,
    Mask2FormerConfig,
    Mask2FormerForUniversalSegmentation,
    Mask2FormerImageProcessor,
    SwinConfig,
)
from transformers.models.mask2former import modeling_mask2former

from mmspec.cli.eval import resolve
from mmspec.errors import ArgumentError, ModelError, PromptError, UnknownNameError
from mmspec.metrics.audio.packaged import DISTILLMOS, DNSMOS, PackagedScore
from mmspec.metrics.audio.utmos import UTMOS as UTMOS_METRIC
from mmspec.metrics.evaluation.evaluate import check
from mmspec.metrics.extractors.audio import Waveform
from mmspec.metrics.extractors.detector import Detection, ObjectDetector
from mmspec.metrics.extractors.image import Images
from mmspec.metrics.extractors.preference import hpsv2, pickscore
from mmspec.metrics.extractors.questions import VisualQuestions
from mmspec.metrics.extractors.registry import load_extractor
from mmspec.metrics.extractors.utmos import UTMOS
from mmspec.metrics.image.diversity import Diversity
from mmspec.metrics.image.dpg import DPG, Judge, read_questions
from mmspec.metrics.image.geneval import GENEVAL, TASKS, ClipColors, crop_of, parse, shows, task_metric
from mmspec.metrics.image.preference import HPSV2, PICKSCORE
from mmspec.metrics.image.reward import HPSV3, IMAGE_REWARD
from mmspec.metrics.metric import SampleBatch
from mmspec.metrics.registry import find_metric


def test_geneval_agrees_with_the_original(root: Path) -> None:
    cases = json.loads((root / "tests/golden/geneval/verdicts.json").read_text())
    assert len(cases) >= 50 and {case["task"] for case in cases} == set(TASKS)
    empty = np.zeros((0, 0), dtype=bool)
    for case in cases:
        detections = [Detection(name, score, tuple(box), empty) for name, score, box, _ in case["objects"]]
        colors = {tuple(box): color for _, _, box, color in case["objects"]}

        def color_of(image: Images, objects: Any, name: str, colors: Any = colors) -> list[str]:
            return [colors[one.box] for one in objects]

        task = parse(case["prompt"])
        assert task.name == case["task"]
        assert shows(task, np.zeros((1, 1, 3), np.uint8), detections, color_of) is case["right"], case["prompt"]


def test_geneval_refuses_other_prompts() -> None:
    for prompt in ("a cat", "a photo of cats", "a photo of a red car and a dog", "a photo of five clocks"):
        with pytest.raises(PromptError, match="not one of GenEval's"):
            parse(prompt)
    assert parse("a photo of an orange").wanted[0].name == "orange"
    assert parse("a photo of an orange orange").wanted[0].color == "orange"
    with pytest.raises(UnknownNameError, match="counting"):
        task_metric("count")
    with pytest.raises(ArgumentError, match="--detector and --clip"):
        GENEVAL.load_extractor({"detector": "x"}, "cpu")


def test_geneval_averages_tasks() -> None:
    rows = [np.array([0.0, 1.0])] * 3 + [np.array([2.0, 0.0]), np.array([2.0, 1.0])] * 3
    assert GENEVAL.measure(rows, None).value == pytest.approx(0.75)
    assert task_metric("counting").measure(rows, None).value == pytest.approx(0.5)


def test_a_detector_of_transformers_finds_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss, which is never computed here, is what asks for scipy.
    monkeypatch.setattr(modeling_mask2former, "requires_backends", lambda *_: None)
    torch.manual_seed(0)
    backbone = SwinConfig(
        image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = Mask2FormerConfig(
        backbone_config=backbone, hidden_dim=32, mask_feature_size=32, feature_size=32, encoder_layers=1,
        decoder_layers=2, num_attention_heads=2, dim_feedforward=32, encoder_feedforward_dim=32, num_queries=5,
        id2label={0: "cat", 1: "Motorbike"},
    )  # fmt: skip
    Mask2FormerForUniversalSegmentation(config).save_pretrained(tmp_path)
    Mask2FormerImageProcessor(size={"height": 64, "width": 64}).save_pretrained(tmp_path)
    detector = ObjectDetector(str(tmp_path))
    images = np.random.default_rng(0).integers(0, 256, (2, 48, 40, 3), dtype=np.uint8)
    found = detector.detect(images, 0.0)
    assert len(found) == 2 and found[0] and detector.fingerprint
    for one in found[0]:
        assert one.name in ("cat", "motorbike") and one.mask.shape == (48, 40)
        left, top, right, bottom = map(int, one.box)
        assert one.mask[top:bottom, left:right].sum() == one.mask.sum() and 0 <= one.score <= 1
    scores = [one.score for one in found[0]]
    assert scores == sorted(scores, reverse=True)
    # The package's own post-processing, whose scores are the same product.
    with torch.no_grad():
        pixels = detector.processor(images=list(images[:1]), input_data_format="channels_last", return_tensors="pt")
        output = detector.model(pixel_values=pixels.pixel_values)
    theirs = detector.processor.post_process_instance_segmentation(output, threshold=0.0, target_sizes=[(48, 40)])[0]
    assert {round(segment["score"], 3) for segment in theirs["segments_info"]} & {round(s, 3) for s in scores}


def test_crops_are_gray_outside_of_the_mask() -> None:
    image = np.full((4, 6, 3), 7, dtype=np.uint8)
    mask = np.zeros((4, 6), dtype=bool)
    mask[1:3, 2:5] = True
    mask[1, 2] = False
    crop = crop_of(image, Detection("cat", 1.0, (2.0, 1.0, 5.0, 3.0), mask))
    assert crop.shape == (2, 3, 3) and crop[0, 0].tolist() == [153] * 3 and crop[1, 2].tolist() == [7] * 3


CLIP = "examples/quality_vs_speed/clip"


def test_preference_scores_are_those_of_the_model(root: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    prompts = ["a red circle", "a blue square above a green star"]
    batch = SampleBatch([Path("a"), Path("b")], prompts, images=images)
    extractor = pickscore(str(root / CLIP), "cpu")
    with torch.no_grad():
        tokens = extractor.tokenizer(prompts, padding=True, return_tensors="pt")
        pixels = extractor.processor(images=list(images), input_data_format="channels_last", return_tensors="pt")
        output = extractor.model(**tokens, pixel_values=pixels.pixel_values)
    own = output.logits_per_image.diag().numpy()
    assert PICKSCORE.scores(batch, extractor) == pytest.approx(own, rel=1e-5)
    cosines = (output.image_embeds * output.text_embeds).sum(1).numpy()
    assert HPSV2.scores(batch, hpsv2(str(root / CLIP), "cpu")) == pytest.approx(100 * cosines, rel=1e-4)
    assert extractor.name == "pickscore"


def test_image_reward_is_that_of_its_package(root: Path, tmp_path: Path) -> None:
    """A file of the published names; images of three sizes, prompts of one word and of too many."""
    golden = json.loads((root / "tests/golden/image_reward.json").read_text())
    tensors = {name: tiny_image_reward.values(name, torch.Size(shape)) for name, shape in golden["shapes"].items()}
    ids = [name for name in tensors if name.endswith("position_ids")]
    torch.save({name: value for name, value in tensors.items() if name not in ids}, tmp_path / "ImageReward.pt")
    tiny_image_reward.write_vocabulary(tmp_path)
    extractor = IMAGE_REWARD.load_extractor({"imagereward": str(tmp_path)}, "cpu")
    found = [
        IMAGE_REWARD.scores(SampleBatch([Path("a")], [prompt], images=image[None]), extractor)[0]
        for prompt, image in zip(tiny_image_reward.PROMPTS, tiny_image_reward.images(), strict=True)
    ]
    assert found == pytest.approx(golden["scores"], rel=1e-4)
    both = SampleBatch([Path("a"), Path("b")], tiny_image_reward.PROMPTS[:2], images=np.zeros((2, 9, 9, 3), np.uint8))
    assert len(IMAGE_REWARD.extract(both, extractor)) == 2 and len(extractor.fingerprint) == 12
    del tensors["mlp.layers.0.weight"]
    torch.save(tensors, tmp_path / "ImageReward.pt")
    with pytest.raises(ModelError, match="ImageReward"):
        IMAGE_REWARD.load_extractor({"imagereward": str(tmp_path)}, "cpu")
    with pytest.raises(ModelError, match=r"has no ImageReward.pt; name a folder with it and vocab.txt"):
        IMAGE_REWARD.load_extractor({"imagereward": str(tmp_path / "none")}, "cpu")
    with pytest.raises(ArgumentError, match="name a folder or Hub id with --imagereward"):
        IMAGE_REWARD.load_extractor({}, "cpu")


def test_hpsv3_is_that_of_its_package(root: Path, tmp_path: Path) -> None:
    """A file of the published names; images that grow and shrink, a prompt with braces and one that spells a token."""
    golden = json.loads((root / "tests/golden/hpsv3.json").read_text())
    tensors = {name: tiny_hpsv3.values(name, torch.Size(shape)) for name, shape in golden["shapes"].items()}
    save_file(tensors, tmp_path / "HPSv3.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(dict(tiny_hpsv3.CONFIG)))
    tiny_hpsv3.write_tokenizer(tmp_path)
    tiny_hpsv3.write_collator(tmp_path)
    extractor = HPSV3.load_extractor({"hpsv3": str(tmp_path)}, "cpu")
    found = [
        HPSV3.scores(SampleBatch([Path("a")], [prompt], images=image[None]), extractor)[0]
        for prompt, image in zip(tiny_hpsv3.PROMPTS, tiny_hpsv3.images(), strict=True)
    ]
    assert found == pytest.approx(golden["scores"], abs=1e-5) and len(extractor.fingerprint) == 12
    small, spelled = np.zeros((2, 9, 9, 3), np.uint8), ["a <|Reward|>", "a <|image_pad|>"]
    both = HPSV3.extract(SampleBatch([Path("a"), Path("b")], spelled, images=small), extractor)
    assert len(both) == 2 and both[0] != both[1]
    places = ("{text_prompt} {text_prompt.real}", "{text_prompt} {text_prompt[0]}", "{text_prompt:999999999999}", "{0}")
    contents = [f'INSTRUCTION = "{text}"\nprompt_with_special_token = "<|Reward|>"' for text in places]
    for content in ('INSTRUCTION = "{text_prompt}"\nprompt_with_special_token = f()\n', *contents, "-" * 100000 + "1"):
        (tmp_path / "data_collator_qwen.py").write_text(content)
        with pytest.raises(ModelError, match="has no INSTRUCTION and prompt_with_special_token of HPSv3"):
            HPSV3.load_extractor({"hpsv3": str(tmp_path)}, "cpu")
    with pytest.raises(ModelError, match=r"has no HPSv3.safetensors; name a folder with"):
        HPSV3.load_extractor({"hpsv3": str(tmp_path / "none")}, "cpu")
    tiny_hpsv3.write_collator(tmp_path)
    del tensors["rm_head.5.bias"]
    save_file(tensors, tmp_path / "HPSv3.safetensors")
    with pytest.raises(ModelError, match=r"is not an HPSv3: 5.bias is missing"):
        HPSV3.load_extractor({"hpsv3": str(tmp_path)}, "cpu")


def test_dpg_is_scored_as_by_its_own_code(root: Path, tmp_path: Path) -> None:
    golden = json.loads((root / "tests/golden/dpg.json").read_text())
    (tmp_path / "dpg.csv").write_text(golden["csv"], encoding="utf-8")
    known = read_questions(tmp_path / "dpg.csv")

    class Answers:
        def answer(self, image: Any, questions: list[str]) -> list[str]:
            return [golden["answers"][question] for question in questions]

    judge: Any = Judge(Answers(), known, "vqa", "")  # type: ignore[arg-type]
    prompts = list(golden["scores"])
    batch = SampleBatch(
        [Path(prompt) for prompt in prompts], prompts, images=np.zeros((len(prompts), 2, 2, 3), np.uint8)
    )
    own = [100 * score for score in golden["scores"].values()]
    assert DPG.scores(batch, judge) == pytest.approx(own) and len(set(own)) > 4
    with pytest.raises(PromptError, match="'a cat' is not one of DPG-Bench's"):
        DPG.scores(SampleBatch([Path("a")], ["a cat"], images=np.zeros((1, 2, 2, 3), np.uint8)), judge)
    with pytest.raises(ArgumentError, match="name them with --vqa and --dpg"):
        DPG.load_extractor({"vqa": "x"}, "cpu")
    # Before anything is loaded: the network does not exist.
    given = {"model": "shapes", "metrics": "dpg", "recipes": "scd", "seeds": "0", "vqa": "none",
                 "dpg": str(tmp_path / "dpg.csv")}  # fmt: skip
    assert check(resolve(given | {"prompts": [f" {prompts[0]}\n", *prompts[1:]]})) == [DPG]
    with pytest.raises(PromptError, match="'a cat' is not one of DPG-Bench's"):
        check(resolve(given | {"prompts": [prompts[0], "a cat"]}))
    columns = "text,proposition_id,dependency,question_natural_language"
    for content in ("a,b\n1,2\n3,4\n", f"{columns}\na,1,0,is it\na\n", f"{columns}\na,1,0,is it\na,2\n"):
        (tmp_path / "other.csv").write_text(content)
        with pytest.raises(ArgumentError, match="is not a readable dpg_bench.csv"):
            read_questions(tmp_path / "other.csv")


def test_utmos_is_that_of_its_package(root: Path, tmp_path: Path) -> None:
    """The original names, with all listeners, in a file of training; then SpeechMOS's names, with the one listener."""
    golden = json.loads((root / "tests/golden/utmos.json").read_text())
    tensors = {name: tiny_utmos.values(name, torch.Size(shape)) for name, shape in golden["shapes"].items()}
    (tmp_path / "original").mkdir()
    torch.save({"state_dict": tensors, "epoch": 3}, tmp_path / "original" / "step=7459.ckpt")
    batch = SampleBatch([Path(name) for name in "abc"], audio=[Waveform(w, 16_000) for w in tiny_utmos.waves()])
    extractor = UTMOS_METRIC.load_extractor({"utmos": str(tmp_path / "original")}, "cpu")
    assert UTMOS_METRIC.scores(batch, extractor) == pytest.approx(golden["scores"], rel=1e-5)
    assert find_metric("utmos") is UTMOS_METRIC and len(extractor.fingerprint) == 12
    short = [Waveform(np.full(length, 0.1), 16_000) for length in (7, 35)]  # a frame takes 30 samples
    assert len(set(extractor.scores(short))) == 1

    shorter = {}
    for name, value in tensors.items():
        for old, new in (
            ("feature_extractors.0.ssl_model.", "wav2vec2."),
            ("output_layers.0.decoder_rnn", "blstm"),
            ("output_layers.1.net.0", "projection.0"),
            ("output_layers.1.net.3", "projection.2"),
        ):
            name = name.replace(old, new)
        shorter[name] = value
    shorter["domain_emb"] = shorter.pop("feature_extractors.1.embedding.weight")[:1]
    shorter["judge_emb"] = shorter.pop("output_layers.0.judge_embedding.weight")[288:289]
    torch.save(shorter, tmp_path / "utmos22_strong_step7459_v1.pt")
    assert UTMOS(str(tmp_path / "utmos22_strong_step7459_v1.pt")).scores(batch.audio) == pytest.approx(golden["scores"])
    for name in ("domain_emb", "judge_emb"):  # of none, and of other widths
        for wrong in (shorter[name][:0], shorter[name][:, 1:], shorter[name][0]):
            torch.save(shorter | {name: wrong}, tmp_path / "utmos22_strong_step7459_v1.pt")
            with pytest.raises(ModelError, match="embeddings"):
                UTMOS(str(tmp_path / "utmos22_strong_step7459_v1.pt"))
    del shorter["blstm.bias_hh_l0"]
    torch.save(shorter, tmp_path / "utmos22_strong_step7459_v1.pt")
    with pytest.raises(ModelError, match="missing: blstm.bias_hh_l0"):
        UTMOS(str(tmp_path / "utmos22_strong_step7459_v1.pt"))
    with pytest.raises(ModelError, match="it holds 0 .pt and .ckpt files"):
        UTMOS(str(tmp_path / "none"))


def test_questions_are_answered_by_blip(tmp_path: Path) -> None:
    """A tiny network of the class: its answers are those of its own generate, one question at a time."""
    tiny_image_reward.write_vocabulary(tmp_path)
    text = {"vocab_size": 14, "hidden_size": 16, "encoder_hidden_size": 16, "intermediate_size": 16,
            "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16, "bos_token_id": 2,
            "sep_token_id": 3, "eos_token_id": 3, "pad_token_id": 0}  # fmt: skip
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 32, "patch_size": 16}  # fmt: skip
    torch.manual_seed(0)
    model = BlipForQuestionAnswering(BlipConfig(text_config=text, vision_config=vision)).eval()
    model.save_pretrained(tmp_path)
    BertTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    BlipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    network = VisualQuestions(str(tmp_path))
    image, asked = tiny_image_reward.images()[0], ["a red dog", "the moon on a cat"]
    both = network.answer(image, asked)
    assert both == [network.answer(image, [question])[0] for question in asked] and len(network.fingerprint) == 12


def test_colors_are_named_by_clip(root: Path) -> None:
    judge = ClipColors(hpsv2(str(root / CLIP), "cpu"))
    image = np.zeros((64, 64, 3), dtype=np.uint8)
    one = Detection("circle", 1.0, (0.0, 0.0, 64.0, 64.0), np.ones((64, 64), dtype=bool))
    (color,) = judge(image, [one], "circle")
    assert color in ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")


def test_diversity_is_the_mean_distance_within_prompts() -> None:
    metric = Diversity("shapes")
    rows = [
        np.array([mark, *point], dtype=np.float64)
        for mark, point in [(1, (0, 0)), (2, (5, 5)), (1, (3, 4)), (2, (5, 6))]
    ]
    assert metric.measure(rows, None).value == pytest.approx((5 + 1) / 2)
    with pytest.raises(ArgumentError, match="two prompts with two seeds"):
        metric.measure([np.array([float(i), 0.0]) for i in range(4)], None)


class Package(ModuleType):
    """Packages that hold their weights, in miniature; they keep what they are called with."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.dnsmos = self
        self.seen: list[Any] = []

    def run(self, wave: Any, sr: int) -> dict[str, float]:
        self.seen.append((wave.shape, wave.dtype, sr, float(np.abs(wave).max())))
        return {"ovrl_mos": 3.0, "sig_mos": 4.0}

    def ConvTransformerSQAModel(self) -> torch.nn.Module:
        print("weights loaded")
        package = self

        class Network(torch.nn.Module):
            def forward(self, waves: torch.Tensor) -> torch.Tensor:
                package.run(waves[0].numpy(), 16000)
                return torch.tensor([3.0])

        return Network()


@pytest.mark.parametrize(("metric", "package"), [(DNSMOS, "speechmos"), (DISTILLMOS, "distillmos")])
def test_scores_of_packages_read_waveforms_at_16_khz(
    metric: PackagedScore, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = Package(package)
    monkeypatch.setitem(sys.modules, package, module)
    batch = SampleBatch([Path("a.wav")], audio=[Waveform(1.5 * np.ones(8000), 8000)])
    assert metric.scores(batch, metric.load_extractor({}, "cpu")) == pytest.approx([3.0])
    shape, dtype, rate, peak = module.seen[-1]
    assert dtype == np.float32 and rate == 16000 and peak <= 1 and abs(shape[0] - 16000) <= 1
    assert not capsys.readouterr().out
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ArgumentError, match=rf"metric '{metric.name}' needs .*pip install '\.\[{metric.name}\]'"):
        metric.load_extractor({}, "cpu")


def test_voices_of_a_package_are_prepared_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class VoiceEncoder(torch.nn.Linear):
        def __init__(self, device: str, verbose: bool) -> None:
            super().__init__(1, 1)

        def embed_utterance(self, wave: Any) -> Any:
            return np.array([len(wave), np.abs(wave).max()], dtype=np.float32)

    module = ModuleType("resemblyzer")
    module.VoiceEncoder, module.preprocess_wav = VoiceEncoder, lambda wave: wave[:100]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "resemblyzer", module)
    audio = [Waveform(np.full(8000, level), 8000) for level in (1.5, 0.0)]
    found = load_extractor("resemblyzer", {})(audio)
    assert found.dtype == np.float64 and found[0].tolist() == [100, 1] and found[1, 0] == pytest.approx(16000, abs=1)
    monkeypatch.setitem(sys.modules, "resemblyzer", None)
    with pytest.raises(ArgumentError, match=r"extractor 'resemblyzer' needs .*pip install '\.\[resemblyzer\]'"):
        load_extractor("resemblyzer", {})
