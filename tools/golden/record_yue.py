"""Records what the code of YuE computes with tiny models; writes tests/golden/yue.json.

Run with the folder `inference` of github.com/multimodal-art-projection/YuE as the only argument. Its script runs as it
is, but for the numbers of positions and of frames of the second stage; it sings one segment less than the lyrics have.
Its codec is replaced, and so is the generator of random numbers: the most likely token is taken. Of the ids that it
allows, only those of a token's codebook are left.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from golden import GOLDEN
from tiny_yue import POSITIONS, model
from torch import Tensor, nn

FIRST, CODES, END = 45334, 1024, 32002
TOKENS, RECORDED = 110, 3
FRAMES = 60  # that the second stage reads at a time, in place of 300
VOCALS, BAND = [5, 900, 17, 1023, 4], [0, 1, 2, 3, 800]
SONGS: list[dict[str, Any]] = [
    {"genres": "pop female vocal", "lyrics": "[verse]\nOne two\nthree\n\n[chorus]\nLa la\n\n[outro]\nBye [last]"},
    {
        "genres": "rock",
        "lyrics": "[verse]\nHey \u00fc \u4f60\u597d\n[chorus]\nyes\n[end]\nThe [last]\n",
        "reference": [VOCALS, BAND],
    },
    {
        "genres": " jazz\n",
        "lyrics": "[intro]\n<EOD>a<s_local> <stage_2>\n[verse]\nb[end_of_segment]\n[last]",
        "reference": [VOCALS],
    },
]


class Done(Exception):
    """Both stages are finished."""


class SoundStream(nn.Module):
    def load_state_dict(self, *_: Any, **__: Any) -> None:
        pass

    def encode(self, audio: Tensor, target_bw: float) -> Tensor:
        return audio.long().view(1, 1, -1)

    def decode(self, codes: Tensor) -> Tensor:
        raise Done


def main(source: Path) -> None:
    def stub(name: str, **values: Any) -> None:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(values)

    audio = {"vocals": VOCALS, "band": BAND}
    stub("torchaudio", load=lambda file: (torch.tensor([audio[file]]).float(), 16000))
    stub("torchaudio.transforms", Resample=None)
    stub("soundfile")
    codec = SimpleNamespace(generator=SimpleNamespace(name="SoundStream", config={}))
    stub("omegaconf", OmegaConf=SimpleNamespace(load=lambda file: codec))
    stub("models")
    stub("models.soundstream_hubert_new", SoundStream=SoundStream)
    stub("vocoder", build_codec_model=None, process_audio=None)
    stub("post_process_audio", replace_low_freq_with_energy_matched=None)
    stages = {"one": model(0), "two": model(1, positions=4096)}
    transformers.AutoModelForCausalLM.from_pretrained = lambda name, **_: stages[name]
    torch.compile = lambda module: module  # type: ignore[assignment]
    torch.load = lambda *_, **__: {"codec_model": {}}
    seen: list[Tensor] = []
    segments: list[dict[str, Any]] = []

    def most_likely(probs: Tensor, num_samples: int) -> Tensor:
        seen.append(probs[0])
        return probs.argmax(-1, keepdim=True)

    torch.multinomial = most_likely  # type: ignore[assignment]
    generate = type(stages["one"]).generate

    def index(i: int) -> int:
        return CODES if i == END else i - FIRST

    def codes_only(ids: Tensor, scores: Tensor) -> Tensor:
        kept = torch.full_like(scores, -torch.inf)
        for part in (slice(END, END + 1), slice(FIRST, FIRST + CODES)):
            kept[:, part] = scores[:, part]
        return kept

    def first_stage(input_ids: Tensor, logits_processor: list[Any], **options: Any) -> Tensor:
        seen.clear()
        out: Tensor = generate(
            stages["one"], input_ids=input_ids, logits_processor=[*logits_processor, codes_only], **options
        )
        probs = [{str(index(i)): round(float(p[i]), 7) for i in p.nonzero()[:, 0].tolist()} for p in seen[:RECORDED]]
        prompt, tokens = input_ids[0].tolist(), [index(i) for i in out[0, input_ids.shape[1] :].tolist()]
        segments.append({"prompt": prompt, "tokens": tokens, "probs": probs})
        return out

    def second_stage(input_ids: Tensor, logits_processor: list[Any], **options: Any) -> Tensor:
        def own_codebook(ids: Tensor, scores: Tensor) -> Tensor:
            low = FIRST + CODES * (1 + ids.shape[1] - input_ids.shape[1])
            kept = torch.full_like(scores, -torch.inf)
            kept[:, low : low + CODES] = scores[:, low : low + CODES]
            return kept

        out: Tensor = generate(
            stages["two"], input_ids=input_ids, logits_processor=[*logits_processor, own_codebook], **options
        )
        return out

    stages["one"].generate, stages["two"].generate = first_stage, second_stage
    os.chdir(source)
    sys.path.insert(0, str(source))
    script = Path("infer.py").read_text().replace("16384", str(POSITIONS)).replace("300", str(FRAMES))
    script = script.replace("// 50 // 6", f"// {FRAMES // 6} // 6").replace("duration*50", f"duration*{FRAMES // 6}")
    mmtokenizer = import_module("mmtokenizer")

    pieces: dict[str, list[int]] = {}
    read = mmtokenizer._MMSentencePieceTokenizer.__init__

    def recorded(self: Any, file: str) -> None:
        read(self, file)
        encode = self.tokenizer.encode_as_ids

        def both(text: str) -> list[int]:
            pieces[text] = encode(text)
            return pieces[text]

        self.tokenizer = SimpleNamespace(encode_as_ids=both)

    mmtokenizer._MMSentencePieceTokenizer.__init__ = recorded
    found: dict[str, Any] = {"tokens": TOKENS, "frames": FRAMES, "songs": []}
    for song in SONGS:
        segments.clear()
        with tempfile.TemporaryDirectory() as out:
            for name in ("genres", "lyrics"):
                (Path(out) / name).write_text(song[name])
            given = ["--genre_txt", f"{out}/genres", "--lyrics_txt", f"{out}/lyrics", "--output_dir", out]
            given += ["--run_n_segments", "9", "--max_new_tokens", str(TOKENS)]
            given += ["--stage1_model", "one", "--stage2_model", "two"]
            if len(song.get("reference", ())) == 2:
                given += ["--use_dual_tracks_prompt", "--vocal_track_prompt_path", "vocals"]
                given += ["--instrumental_track_prompt_path", "band"]
            if len(song.get("reference", ())) == 1:
                given += ["--use_audio_prompt", "--audio_prompt_path", "vocals"]
            sys.argv = ["infer.py", *given]
            with suppress(Done):
                exec(compile(script, "infer.py", "exec"), {"__name__": "__main__", "__file__": "infer.py"})
            tracks = [np.load(file).tolist() for file in sorted(Path(out).glob("stage2/*track.npy"), reverse=True)]
            found["songs"].append({**song, "segments": [*segments], "tracks": tracks})
    found["pieces"] = pieces
    (GOLDEN / "yue.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
