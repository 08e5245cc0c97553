"""Records codes of the original HeartMuLa with tiny random weights.

Needs github.com/HeartMuLa/heartlib (Apache License 2.0) and torchtune 0.4.0 on the path:
PYTHONPATH=heartlib/src:tests/helpers python tools/golden/record_heartmula.py FOLDER
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import tiny_heartmula as tiny
import torch
from golden import GOLDEN

FILE = GOLDEN / "heartmula.json"
PROMPTS = [
    {"tags": "<tag>piano,happy</tag>", "lyrics": "sun moon la."},
    {"tags": "night", "lyrics": "La la la, sun . Night moon"},
]


def package(name: str, path: Path) -> Any:
    """A package without its `__init__`, which would import codecs that are not installed."""
    module = types.ModuleType(name)
    module.__path__ = [str(path)]
    sys.modules[name] = module
    return module


def main() -> None:
    import transformers.modeling_utils  # before the stand-ins, which it would take for installed packages

    assert transformers
    for missing in ("datasets", "torchaudio", "sentencepiece", "tiktoken", "tiktoken.load", "blobfile", "kagglehub"):
        if missing.partition(".")[0] in sys.modules or importlib.util.find_spec(missing) is None:
            sys.modules[missing] = MagicMock(__spec__=importlib.machinery.ModuleSpec(missing, None))
    source = next(Path(p) / "heartlib" for p in sys.path if (Path(p) / "heartlib" / "heartmula").is_dir())
    for name in ("", ".heartmula", ".pipelines", ".heartcodec"):
        package("heartlib" + name, source / name[1:])
    sys.modules["heartlib.heartcodec.modeling_heartcodec"] = MagicMock()
    from heartlib.heartmula import modeling_heartmula as original
    from heartlib.heartmula.configuration_heartmula import HeartMuLaConfig
    from heartlib.pipelines.music_generation import HeartMuLaGenConfig, HeartMuLaGenPipeline
    from tokenizers import Tokenizer
    from torchtune.models import llama3_2

    for name, (layers, heads, kv_heads, dim, hidden, positions) in tiny.SIZES.items():
        original.FLAVORS[name] = lambda a=layers, b=heads, c=kv_heads, d=dim, e=hidden, f=positions: llama3_2.llama3_2(
            vocab_size=4, num_layers=a, num_heads=b, num_kv_heads=c, embed_dim=d, max_seq_len=f, intermediate_dim=e,
            attn_dropout=0.0, norm_eps=1e-5, rope_base=500_000, scale_factor=32,
        )  # fmt: skip
    folder = Path(sys.argv[1])
    tiny.write(folder)
    config = HeartMuLaConfig(**{k: v for k, v in tiny.CONFIG.items() if k != "model_type"})
    pipe = HeartMuLaGenPipeline(
        str(folder), "", torch.device("cpu"), torch.device("cpu"), torch.float32, torch.float32, True, None,
        Tokenizer.from_file(str(folder / "tokenizer.json")), HeartMuLaGenConfig(**tiny.GENERATION),
    )  # fmt: skip
    pipe._parallel_number, pipe._muq_dim = 5, tiny.CONFIG["muq_dim"]
    pipe._unload = lambda: None
    seen = list[torch.Tensor]()

    def most_likely(logits: torch.Tensor, topk: int, temperature: float) -> torch.Tensor:
        """Records the distribution at a temperature of 0.8 and a top-k of 5, as the original makes it."""
        scaled = logits[:1] / 0.8
        seen.append(scaled.masked_fill(scaled < scaled.topk(5).values[..., -1:], -torch.inf).softmax(-1)[0])
        return logits.argmax(-1, keepdim=True).int()

    original.sample_topk = most_likely
    cases = []
    for prompt in PROMPTS:
        for scale in (1.5, 3.0, 1.0):
            pipe._mula = original.HeartMuLa(config).eval()  # its caches keep the first batch size
            pipe._mula.load_state_dict(tiny.state(0))
            seen.clear()
            inputs = pipe.preprocess(dict(prompt), cfg_scale=scale)
            with torch.no_grad():
                made = pipe._forward(inputs, max_audio_length_ms=9 * 80, temperature=1.0, topk=1, cfg_scale=scale)
            ids = inputs["tokens"][0, :, -1].tolist()
            cases.append({**prompt, "scale": scale, "ids": ids, "frames": made["frames"].T.tolist(),
                          "probs": [[round(x, 6) for x in p.tolist()] for p in seen[:8]]})  # fmt: skip
    FILE.write_text(json.dumps(cases) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
