"""Records what MiniCPM-o 4.5 computes for a tiny model; writes tests/golden/minicpm_o.json.

Run with the folder `MiniCPMO45` of github.com/OpenBMB/MiniCPM-o-Demo as the only argument. Its processor, its towers
and its codec are replaced, and so is the generator of random numbers: the most likely code is taken.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import tiny_minicpm_o as tiny
import torch
from golden import GOLDEN
from torch import Tensor
from transformers import Qwen3Config

from mmspec.audio.models.codec_lm.minicpm_o import READ_ALOUD, SYSTEM

TEXTS = ("Hello there.", "a", "Yes, no.")
LENGTH, RECORDED = 70, 60


def main(source: Path) -> None:
    def stub(name: str, **values: Any) -> ModuleType:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(values)
        return sys.modules[name]

    stub("minicpmo45").__path__ = [str(source)]
    stub("minicpmo45.modeling_navit_siglip", SiglipVisionTransformer=None, SiglipVisionConfig=Qwen3Config)
    stub("minicpmo45.processing_minicpmo", MiniCPMOProcessor=None)
    package = import_module("minicpmo45.modeling_minicpmo")
    settings = import_module("minicpmo45.configuration_minicpmo")
    own = tiny.config()
    own["vision_config"] = {"patch_size": 14}
    config = settings.MiniCPMOConfig(**own, init_vision=False, init_audio=False)
    config._attn_implementation = "eager"
    vars(config.tts_config).update(top_p=0.85, top_k=25, repetition_penalty=1.05)  # read, and not used here
    model = package.MiniCPMO(config).eval()
    missing, unknown = model.load_state_dict(tiny.state(), strict=False)
    unread = ("llm.lm_head.", "tts.projector_spk.", "tts.model.embed_tokens.")
    assert not unknown and all(name.startswith(unread) for name in missing), (missing, unknown)

    class Processor:
        tokenizer = tiny.tokenizer()

        def __call__(self, prompts: list[str], *_: Any, **__: Any) -> Any:
            ids = self.tokenizer(prompts[0], return_tensors="pt")["input_ids"]
            calls.append({"prompt": ids[0].tolist()})
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": [[]], "image_sizes": 0}
            return type("Inputs", (dict,), {"to": lambda self, device: self})(inputs)

    Processor.tokenizer.chat_template = json.loads((source / "tokenizer_config.json").read_text())["chat_template"]
    model.processor, calls, seen = Processor(), list[dict[str, Any]](), list[Tensor]()
    Processor.tokenizer.bos_id = -1

    model.get_omni_embedding = lambda data, input_embeddings, **_: input_embeddings  # without audio
    del model.llm.prepare_inputs_for_generation  # of an earlier transformers
    vars(package)["MiniCPMTTSGenerationOutput"] = SimpleNamespace  # likewise

    def most_likely(probs: Tensor, num_samples: int) -> Tensor:
        seen.append(probs[0])
        return probs.argmax(-1, keepdim=True)

    torch.multinomial = most_likely  # type: ignore[assignment]
    model.tts.generate = partial(model.tts.generate, max_new_token=LENGTH, show_tqdm=False)
    sounds: list[Tensor] = []

    def codec(speech_token: Tensor, **_: Any) -> list[dict[str, Any]]:
        sounds.append(speech_token)
        return [{"tts_speech": speech_token}]

    speak = model._generate_speech_non_streaming
    # Without the audio of a voice, for the codec, the original does not speak.
    model._generate_speech_non_streaming = lambda **given: [speak(**{**given, "audio_prompt": [0.0]})]
    model.tts.audio_tokenizer = SimpleNamespace(sample_rate=24000, token2wav=codec)
    model.tts.config.s3_stream_generate = False
    for text in TEXTS:
        seen.clear()
        said = f"<|tts_bos|>{text}<|tts_eos|>"
        turns = [("system", SYSTEM), ("user", READ_ALOUD + text), ("assistant", said)]
        model.chat(
            msgs=[{"role": role, "content": words} for role, words in turns],
            do_sample=False,
            num_beams=1,
            teacher_forcing=True,
            use_tts_template=True,
            generate_audio=True,
            output_audio_path="unused.wav",
        )
        probs = [{str(i): round(float(p[i]), 7) for i in p.nonzero()[:, 0].tolist()} for p in seen[:RECORDED]]
        calls[-1] |= {"text": text, "codes": sounds[-1][0].tolist(), "probs": probs}
    (GOLDEN / "minicpm_o.json").write_text(json.dumps({"length": LENGTH, "calls": calls}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
