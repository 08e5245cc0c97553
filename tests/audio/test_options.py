"""Options of speech and music models: a wrong value is refused in one line that names the option."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import golden_qwen3_tts
import numpy as np
import pytest
import tiny_ace_step
import tiny_codecs
import tiny_fish_s2
import tiny_heartmula
import tiny_higgs
import tiny_higgs_v3
import tiny_kyutai
import tiny_latents
import tiny_lfm2_audio
import tiny_magnet
import tiny_minicpm_o
import tiny_moss
import tiny_moss_local
import tiny_moss_local_v1
import tiny_music
import tiny_omni
import tiny_outetts
import tiny_personaplex
import tiny_spark
import tiny_speech
import tiny_step_audio2
import tiny_yue
import tiny_zonos2
import torch
from tiny_chatterbox import Levels, chatterbox, multilingual
from tiny_cosyvoice import CODES, cosyvoice
from tiny_music import long_musicgen

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.heartmula import model as heartmula
from mmspec.audio.models.heartmula.model import FLAVORS, Flavor
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError, MMSpecError

WRONG: list[Any] = [
    5, -1, 2.5, math.nan, None, True, "", "x", b"x", [], [1], {}, {"x": 1}, {1: 2}, object(), np.zeros(3),
    torch.ones(2), Path("x"), 10**400, lambda: 1,
]  # fmt: skip
PIECES = json.loads((Path(__file__).parent.parent / "golden" / "yue.json").read_text())["pieces"]
MOSS = "voice frames language instruction quality tokens"


class Books(Levels):
    """A codec of several codebooks."""

    def __init__(self, codebooks: int, codes: int) -> None:
        super().__init__(codes)
        self.codebooks = codebooks


@dataclass(frozen=True)
class Case:
    """A model and its options.

    Attributes:
        make: Writes or makes a model, and returns it with its processor.
        options: Its options, besides `codec` and `draft_model`.
        needed: Options without which it does not load.
    """

    make: Callable[[Path], tuple[Any, Any]]
    options: str
    needed: Mapping[str, Any] = field(default_factory=dict)


def published(write: Callable[[Path], Path]) -> Callable[[Path], tuple[str, None]]:
    return lambda folder: (str(write(folder)), None)


def loaded(model: Callable[[], Any], processor: Callable[[], Any] = tiny_speech.tokenizer) -> Any:
    return lambda folder: (model(), processor())


CASES = {
    "fish": Case(
        published(tiny_fish_s2.fish_s2),
        "voice frames repetition_penalty residual ahead",
        {"codec": tiny_fish_s2.Codec()},
    ),
    "higgs-3": Case(published(tiny_higgs_v3.higgs_v3), "voice frames", {"codec": tiny_higgs_v3.Codec()}),
    "moss": Case(published(tiny_moss.moss), MOSS, {"codec": tiny_moss.Codec()}),
    "moss-local": Case(published(tiny_moss_local.moss_local), f"{MOSS} ahead", {"codec": tiny_moss.Codec()}),
    "moss-local-1": Case(
        published(tiny_moss_local_v1.moss_local_v1), f"{MOSS} codebooks", {"codec": tiny_moss.Codec()}
    ),
    "kyutai": Case(
        lambda folder: (str(tiny_kyutai.kyutai(folder)), tiny_kyutai.Words()),
        "voice cfg frames codebooks padding_between ahead",
        {"codec": tiny_kyutai.Codec()},
    ),
    "lfm2-audio": Case(
        published(tiny_lfm2_audio.lfm2_audio), "frames ahead system", {"codec": tiny_lfm2_audio.Codec()}
    ),
    "personaplex": Case(
        lambda folder: (str(tiny_personaplex.personaplex(folder)), tiny_personaplex.Letters()),
        "voice",
        {"codec": tiny_personaplex.Codec()},
    ),
    "heartmula": Case(published(tiny_heartmula.write), "tags frames ahead", {"codec": Books(4, 40)}),
    "qwen3-tts": Case(
        published(lambda folder: golden_qwen3_tts.copy(folder, "custom_voice")),
        "frames ahead language instruct non_streaming_mode",
    ),
    "qwen3-omni": Case(loaded(tiny_omni.qwen3), "frames ahead answer_tokens system"),
    "qwen2.5-omni": Case(loaded(tiny_omni.qwen2_5), "frames answer_tokens system"),
    "csm": Case(loaded(tiny_speech.csm), "frames ahead"),
    "pocket": Case(loaded(lambda: tiny_latents.tiny("pocket"), tiny_latents.pocket_processor), "voices frames"),
    "vibevoice": Case(loaded(tiny_latents.vibevoice, tiny_latents.vibevoice_processor), "voices frames"),
    "higgs": Case(loaded(tiny_higgs.model, tiny_higgs.processor), "frames scene"),
    "dia": Case(loaded(tiny_music.dia), "", {"codec": codec_of(tiny_codecs.dac())}),
    "bark": Case(loaded(tiny_speech.bark), ""),
    "musicgen": Case(loaded(long_musicgen), ""),
    "spark": Case(
        loaded(tiny_spark.model, tiny_spark.tokenizer),
        "style gender pitch speed voice description speaker",
        {"codec": Books(33, 8192), "style": "spark", "gender": "male"},
    ),
    "outetts": Case(
        loaded(tiny_outetts.model, tiny_outetts.tokenizer),
        "speaker voice",
        {"codec": Books(2, 1024), "style": "outetts"},
    ),
    "yue": Case(
        loaded(tiny_yue.model, lambda: tiny_yue.Pieces(PIECES)),
        "genres tokens segments later_guidance reference stage_2",
        {"codec": Books(2, 1024), "style": "yue", "genres": "pop", "tokens": 20},
    ),
    "ace-step": Case(
        loaded(tiny_ace_step.model, tiny_ace_step.tokenizer),
        "lyrics metadata negative_prompt",
        {
            "codec": Levels(64000),
            "style": "ace-step",
            "metadata": {"bpm": 90, "keyscale": "C major", "timesignature": 4},
        },
    ),
    "chatterbox": Case(published(chatterbox), "exaggeration voice", {"codec": Levels(6561)}),
    "multilingual": Case(
        published(multilingual), "language t3_model exaggeration voice", {"codec": Levels(6561), "language": "en"}
    ),
    "cosyvoice": Case(
        published(lambda folder: cosyvoice(folder)[0]), "exclude_repeated voice", {"codec": Levels(CODES)}
    ),
    "step-audio2": Case(
        published(lambda folder: tiny_step_audio2.step_audio2(folder, 200)), "system", {"codec": Levels(6561)}
    ),
    "minicpm-o": Case(published(tiny_minicpm_o.minicpm_o), "system", {"codec": Levels(tiny_minicpm_o.CODES)}),
    "magnet": Case(published(tiny_magnet.write), "text_encoder steps"),
    "zonos2": Case(
        published(tiny_zonos2.zonos2),
        "voice clean_speaker_background accurate_mode speaking_rate_bucket quality_buckets repetition_penalty "
        "repetition_window repetition_codebooks frames",
        {"codec": tiny_zonos2.Codec()},
    ),
}


# Values that are refused by name; those of `WRONG` may be allowed.
REFUSED: dict[str, list[tuple[str, Any]]] = {
    "fish": [("frames", 0), ("voice", "low"), ("ahead", -1), ("repetition_penalty", 0), ("residual", 0.5)],
    "higgs-3": [("frames", 0), ("voice", "low")],
    "moss": [("frames", 0), ("tokens", "many"), ("language", 3), ("voice", "low")],
    "moss-local": [("frames", 0), ("tokens", "many"), ("language", 3), ("voice", "low"), ("ahead", 99)],
    "moss-local-1": [("repetition_penalty", 0.5), ("codebooks", 0), ("codebooks", 4), ("frames", 0)],
    "kyutai": [("frames", 0), ("cfg", "much"), ("cfg", 9), ("cfg", 1.54), ("codebooks", 9), ("voice", 3),
               ("padding_between", -1)],
    "lfm2-audio": [("frames", 0), ("ahead", 17), ("system", 3), ("system", " ")],
    "personaplex": [("voice", 3), ("voice", "x.pt")],
    "heartmula": [("frames", 0), ("tags", 3)],
    "qwen3-tts": [("frames", 0), ("ahead", 17), ("instruct", 3), ("non_streaming_mode", "no")],
    "qwen3-omni": [("frames", 0), ("ahead", 99), ("answer_tokens", 1), ("system", 3)],
    "qwen2.5-omni": [("frames", 0), ("answer_tokens", 1), ("system", 3), ("speaker", "unknown")],
    "step-audio2": [("system", 3)],
    "minicpm-o": [("system", 3)],
    "csm": [("ahead", -1), ("ahead", 17), ("ahead", "2")],
    "higgs": [("scene", 3)],
    "zonos2": [("frames", 0), ("voice", 3), ("accurate_mode", "yes"), ("clean_speaker_background", 1),
               ("speaking_rate_bucket", -1), ("speaking_rate_bucket", 4), ("quality_buckets", 3),
               ("repetition_penalty", 0.5), ("repetition_window", -1), ("repetition_codebooks", "all")],
}  # fmt: skip
CLONED = ("fish", "higgs-3", "moss", "moss-local")  # with codes of 3 codebooks as their voice


def refused(name: str, value: Any, load: Callable[[], Any]) -> list[str]:
    """Why a call with a wrong value of an option is not refused as it should be; nothing if it is, or is allowed."""
    try:
        load()
    except MMSpecError as error:
        text = str(error)
        clear = name in text and "\n" not in text and len(text) < 700
        return [] if clear else [f"{name}={value!r:.60}: {text[:200]}"]
    except Exception as error:
        return [f"{name}={value!r:.60}: {type(error).__name__}: {str(error)[:200]}"]
    return []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", list(CASES))
def test_wrong_values_are_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And options that a model does not have, and voices whose codes have another shape."""
    sizes = {name: Flavor(*own) for name, own in tiny_heartmula.SIZES.items()}
    monkeypatch.setattr(heartmula, "FLAVORS", {**FLAVORS, **sizes})
    own = CASES[case]
    model, processor = own.make(tmp_path / "model")
    needed = dict(own.needed)
    if case == "magnet":
        needed |= {"text_encoder": f"{model}/t5", "steps": tiny_magnet.STEPS}

    def load(options: Mapping[str, Any]) -> Any:
        return mmspec.load(model, processor=processor, config={**needed, **options})

    load({})
    problems = list[str]()
    for name in ("codec", "draft_model", *own.options.split()):
        for value in WRONG:
            if value is not None or name not in needed:
                problems += refused(name, value, partial(load, {name: value}))
    assert not problems, "\n".join(problems)
    for name, value in REFUSED.get(case, []):
        with pytest.raises(ArgumentError, match=f"{name}=.* is not allowed"):
            load({name: value})
    unknown = r"config has 'frame', which (.* does not have|is not allowed here)"
    with pytest.raises(
        ArgumentError, match=unknown + (r" \(did you mean 'frames'\?\)" if "frames" in own.options else "")
    ):
        load({"frame": 3})
    if case in CLONED:
        with pytest.raises(ArgumentError, match=r"voice has codes of shape \[2\] .* must be integers \[frames, 3\]"):
            load({"voice": ReferenceCodes("", torch.tensor([1, 2]))})
