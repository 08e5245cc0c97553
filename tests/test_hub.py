"""Downloads from the Hub, against a fake one on the loopback interface."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import published
import pytest
import tiny_models as tiny
import tiny_processors
import torch
from fake_hub import FakeHub

import mmspec
from mmspec import hub
from mmspec.cli.app import main
from mmspec.errors import ArgumentError, MMSpecError, ModelError
from mmspec.hf.folder import ASKED_IN_TEXT, read_processor
from mmspec.hub.files import needed_files

JSON = b'{"architectures": ["LlamaForCausalLM"]}'
Serve = Callable[..., FakeHub]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Serve]:
    """Starts a fake Hub, and points the client at it and at an empty cache."""
    started: list[FakeHub] = []

    def start(repositories: Mapping[str, Mapping[str, bytes]], tokens: Mapping[str, str] | None = None) -> FakeHub:
        server = FakeHub(repositories, tokens)
        started.append(server.__enter__())
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        return server

    yield start
    for server in started:
        server.__exit__()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def janus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("janus")
    tiny.janus().save_pretrained(folder)
    tiny_processors.janus().save_pretrained(folder)
    return files_of(folder)


def test_a_model_is_loaded_with_the_files_that_are_needed(
    serve: Serve, janus: dict[str, bytes], tmp_path: Path
) -> None:
    extra = {name: b"-" for name in ("pytorch_model.bin", "model.onnx", "optimizer.pt", "runs/events.out.1", "a.png")}
    server = serve({"owner/janus": {**janus, **extra}}, {"owner/janus": "hf_secret"})
    with pytest.raises(ModelError, match=r"its download failed: .*pass token=, or run `hf auth login`"):
        mmspec.load("owner/janus")
    pipe = mmspec.load("owner/janus", revision="v1", cache_dir=tmp_path / "mine", token="hf_secret", dtype="bf16")
    assert pipe("a cat", seed=0, output_type="latent").tokens.shape[0] == 1 and pipe.model.dtype == torch.bfloat16
    assert (tmp_path / "mine" / "models--owner--janus").is_dir() and not (
        tmp_path / "cache" / "models--owner--janus"
    ).exists()
    names = [file.split("/", 2)[2] for file in server.downloads]
    assert names[0] == "config.json" and not set(names) & set(extra)
    assert set(names) == set(janus) and {file.split("@")[1].split("/")[0] for file in server.downloads} <= {
        "v1",
        "a" * 40,
    }
    # Offline, the cached files are found.
    before = len(server.tokens_seen)
    constants.HF_HUB_OFFLINE = True
    try:
        with hub.hub_access(hub.HubAccess(tmp_path / "mine")):
            folder = hub.fetch("owner/janus", "v1")
    finally:
        constants.HF_HUB_OFFLINE = False
    assert folder is not None and (folder / "model.safetensors").is_file() and len(server.tokens_seen) == before


REFUSED: list[tuple[str, dict[str, bytes], type[MMSpecError], str]] = [
    ("BAAI/Emu3-Chat", {}, ModelError, "use 'BAAI/Emu3-Chat-hf'"),
    ("microsoft/VibeVoice-1.5B", {}, ModelError, "use 'vibevoice/VibeVoice-1.5B-hf'"),
    ("nari-labs/Dia-1.6B", {}, ModelError, "use 'nari-labs/Dia-1.6B-0626'"),
    ("deepseek-ai/JanusFlow-1.3B", {}, ModelError, "it draws images by rectified flow; use 'deepseek-ai/Janus-Pro-1B'"),
    ("FoundationVision/Infinity", {}, ModelError, "has no pipeline: the decoder of its images is a package of its"),
    ("FoundationVision/Infinity/infinity_2b_reg.pth", {}, ModelError, "mmspec.vision.infinity generates latents"),
    (
        "someone/vits",
        {"config.json": b'{"architectures": ["VitsModel"]}', "model.safetensors": b"-"},
        ArgumentError,
        "is a VitsModel, for which mmspec has no adapter",
    ),
    (
        "jadechoghari/mar",
        {name: b"-" for name in ("kl16.safetensors", "mar-base.safetensors", "mar-huge.safetensors", "README.md")},
        ModelError,
        "holds several checkpoints: kl16.safetensors, mar-base.safetensors, mar-huge.safetensors; name one of them, "
        "such as 'jadechoghari/mar/mar-base.safetensors', and the image tokenizer with tokenizer=",
    ),
    (
        "FoundationVision/LlamaGen",
        {name: b"-" for name in ("vq_ds16_c2i.pt", "c2i_B_256.pt", "c2i_L_256.pt")},
        ModelError,
        "such as 'FoundationVision/LlamaGen/c2i_B_256.pt'",
    ),
    (
        "someone/notes",
        {"README.md": b"-"},
        ModelError,
        "holds no model that mmspec reads: no config.json with its class",
    ),
]


@pytest.mark.parametrize(("name", "files", "error", "message"), REFUSED)
def test_other_layouts_are_answered_before_the_download(
    serve: Serve, name: str, files: dict[str, bytes], error: type[MMSpecError], message: str
) -> None:
    server = serve({name: files})
    with pytest.raises(error, match=re.escape(message)):
        mmspec.load(name)
    assert {file.split("/")[-1] for file in server.downloads} <= {"config.json"}


def test_without_a_connection_what_is_cached_is_used(
    serve: Serve, janus: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve({"owner/janus": janus})
    fetched = hub.fetch("owner/janus")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)  # nothing listens there any more
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    assert hub.fetch("owner/janus") == fetched
    for name in ("owner/other", "owner/other/model.pt"):
        with pytest.raises(ModelError, match=f"model '{name}' is not a local path, and its download failed: ") as found:
            hub.fetch(name)
        assert "\n" not in str(found.value)
    assert main(["image", "a", "-m", "owner/other"]) == 2
    assert "failed: the Hub cannot be reached (" in capsys.readouterr().err


def test_one_file_of_a_repository_is_fetched(serve: Serve) -> None:
    server = serve({"jadechoghari/mar": {"mar-base.safetensors": b"mar", "kl16.safetensors": b"kl"}})
    path = hub.fetch("jadechoghari/mar/mar-base.safetensors")
    assert path is not None and path.read_bytes() == b"mar" and len(server.downloads) == 1


def test_of_glm_image_two_folders_are_fetched(serve: Serve) -> None:
    needed = ["model_index.json", "processor/tokenizer.json", "vision_language_encoder/config.json"]
    needed += [f"vision_language_encoder/model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    others = ["transformer/model.safetensors", "vae/config.json", "README.md"]
    files = {name: name.encode() for name in (*needed, *others)}
    files["model_index.json"] = json.dumps({"_class_name": "GlmImagePipeline"}).encode()
    server = serve({"zai-org/GLM-Image": files})
    assert hub.fetch("zai-org/GLM-Image") is not None
    assert sorted(file.split("/", 2)[2] for file in server.downloads) == sorted(needed)


@pytest.mark.parametrize(
    ("files", "needed"),
    [
        # As listed by facebook/musicgen-small: the same weights four times.
        (
            ["config.json", "model.safetensors", "pytorch_model.bin", "state_dict.bin", "compression_state_dict.bin",
             "tokenizer.json", "preprocessor_config.json"],
            ["config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"],
        ),
        (
            ["config.json", "pytorch_model.bin", "text_2.pt", "fine.pt", "speaker_embeddings/en_speaker_0.npy"],
            ["config.json", "pytorch_model.bin", "speaker_embeddings/en_speaker_0.npy"],
        ),
        (
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
             "pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin", "model.fp16.safetensors", "t.h5"],
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"],
        ),
        (
            ["llm.pt", "flow.pt", "hift.pt", "campplus.onnx", "cosyvoice2.yaml", "CosyVoice-BlankEN/model.safetensors"],
            ["llm.pt", "cosyvoice2.yaml", "CosyVoice-BlankEN/model.safetensors"],
        ),
        (
            ["t3_cfg.safetensors", "t3_cfg.pt", "conds.pt", "s3gen.pt", "ve.safetensors", "tokenizer.json"],
            ["t3_cfg.safetensors", "conds.pt", "tokenizer.json"],
        ),
        (
            ["config.json", "model.safetensors", "checkpoint-500/model.safetensors", "optimizer.bin", "rng_state_0.pth",
             "voices/alba.safetensors"],
            ["config.json", "model.safetensors", "voices/alba.safetensors"],
        ),
        (["heads.safetensors", "speculators_config.json"], ["heads.safetensors", "speculators_config.json"]),
    ],
)  # fmt: skip
def test_one_format_of_the_weights_is_enough(files: list[str], needed: list[str]) -> None:
    assert needed_files(files, None) == needed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"torch_dtype": "auto"}, "mmspec.load has no argument 'torch_dtype'; use dtype="),
        (
            {"device_map": "auto"},
            "no argument 'device_map'; use device=, or load the model with transformers and pass it",
        ),
        (
            {"attn_implementation": "sdpa"},
            "no argument 'attn_implementation'; load the model with transformers and pass it",
        ),
        ({"recipe": "scd"}, "no argument 'recipe'; pass it to the call: pipe(prompt, recipe=...)"),
        (
            {"proccessor": None},
            "no argument 'proccessor' (did you mean 'processor'?); its arguments are model, processor,",
        ),
        ({"revison": "v1"}, "no argument 'revison' (did you mean 'revision'?)"),
        ({"dtype": "bfloat"}, "dtype='bfloat' is not allowed (did you mean 'bfloat16'?); it is one of auto, float32,"),
        ({"dtype": "int8"}, "dtype='int8' is not allowed"),
        ({"dtype": "auto"}, "dtype='auto' was given, but 'shapes' is not a model of transformers; name a dtype"),
        ({"revision": "v1"}, "revision='v1' was given, but 'shapes' is not a Hub id; leave it out"),
    ],
)
def test_arguments_of_load(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        mmspec.load("shapes", **given)


def test_the_endpoint_is_that_of_the_environment(tmp_path: Path) -> None:
    program = "import mmspec.hub; print(mmspec.hub.fetch('owner/drafter'))"
    with FakeHub({"owner/drafter": {"heads.safetensors": b"-", "big.gguf": b"-"}}) as server:
        settings = {"HF_ENDPOINT": server.url, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        out = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | settings, capture_output=True, text=True, check=True
        )
    assert os.listdir(out.stdout.strip()) == ["heads.safetensors"] and str(tmp_path) in out.stdout


FETCHED = [
    (
        {
            "models/7b/consolidated.pth",
            "models/7b/params.json",
            "tokenizer/text_tokenizer.json",
            "tokenizer/vqgan.ckpt",
        },
        {"README.md", "assets/demo.png"},
    ),
    (
        {"config.json", "emu3.tiktoken", "emu3_vision_tokens.txt", "model-00001-of-00002.safetensors"},
        {"modeling_emu3.py", "tokenization_emu3.py"},
    ),
    ({"config.json", "tokenizer.json", "processor_config.json", "pytorch_model-00001-of-00002.bin"}, {"teaser.png"}),
    ({"config.json", "model.pt"}, {"guardrail/video_content_safety_filter/safety_filter.pt", "output.mp4"}),
    (
        {"config.json", "model.safetensors", "tokenizer_spm_32k_3.model", "voices.tgz"},
        {"tokenizer-e351c8d8-checkpoint125.safetensors", "dist.tgz"},
    ),
]


def test_a_cosmos_is_fetched_whatever_class_it_names(serve: Serve) -> None:
    model = (Path(__file__).parent / "golden" / "cosmos_base" / "model.pt").read_bytes()
    files = {"config.json": b'{"architectures": ["SomeCosmos"]}', "model.pt": model}
    serve({"nvidia/Cosmos-Predict1-4B": files, "nvidia/Cosmos-Predict1-7B-Text2World": files})
    pipe = mmspec.load("nvidia/Cosmos-Predict1-4B", config={"video_latent_shape": [3, 2, 4]})
    assert pipe.transformer.shape == (3, 2, 4)
    with pytest.raises(ArgumentError, match="is a SomeCosmos, for which mmspec has no adapter"):
        mmspec.load("nvidia/Cosmos-Predict1-7B-Text2World")


@pytest.mark.parametrize(("needed", "other"), FETCHED)
def test_what_is_fetched_of_original_layouts(needed: set[str], other: set[str]) -> None:
    found = set(needed_files(sorted(needed | other), None))
    assert needed <= found and not {name for name in found & other if not name.endswith(".md")}


@pytest.mark.parametrize("file", ["chat_template.json", "tokenizer_config.json"])
def test_a_tokenizer_from_the_hub_has_its_template(file: str, serve: Serve, tmp_path: Path) -> None:
    """Of models whose processor needs torchvision, whose template may have a file that tokenizers do not read."""
    published.llama_tokenizer({"<|im_start|>": 300}, r"\s+").save_pretrained(tmp_path)
    path = tmp_path / file
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, "chat_template": "<|im_start|>{{ messages[0]['content'] }}"}))
    serve({"qwen/omni": files_of(tmp_path)})
    for _ in range(2):
        processor = read_processor("qwen/omni", ASKED_IN_TEXT[0])
        assert processor.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False) == "<|im_start|>a"
    with pytest.raises(ArgumentError, match="processor='qwen/other' cannot be loaded"):
        read_processor("qwen/other", ASKED_IN_TEXT[0])
