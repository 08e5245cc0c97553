"""Records codes of the original MAGNeT, and audio of the original EnCodec, with tiny random weights.

Needs github.com/facebookresearch/audiocraft (MIT License) and einops on the path:
PYTHONPATH=audiocraft:tests/helpers python tools/golden/record_magnet.py
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import tiny_magnet as tiny
import torch
from golden import GOLDEN
from tiny_music import tokenizer
from torch import Tensor, nn

from mmspec.sampling.rng import CounterRNG

FILE = GOLDEN / "magnet.json"
TEXTS = ["slow quiet piano", "loud drums"]
MISSING = ("flashy", "spacy", "num2words", "av", "xformers", "julius", "librosa", "encodec", "omegaconf", "dora")
PACKAGES = ("", ".models", ".modules", ".utils", ".data")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that are not installed, and not used here either."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        found = name.partition(".")[0] in MISSING
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: Any) -> Any:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: type(name, (), {"__getattr__": lambda self, other: MagicMock()})  # type: ignore
        return module

    def exec_module(self, module: Any) -> None:
        pass


def main() -> None:
    import transformers.modeling_utils  # before the stand-ins, which it would take for installed packages

    assert transformers
    sys.meta_path.insert(0, StandIns())
    source = next(Path(p) / "audiocraft" for p in sys.path if (Path(p) / "audiocraft" / "models").is_dir())
    for name in PACKAGES:
        module = types.ModuleType("audiocraft" + name)
        module.__path__ = [str(source / name[1:])]
        sys.modules["audiocraft" + name] = module
    from audiocraft.modules import transformer

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float = 0) -> Tensor:
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    transformer.ops = types.SimpleNamespace(unbind=torch.unbind, memory_efficient_attention=attend)
    transformer._is_profiled = lambda: False
    transformer._verify_xformers_memory_efficient_compat = lambda: None
    transformer.set_efficient_attention_backend("xformers")
    from audiocraft.models import lm_magnet
    from audiocraft.modules import conditioners, seanet
    from audiocraft.modules.codebooks_patterns import ParallelPatternProvider
    from audiocraft.utils.autocast import TorchAutocast

    class Conditioner(conditioners.T5Conditioner):
        """The original with another T5."""

        def __init__(self) -> None:
            conditioners.TextConditioner.__init__(self, tiny.TEXT, tiny.DIM)
            self.device, self.finetune, self.word_dropout, self.normalize_text = "cpu", False, 0.0, False
            self.autocast, self.t5_tokenizer = TorchAutocast(enabled=False), tokenizer()
            self.__dict__["t5"] = tiny.t5()

    model = lm_magnet.MagnetLMModel(
        pattern_provider=ParallelPatternProvider(tiny.BOOKS),
        condition_provider=conditioners.ConditioningProvider({"description": Conditioner()}),
        fuser=conditioners.ConditionFuser({"cross": ["description"], "sum": [], "prepend": []}),
        n_q=tiny.BOOKS, card=tiny.CODES, dim=tiny.DIM, num_heads=4, num_layers=tiny.LAYERS,
        hidden_scale=tiny.HIDDEN / tiny.DIM, norm_first=True, bias_proj=False, bias_ff=False, bias_attn=False,
        activation="gelu", causal=False, memory_efficient=True, cross_attention=True, dropout=0.0,
        subcodes_context=2, compression_model_framerate=125, segment_duration=1, span_len=3, device="cpu",
        dtype=torch.float32,
    ).eval()  # fmt: skip
    model.load_state_dict(tiny.state())
    step, seed = 0, 0

    def sample(kept: Tensor) -> Tensor:
        """A code of each distribution [1, 1, T, V], by the random numbers of the seed and the step."""
        nonlocal step
        frames, codes = kept.shape[2:]
        noise = CounterRNG([seed], torch.device("cpu")).gumbel(step * frames + np.arange(frames)[None], codes)
        step += 1
        return (kept.log() + noise[:, None]).argmax(-1, keepdim=True)

    def sample_top_p(probs: Tensor, p: float) -> Tensor:
        ordered, index = probs.sort(dim=-1, descending=True)
        ordered = ordered * ~(ordered.cumsum(-1) - ordered > p)
        return sample(torch.zeros_like(probs).scatter(-1, index, ordered / ordered.sum(-1, keepdim=True)))

    lm_magnet.utils.sample_top_p = sample_top_p
    lm_magnet.utils.multinomial = lambda probs, num_samples: sample(probs)
    cases = list[dict[str, Any]]()
    for settings in (
        {"temp": 3.0, "top_p": 0.9, "max_cfg_coef": 10.0},
        {"temp": 1.0, "top_p": 0.0, "top_k": 0, "max_cfg_coef": 3.0},
    ):
        found = list[Any]()
        for seed, text in enumerate(TEXTS):  # noqa: B007 (read by `sample`)
            step = 0
            attributes = [conditioners.ConditioningAttributes(text={"description": text})]
            codes = model.generate(None, attributes, max_gen_len=25, decoding_steps=list(tiny.STEPS), **settings)
            found.append(codes[0].tolist())
        cases.append({"settings": settings, "codes": found})
    decoder = seanet.SEANetDecoder(
        dimension=8,
        n_filters=4,
        ratios=[4, 2],
        n_residual_layers=1,
        pad_mode="constant",
        true_skip=True,
        lstm=2,
        norm="weight_norm",
    ).eval()
    weights = tiny.codec_state()
    decoder.load_state_dict({k.removeprefix("decoder."): v for k, v in weights.items() if k.startswith("decoder.")})
    codes = torch.tensor(cases[0]["codes"][0])
    vectors = [weights[f"quantizer.vq.layers.{k}._codebook.embed"][codes[k]] for k in range(tiny.BOOKS)]
    latents = torch.stack(vectors).sum(0)
    audio = decoder(latents.T[None])[0, 0]
    FILE.write_text(
        json.dumps({"texts": TEXTS, "cases": cases, "audio": [round(x, 6) for x in audio.tolist()]}) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    with torch.no_grad():
        main()
