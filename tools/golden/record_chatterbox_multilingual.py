"""Records what the package chatterbox-tts computes for a tiny multilingual model; writes a file of tests/golden.

Run with the folder `src` of github.com/resemble-ai/chatterbox as the only argument, where `pykakasi` is
installed. Of the package only its model `T3` and its tokenizer are imported; words of `spacy_pkuseg`, which downloads a
model, are two characters each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from golden import GOLDEN
from tiny_chatterbox import CANGJIE, multilingual_tokenizer, state
from torch import Tensor

TEXTS = {"fr": ["Un deux, un trois!", "deux"], "de": ["eins \u00e4 zwei: drei"]}
PREPARED = {
    "en": ["Hello  WORLD"],
    "fr": ["d\u00e9j\u00e0 vu?"],
    "zh": ["\u4f60\u597d\uff0c\u4e16\u754c a", "\u65e5\u6708\u65e5"],
    "ja": ["\u6771\u4eac\u306f\u7f8e\u3057\u3044\u3002", "\u30c6\u30b9\u30c8\u6b6f abc", "\u8449\u3063\u3071"],
    "ko": ["\uc548\ub155 \ud558\uc138\uc694"],
    "he": ["\u05e9\u05dc\u05d5\u05dd"],
    "ru": ["\u041f\u0440\u0438\u0432\u0435\u0442"],
}
SETTINGS = {"temperature": 0.8, "min_p": 0.05, "top_p": 0.9, "repetition_penalty": 1.2, "cfg_weight": 0.5}
LENGTH = 10


def main(source: Path) -> None:
    for name in ("chatterbox", "chatterbox.models", "chatterbox.models.tokenizers"):
        module = ModuleType(name)
        module.__path__ = [str(source.joinpath(*name.split(".")))]
        sys.modules[name] = module
    segmenter: Any = ModuleType("spacy_pkuseg")
    segmenter.pkuseg = lambda: SimpleNamespace(cut=lambda text: [text[i : i + 2] for i in range(0, len(text), 2)])
    sys.modules["spacy_pkuseg"] = segmenter
    from chatterbox.models.t3.llama_configs import LLAMA_CONFIGS
    from chatterbox.models.t3.modules.cond_enc import T3Cond
    from chatterbox.models.t3.modules.perceiver import Perceiver
    from chatterbox.models.t3.modules.t3_config import T3Config
    from chatterbox.models.t3.t3 import T3
    from chatterbox.models.tokenizers import tokenizer as package

    folder = Path(tempfile.mkdtemp())
    (folder / "cangjie.json").write_text(json.dumps(CANGJIE))
    package.hf_hub_download = lambda **_: str(folder / "cangjie.json")
    multilingual_tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer = package.MTLTokenizer(str(folder / "tokenizer.json"))
    seen_texts: list[str] = []

    class Recorder:
        def encode(self, text: str) -> Any:
            seen_texts.append(text)
            return multilingual_tokenizer().encode(text)

    tokenizer.tokenizer = Recorder()
    normalize = punctuation(source)
    found: dict[str, Any] = {"settings": SETTINGS, "prepared": {}, "kakasi": {}, "cases": []}
    for language, texts in PREPARED.items():
        for text in texts:
            tokenizer.encode(normalize(text), language_id=language)
            found["prepared"].setdefault(language, {})[text] = seen_texts[-1]
            if language == "ja":
                plain = tokenizer.preprocess_text(normalize(text))
                words = package._kakasi.convert(plain)
                found["kakasi"][plain] = [{key: word[key] for key in ("orig", "hira")} for word in words]

    tiny = {"hidden_size": 64, "intermediate_size": 48, "num_attention_heads": 1, "num_key_value_heads": 1}
    LLAMA_CONFIGS["tiny"] = {**LLAMA_CONFIGS["Llama_520M"], **tiny, "num_hidden_layers": 2, "vocab_size": 8}
    config = T3Config(text_tokens_dict_size=300)
    config.llama_config_name, config.speaker_embed_size = "tiny", 8
    config.max_text_tokens, config.max_speech_tokens = 40, 60
    model = T3(config)
    model.cond_enc.perceiver = Perceiver(4, 64, 64)  # the package's has a fixed size
    model.load_state_dict(state())
    model.eval()
    seen: list[Tensor] = []

    def most_likely(probs: Tensor, num_samples: int) -> Tensor:
        seen.append(probs)
        return probs.argmax(-1, keepdim=True)

    torch.multinomial = most_likely  # type: ignore[assignment]
    for language, texts in TEXTS.items():
        for text in texts:
            ids = torch.tensor(tokenizer.encode(normalize(text), language_id=language))
            ids = torch.cat([torch.tensor([255]), ids, torch.tensor([0])])[None].repeat(2, 1)
            cond = T3Cond(
                speaker_emb=torch.linspace(-1, 1, 8)[None],
                cond_prompt_speech_tokens=torch.tensor([[5, 70, 900, 6000, 33]]),
                emotion_adv=0.5 * torch.ones(1, 1, 1),
            )
            seen.clear()
            with torch.inference_mode():
                out = model.inference(t3_cond=cond, text_tokens=ids, max_new_tokens=LENGTH, **SETTINGS)
            probs = [
                {"count": int((p > 0).sum()), "best": {str(int(i)): round(float(p[0, i]), 7) for i in p[0].topk(20)[1]}}
                for p in seen[:4]
            ]
            case = {"language": language, "text": text, "ids": ids[0].tolist(), "codes": out[0].tolist()}
            found["cases"].append({**case, "probs": probs})
    file = GOLDEN / "chatterbox_multilingual.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


def punctuation(source: Path) -> Any:
    """The package's `punc_norm`, from a file whose imports need all of its dependencies."""
    text = (source / "chatterbox" / "mtl_tts.py").read_text()
    scope: dict[str, Any] = {}
    exec(text[text.index("def punc_norm") : text.index("@dataclass")], scope)
    return scope["punc_norm"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
