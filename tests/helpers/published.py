"""The files in tests/published, and tiny models and tokenizers of the same layout."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.processors import TemplateProcessing

FOLDER = Path(__file__).parent.parent / "published"
# Texts at which prompts have gone wrong: marks, tags, other scripts, white space, special tokens as text.
HARD_TEXTS = (
    "Hello from here.",
    "  leading and   inner\tblanks\n",
    "Dr. Smith paid $3.50 at 7:05 — \u201creally\u201d?",
    "na\u00efve caf\u00e9, \u00dcber, e\u0301",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u516c\u56ed\u5427\uff01",
    "\U0001f600 emoji \u200d\u2642",
    "[laughter] (sighs) <b>bold</b> [S1] [1]",
    "a",
    "1234567890",
)


def read(model: str, file: str) -> dict[str, Any]:
    """A JSON file of a model."""
    found: dict[str, Any] = json.loads((FOLDER / model / f"{file}.json").read_text(encoding="utf-8"))
    return found


def model_class(config: Mapping[str, Any]) -> Any:
    """The class that a config names."""
    return getattr(transformers, config["architectures"][0])


def on_meta(model: str) -> Any:
    """A model of the published size, without weights."""
    config = read(model, "config")
    kind = model_class(config)
    with torch.device("meta"):
        return kind(kind.config_class.from_dict(config))


def shapes_of(model: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's tensors, by name."""
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def inventory(shapes: Mapping[str, tuple[int, ...]], dtype: str, between: str) -> str:
    """The SHA-256 of the names, dtypes and shapes of a file, as public audits of checkpoints compute it.

    Args:
        shapes: Shapes by name.
        dtype: Of all tensors, as safetensors names it.
        between: What stands between two sizes.
    """
    rows = [f"{name}|{dtype}|{between.join(map(str, shape))}" for name, shape in sorted(shapes.items())]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def file_size(shapes: Mapping[str, tuple[int, ...]], dtype: str, metadata: Mapping[str, str] | None) -> int:
    """The bytes of a safetensors file: its header has the names, so that other names have another size."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, shape in sorted(shapes.items()):
        begin, end = end, end + {"BF16": 2, "F32": 4}[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = len(json.dumps(header, separators=(",", ":")))
    return 8 + text + -text % 8 + end


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A config with changes, which may be nested."""
    out = dict(config)
    for name, value in changes.items():
        out[name] = merged(out[name], value) if isinstance(value, Mapping) and name in out else value
    return out


def save(folder: Path, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None, seed: int = 0) -> Any:
    """Saves a model with random weights and the given configs, and returns it.

    The files of the configs are as given, not as transformers would write them.
    """
    kind = model_class(config)
    torch.manual_seed(seed)
    model = kind(kind.config_class.from_dict(dict(config))).eval()
    model.save_pretrained(folder)
    for file, content in (("config", config), ("generation_config", generation_config)):
        if content is not None:
            (folder / f"{file}.json").write_text(json.dumps(content), encoding="utf-8")
    return model


def llama_tokenizer(special: Mapping[str, int], split: str, single: list[str] | None = None, **names: str) -> Any:
    """A tokenizer like Llama 3's with bytes for words.

    Args:
        special: Special tokens and their ids.
        split: The regular expression of the pre-tokenizer.
        single: The template of the post-processor, such as `["<s>", "$A"]`; None is none.
        **names: Names of special tokens, as in transformers.
    """
    letters = sorted(ByteLevel.alphabet())
    made = Tokenizer(BPE({letter: i for i, letter in enumerate(letters)} | dict(special), []))
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    made.pre_tokenizer = Sequence([Split(Regex(split), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    if single is not None:
        used = [(token, special[token]) for token in single if token in special]
        made.post_processor = TemplateProcessing(single=" ".join(single), special_tokens=used)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)
