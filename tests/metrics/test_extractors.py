"""Image extractors, with networks of random weights saved to a folder."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer, Dinov2Config, Dinov2Model
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from mmspec.cli.app import main
from mmspec.errors import ArgumentError, ModelError, UnknownNameError
from mmspec.metrics.extractors.classifier import ClassifierExtractor
from mmspec.metrics.extractors.clip import ClipExtractor
from mmspec.metrics.extractors.dinov2 import Dinov2Extractor
from mmspec.metrics.extractors.extractor import identity
from mmspec.metrics.extractors.image import ImageExtractor, Images, extract, stack_images
from mmspec.metrics.extractors.inception import InceptionExtractor
from mmspec.metrics.extractors.inception_graph import convolutions, read_constants, state_dict
from mmspec.metrics.extractors.registry import load_extractor
from mmspec.vision.shapes.classifier import ShapesClassifier

SIDE = 32  # pixels of the networks' input
SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SIDES = ((64, 0), (64, 16), (32, 0), (32, 0), (96, 40), (64, 0))
RESIZE = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}


def fake_images(count: int, side: int = 64, seed: int = 0) -> Images:
    """Coarse images, since small networks hardly distinguish images of noise."""
    blocks = np.random.default_rng(seed).integers(0, 256, (count, 2, 2, 3), dtype=np.uint8)
    return blocks.repeat(side // 2, 1).repeat(side // 2, 2)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("clip")
    words = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2, "b</w>": 3, "c</w>": 4}
    config = CLIPConfig(
        text_config={**SIZES, "vocab_size": 5, "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 1},
        vision_config={**SIZES, "image_size": SIDE, "patch_size": 8},
        projection_dim=12,
    )
    CLIPModel(config).save_pretrained(folder)
    CLIPImageProcessorPil(**RESIZE).save_pretrained(folder)
    CLIPTokenizer(vocab=words, merges=[]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("dinov2")
    Dinov2Model(Dinov2Config(**SIZES, image_size=SIDE, patch_size=8)).save_pretrained(folder)
    BitImageProcessorPil(**RESIZE).save_pretrained(folder)
    return folder


def shapes(seed: int = 0) -> ClassifierExtractor:
    torch.manual_seed(seed)
    return ClassifierExtractor("shapes", ShapesClassifier(channels=4, hidden=10))


def check_extractor(extractor: ImageExtractor, width: int) -> None:
    """Checks the guarantees of the protocol."""
    images = fake_images(5)
    found = extract(extractor, images, batch=2)
    assert found.shape == (5, width) and found.dtype == np.float64
    apart = np.abs(found[0] - found[1]).max()
    np.testing.assert_allclose(found, extractor(images), rtol=0, atol=1e-2 * apart)  # the batch does not matter
    np.testing.assert_array_equal(found, extract(extractor, images, batch=2))


def test_shapes_features_are_the_last_hidden_layer() -> None:
    extractor = shapes()
    check_extractor(extractor, 10)
    images = fake_images(2)
    scaled = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    logits = extractor.classifier.head(torch.from_numpy(extractor(images)).float())
    torch.testing.assert_close(logits, extractor.classifier(scaled))
    with pytest.raises(ArgumentError, match=r"64x64 pixels, not \[32, 32\]"):
        extractor(fake_images(1, 32))


def test_a_fingerprint_depends_on_the_weights() -> None:
    assert identity(shapes(0)) == identity(shapes(0)) != identity(shapes(1))
    assert identity(shapes(0)).startswith("shapes-")


def test_clip_embeds_images_and_prompts_in_one_space(clip: Path) -> None:
    extractor = ClipExtractor(str(clip))
    check_extractor(extractor, 12)
    model = CLIPModel.from_pretrained(clip).eval()
    images = fake_images(2, SIDE)  # of the input size, so that there is nothing to resize
    means = torch.tensor([0.48145466, 0.4578275, 0.40821073])
    stds = torch.tensor([0.26862954, 0.26130258, 0.27577711])
    values = ((torch.from_numpy(images).float() / 255 - means) / stds).permute(0, 3, 1, 2)
    with torch.no_grad():
        embeds = model.visual_projection(model.vision_model(pixel_values=values).pooler_output)
        ids = torch.tensor([[0, 2, 3, 1]])
        texts = model.text_projection(model.text_model(input_ids=ids).pooler_output)
    np.testing.assert_allclose(extractor(images), embeds.numpy(), atol=1e-5)
    np.testing.assert_allclose(extractor.texts(["a b"]), texts.numpy(), atol=1e-5)


def test_prompts_beyond_the_context_of_clip_are_cut(clip: Path) -> None:
    found = ClipExtractor(str(clip)).texts(["a b " * 50, "a c"], batch=1)
    assert found.shape == (2, 12) and np.isfinite(found).all()


def test_dinov2_returns_its_class_token(dinov2: Path) -> None:
    extractor = Dinov2Extractor(str(dinov2))
    check_extractor(extractor, 16)


def test_images_of_many_sizes(clip: Path, dinov2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that a network resizes one by one have the features that they have alone."""
    images = [fake_images(1, side, seed)[0][: side - cut] for seed, (side, cut) in enumerate(SIDES)]
    for extractor in (ClipExtractor(str(clip)), Dinov2Extractor(str(dinov2))):
        alone = np.concatenate([extractor(image[None]) for image in images])
        np.testing.assert_allclose(extract(extractor, images), alone, atol=1e-5)
    for folder in ("generated", "photographs"):
        (tmp_path / folder).mkdir()
        for i, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / folder / f"{i}.png")
    (tmp_path / "prompts.txt").write_text("a\nb\na b\nb c\nc\na c\n")
    words = ["measure", str(tmp_path / "generated"), "--clip", str(clip), "--prompts", str(tmp_path / "prompts.txt")]
    assert main([*words, "--metrics", "clip,fd@clip,cmmd", "--reference", str(tmp_path / "photographs"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["quality"][0]
    assert found["fd@clip"]["value"] == pytest.approx(0, abs=1e-6) and found["clip"]["n"] == len(SIDES)
    assert main([*words, "--metrics", "clip,fd@shapes", "--reference", str(tmp_path / "photographs")]) == 2
    assert "1.png' is uint8 [48, 64, 3]; all must be of a size that is read, the first is" in capsys.readouterr().err


def test_batches_have_one_size_and_few_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [fake_images(1, side)[0] for side in (8, 8, 8, 4, 4, 8)]
    assert [len(stack) for stack in stack_images(images, 2)] == [2, 1, 2, 1]
    monkeypatch.setenv("MMSPEC_MAX_PIXELS", "64")
    assert [len(stack) for stack in stack_images(images, 8)] == [1, 1, 1, 2, 1]


def test_images_of_different_size_raise() -> None:
    with pytest.raises(ArgumentError, match=r"image 1 is uint8 \[32, 32, 3\].* the first is \[64, 64, 3\]"):
        extract(shapes(), [fake_images(1)[0], fake_images(1, 32)[0]])
    with pytest.raises(ArgumentError, match="image 0 is float64"):
        extract(shapes(), [fake_images(1)[0] / 255])
    with pytest.raises(ArgumentError, match="empty"):
        extract(shapes(), [])


def test_missing_weights_and_packages_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="unknown extractor 'clop'.*did you mean 'clip'"):
        load_extractor("clop", {})
    with pytest.raises(ModelError, match="is no folder with a classifier that save_pretrained wrote"):
        load_extractor("shapes", {"shapes": str(tmp_path)})
    with pytest.raises(ArgumentError, match="'dinov2' needs weights; name a folder or Hub id with --dinov2"):
        load_extractor("dinov2", {})
    with pytest.raises(ModelError, match="'clip': cannot load CLIPModel from"):
        load_extractor("clip", {"clip": str(tmp_path)})
    with pytest.raises(ModelError, match="does not exist; fetch weights-inception"):
        load_extractor("inception", {"inception": str(tmp_path / "none.pth")})
    (tmp_path / "weights.pth").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch_fidelity.feature_extractor_inceptionv3", None)
    with pytest.raises(ModelError, match="pip install torch-fidelity"):
        load_extractor("inception", {"inception": str(tmp_path / "weights.pth")})


def test_a_network_with_tensors_missing_is_refused(dinov2: Path, tmp_path: Path) -> None:
    Dinov2Model.from_pretrained(dinov2).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lost = next(key for key in weights if "query.weight" in key)
    save_file({key: value for key, value in weights.items() if key != lost}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks encoder\.layer\.0\.attention\S+; its network is another one"):
        load_extractor("dinov2", {"dinov2": str(tmp_path)})
    shapes().classifier.save_pretrained(tmp_path / "shapes")
    (path,) = (tmp_path / "shapes").glob("*.safetensors")
    weights = load_file(path)
    lost = sorted(weights)[0]
    save_file({key: value for key, value in weights.items() if key != lost}, path)
    with pytest.raises(ModelError, match=f"'shapes': .* lacks {re.escape(lost)}"):
        load_extractor("shapes", {"shapes": str(tmp_path / "shapes")})


def test_code_of_a_folder_is_never_run_nor_offered(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(clip, tmp_path / "clip")
    (tmp_path / "clip" / "evil.py").write_text("raise SystemExit('ran')\nclass Evil: pass\n")
    for name, key in (("tokenizer_config.json", "AutoTokenizer"), ("preprocessor_config.json", "AutoImageProcessor")):
        path = tmp_path / "clip" / name
        value = ["evil.Evil", None] if key == "AutoTokenizer" else "evil.Evil"
        settings = {k: v for k, v in json.loads(path.read_text()).items() if not k.endswith(("_class", "_type"))}
        path.write_text(json.dumps(settings | {"auto_map": {key: value}, "tokenizer_class": "Evil"}))
    (tmp_path / "clip" / "config.json").write_text(
        json.dumps(json.loads((clip / "config.json").read_text()) | {"auto_map": {"CLIPModel": "evil.Evil"}})
    )
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    with contextlib.suppress(ModelError):
        load_extractor("clip", {"clip": str(tmp_path / "clip")})
    assert "ran" not in capsys.readouterr().err


def test_inception_is_called_as_torch_fidelity_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Network(torch.nn.Module):
        def __init__(self, name: str, features: list[str], feature_extractor_weights_path: str) -> None:
            super().__init__()
            assert (name, features) == ("inception-v3-compat", ["2048", "logits_unbiased"])
            assert feature_extractor_weights_path.endswith("weights.pth")

        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            assert images.dtype == torch.uint8 and images.shape[1:] == (3, 64, 64)
            means = images.float().mean((2, 3))
            return means, -means[:, :2]

    module: Any = ModuleType("torch_fidelity.feature_extractor_inceptionv3")
    module.FeatureExtractorInceptionV3 = Network
    monkeypatch.setitem(sys.modules, "torch_fidelity", ModuleType("torch_fidelity"))
    monkeypatch.setitem(sys.modules, "torch_fidelity.feature_extractor_inceptionv3", module)
    (tmp_path / "weights.pth").write_bytes(b"")
    extractor = InceptionExtractor(str(tmp_path / "weights.pth"))
    images = fake_images(3)
    np.testing.assert_allclose(extractor(images), images.mean((1, 2)), rtol=1e-6)
    np.testing.assert_allclose(extractor.logits(images), -images.mean((1, 2))[:, :2], rtol=1e-6)


def field(number: int, value: bytes | int) -> bytes:
    """A field of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def constant(name: str, values: Any) -> bytes:
    """A node of a frozen graph that holds float32 values."""
    values = np.asarray(values, dtype="<f4")
    shape = b"".join(field(2, field(1, size)) for size in values.shape)
    tensor = field(1, 1) + field(2, shape) + field(4, values.tobytes())
    other = field(5, field(1, b"dtype") + field(2, field(6, 1)))
    value = field(5, field(1, b"value") + field(2, field(8, tensor)))
    return field(1, field(1, name.encode()) + field(2, b"Const") + other + value)


def test_weights_are_parsed_from_a_tensorflow_graph(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {"softmax/weights": rng.normal(size=(4, 3)), "softmax/biases": rng.normal(size=3)}
    for name in convolutions():
        weights[f"{name}/conv2d_params"] = rng.normal(size=(1, 3, 2, 5))
        for part in ("gamma", "beta", "moving_mean", "moving_variance"):
            weights[f"{name}/batchnorm/{part}"] = rng.normal(size=5)
    input_node = field(1, field(1, b"image") + field(2, b"Placeholder"))
    graph = input_node + b"".join(constant(name, values) for name, values in weights.items()) + field(4, field(1, 9))
    path = tmp_path / "graph.pb"
    path.write_bytes(graph)
    found = state_dict(path)
    assert len(convolutions()) == len(set(convolutions().values())) == 94
    assert len(found) == 94 * 5 + 2
    kernel = weights["mixed_10/tower_1/mixed/conv_1/conv2d_params"]
    np.testing.assert_allclose(found["Mixed_7c.branch3x3dbl_3b.conv.weight"], kernel.transpose(3, 2, 0, 1), rtol=1e-6)
    np.testing.assert_allclose(found["Conv2d_3b_1x1.bn.running_var"], weights["conv_3/batchnorm/moving_variance"], 1e-6)
    np.testing.assert_allclose(found["fc.weight"], weights["softmax/weights"].T, rtol=1e-6)
    filled = field(1, field(1, b"x") + field(2, b"Const") + field(5, field(1, b"value") + field(2, field(8, field(1, 1)
        + field(2, field(2, field(1, 3))) + field(5, np.float32(2.5).tobytes())))))  # fmt: skip
    np.testing.assert_array_equal(read_constants(filled)["x"], [2.5, 2.5, 2.5])
    for broken in (graph[:-1000], graph[: len(graph) // 2], b"\xff" * 20, b""):
        path.write_bytes(broken)
        with pytest.raises(ModelError, match="is not the graph of FID's Inception"):
            state_dict(path)
