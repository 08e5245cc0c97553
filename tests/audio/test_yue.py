"""YuE, against prompts, codes and probabilities of its repository."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tiny_speech
import tiny_yue
import torch
from part_runs import decode_rows, distance_of_probs

import mmspec
from mmspec.audio import sentencepiece_file
from mmspec.audio.codec import OverlapStream
from mmspec.audio.models.flat import yue
from mmspec.audio.models.flat.yue import YuEAdapter
from mmspec.audio.models.flat.yue_prompt import CODES
from mmspec.audio.models.flat.yue_tracks import SecondStage, Tracks
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "yue.json").read_text())
SONGS = GOLDEN["songs"]
ENCODER = tiny_yue.Pieces(GOLDEN["pieces"])
model = cache(tiny_yue.model)


class TrackCodec:
    """Two samples per code: of two codebooks, or of eight."""

    sampling_rate, channels, hop, codebook_size = 100, 1, 2, CODES

    def __init__(self, codebooks: int = 2) -> None:
        self.codebooks = codebooks

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.float().mean(1, keepdim=True).repeat_interleave(2, -1) / 2048

    def stream(self) -> OverlapStream:
        return OverlapStream(self, 0, 0)

    def tables(self) -> list[torch.Tensor]:
        return [torch.arange(CODES)[:, None].float()] * self.codebooks


def pipeline(song: dict[str, Any], **more: Any) -> Any:
    options = {"style": "yue", "codec": TrackCodec(), "genres": song["genres"], "tokens": GOLDEN["tokens"]}
    if "reference" in song:
        options["reference"] = torch.tensor(song["reference"]).T.squeeze(1)
    options["segments"] = len(song["segments"])
    return mmspec.load(model(), processor=ENCODER, config=options | more)


def parts_of(adapter: YuEAdapter, song: dict[str, Any]) -> list[Any]:
    """The segments of a song, each after those before it as they were recorded."""
    found: list[Any] = []
    for i, part in enumerate(adapter.read(song["lyrics"], None).parts):
        tokens = torch.tensor(song["segments"][i - 1]["tokens"])
        found.append(adapter.continue_voice(part, found[-1], tokens) if found else part)
    return found


def prompt_of(adapter: YuEAdapter, part: Any) -> list[int]:
    return [*part.before, *part.own][-adapter._room :]


@pytest.mark.parametrize("recipe", ["scd:window=6", "tree:branch=2/1,layers=1"])
def test_greedy_segments_are_the_originals(recipe: str) -> None:
    """The last segments of three songs in a batch, guided, with prompts of several lengths."""
    rows, recorded = [], []
    for song, latest in zip(SONGS, (1, 2, 1), strict=True):
        adapter = pipeline(song).adapter
        rows.append(parts_of(adapter, song)[latest])
        recorded.append(song["segments"][latest]["tokens"])
    params = [SamplingParams(0.0, guidance_scale=1.5)] * 3
    assert decode_rows(adapter, rows, parse(recipe), params[0], [0, 1, 2]).tolist() == recorded


def test_greedy_songs_are_the_originals() -> None:
    """Whole calls: the first segment is guided by 1.5, the later ones by 1.2."""
    song = SONGS[1]
    out = pipeline(song)(song["lyrics"], temperature=0)
    assert [tokens.tolist() for tokens in out.tokens] == [segment["tokens"] for segment in song["segments"]]
    assert out.truncated and out.audio.shape == (1, 3 * 110)


def test_prompts_are_the_originals() -> None:
    """Special tokens in texts, reference audio of one track and of two, and songs that outgrow the positions."""
    for song in SONGS:
        adapter = pipeline(song).adapter
        parts = parts_of(adapter, song)
        assert [prompt_of(adapter, part) for part in parts] == [segment["prompt"] for segment in song["segments"]]
        assert len(parts[-1].before) + len(parts[-1].own) > adapter._room
        (note,) = adapter.read(song["lyrics"], None).notes
        assert f"the latest {adapter._room} ids" in note


def test_probabilities_are_the_originals() -> None:
    """The penalty applies to guided log-probabilities; twins: to logits, and without guidance."""

    def distance(adapter: YuEAdapter, params: SamplingParams) -> float:
        rows = zip(parts_of(adapter, SONGS[0]), SONGS[0]["segments"], strict=True)
        return max(distance_of_probs(adapter, part, params, own["tokens"], own["probs"]) for part, own in rows)

    adapter = pipeline(SONGS[0]).adapter
    assert adapter.sampling == SamplingParams(1.0, 50, 0.93, guidance_scale=1.5)
    assert distance(adapter, adapter.sampling) < 1e-5
    assert distance(adapter, SamplingParams(1.0, 50, 0.93)) > 1e-2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yue, "log_probs_of", lambda head, ids: lambda hidden: head(hidden)[..., ids])
        assert distance(adapter, adapter.sampling) > 1e-3


def test_second_stage_completes_tracks_as_the_original() -> None:
    """Two pieces at a time, and the rest, with speculative decoding; the tracks are those of the first stage."""
    stage = SecondStage(tiny_yue.model(1, 4096), parse("scd:window=6"), GOLDEN["frames"])
    vocals = torch.tensor(SONGS[0]["tracks"][0])
    assert torch.equal(stage.complete(vocals[0]), vocals)
    song = SONGS[2]
    sung = torch.cat([adapter_codes(song, i) for i in range(3)], dim=1)
    assert sung.tolist() == [track[0] for track in song["tracks"]]


def adapter_codes(song: dict[str, Any], segment: int) -> torch.Tensor:
    return pipeline(song).adapter.codes(torch.tensor(song["segments"][segment]["tokens"]))


def test_a_row_that_ends_in_a_frame_has_the_frames_before() -> None:
    assert pipeline(SONGS[0]).adapter.codes(torch.tensor([5, 6, 7, CODES, CODES])).tolist() == [[5], [6]]


def test_tracks_are_decoded_and_mixed() -> None:
    class Thrice(SecondStage):
        def complete(self, track: torch.Tensor) -> torch.Tensor:
            return track.repeat(8, 1) * torch.tensor([[3], *[[1]] * 7])

    codes = torch.tensor([[[1, 900], [4, 1000]]])
    found = Tracks(TrackCodec(8), Thrice(model())).decode(codes)
    track = codes[0] * 10 / 8 / 2048
    assert torch.allclose(found[0, 0, ::2], track.clamp(max=0.99).sum(0).clamp(max=1)) and found.shape == (1, 1, 4)
    pipe = pipeline(SONGS[0], codec=TrackCodec(8), stage_2=model())
    assert isinstance(pipe.adapter.codec, Tracks) and pipe.adapter.codec.hop == 2


def test_a_sentencepiece_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is imported only then; another object takes its place here."""
    file = tmp_path / "tokenizer.model"
    file.write_bytes(b"")
    tiny_yue.model().save_pretrained(tmp_path)
    options = {"style": "yue", "codec": TrackCodec(), "tokens": 110}
    package = ModuleType("sentencepiece")
    package.SentencePieceProcessor = lambda model_file: ENCODER  # type: ignore[attr-defined]
    monkeypatch.setattr(sentencepiece_file, "import_module", {"sentencepiece": package}.__getitem__)
    pipe = mmspec.load(str(tmp_path), processor=str(file), config=options)
    assert pipe.adapter._encode == ENCODER.encode

    def missing(name: str) -> ModuleType:
        raise ImportError(name)

    monkeypatch.setattr(sentencepiece_file, "import_module", missing)
    with pytest.raises(ArgumentError, match="YuE reads texts with sentencepiece: pip install sentencepiece"):
        mmspec.load(str(tmp_path), processor=str(file), config=options)


def test_errors(tmp_path: Path) -> None:
    song = SONGS[0]
    with pytest.raises(PromptError, match="has no segments; begin each with its name"):
        pipeline(song)("la la")
    for wrong, message in (
        ({"genres": 5}, "genres=5 is not allowed"),
        ({"tokens": 211}, "tokens=211 is not allowed; it must be an integer from 2 to 210"),
        ({"segments": 0}, "segments=0 is not allowed"),
        ({"later_guidance": "x"}, "later_guidance='x' is not allowed"),
        ({"reference": torch.tensor([1024])}, "it must be integers .frames. or .frames, 2."),
        ({"stage_2": 5}, "stage_2=5 is not allowed; it must be a LlamaForCausalLM"),
        ({"stage_2": "x" * 5000}, r"stage_2='x{150,}.* is neither a folder nor a Hub id"),
        ({"codec": TrackCodec(8)}, "the codec has 8 codebooks; pass the second stage"),
        ({"genre": "x"}, "'genre', which YuE does not have .did you mean 'genres'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            pipeline(song, **wrong)
    with pytest.raises(ArgumentError, match="YuE needs a codec"):
        mmspec.load(model(), processor=ENCODER, config={"style": "yue"})
    with pytest.raises(ArgumentError, match="processor adds ids to texts .Pieces."):
        begins = tiny_yue.Pieces({})
        begins.encode = lambda text: [1]  # type: ignore[method-assign]
        mmspec.load(model(), processor=begins, config={"style": "yue", "codec": TrackCodec(), "tokens": 110})
    with pytest.raises(ArgumentError, match="processor='x{150,}.* cannot be loaded"):
        folder = tmp_path / "stage_1"
        model().save_pretrained(folder)
        mmspec.load(str(folder), processor="x" * 5000 + ".model", config={"style": "yue"})
    with pytest.raises(ModelError, match="the codec has 2 codebooks of 1024, the model 8 of 1024"):
        Tracks(TrackCodec(2), SecondStage(model()))
    with pytest.raises(ModelError, match="model has 21 ids; a YuE has 46358 or more"):
        mmspec.load(tiny_speech.flat(), processor=ENCODER, config={"style": "yue", "codec": TrackCodec(), "tokens": 9})
