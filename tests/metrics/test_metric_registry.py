"""Metrics by name: what each needs, metrics from outside, and the errors for faulty ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from mmspec.cli.app import main
from mmspec.environment.importing import resolve
from mmspec.errors import ArgumentError, MMSpecError, PluginError, UnknownNameError
from mmspec.metrics import metric, registry
from mmspec.metrics.audio.cepstrum import mel_cepstral_distortion
from mmspec.metrics.audio.stft_distance import stft_distance
from mmspec.metrics.bootstrap import mean_interval
from mmspec.metrics.estimate import Estimate
from mmspec.metrics.evaluation.folders import measure_folders
from mmspec.metrics.evaluation.media import read_waveform
from mmspec.metrics.evaluation.quality import find_metrics
from mmspec.metrics.features import Features
from mmspec.metrics.metric import DistanceMetric, Groups, MeanMetric, Metric, Rows, SampleBatch
from mmspec.metrics.registry import EXTRACTOR, METRICS, find_metric
from mmspec.registry import installed

# Name: kind, extractor, needs a reference, needs prompts, higher is better, fewest samples.
EXPECTED = {
    "attributes": ("image", "shapes", False, True, True, 2),
    "captions": ("image", "shapes", False, True, True, 2),
    "attributes@scenes": ("image", "scenes", False, True, True, 2),
    "captions@scenes": ("image", "scenes", False, True, True, 2),
    "clip": ("image", "clip", False, True, True, 2),
    "cmmd": ("image", "clip", True, False, False, 4),
    "hpsv2": ("image", "hpsv2", False, True, True, 2),
    "pickscore": ("image", "pickscore", False, True, True, 2),
    "imagereward": ("image", "imagereward", False, True, True, 2),
    "hpsv3": ("image", "hpsv3", False, True, True, 2),
    "dpg": ("image", "", False, True, True, 2),
    "geneval": ("image", "detector", False, True, True, 2),
    "geneval@counting": ("image", "detector", False, True, True, 2),
    "diversity@shapes": ("image", "shapes", False, True, True, 4),
    "dnsmos": ("audio", "", False, False, True, 2),
    "distillmos": ("audio", "", False, False, True, 2),
    "utmos": ("audio", "utmos", False, False, True, 2),
    "fid": ("image", "inception", True, False, False, 4),
    "kid": ("image", "inception", True, False, False, 4),
    "is": ("image", "inception", False, False, True, 2),
    "fd@shapes": ("image", "shapes", True, False, False, 4),
    "fd@wavlm": ("audio", "wavlm", True, False, False, 4),
    "kd@dinov2": ("image", "dinov2", True, False, False, 4),
    "kd@clap": ("audio", "clap", True, False, False, 4),
    "precision@clip": ("image", "clip", True, False, True, 4),
    "recall@whisper": ("audio", "whisper", True, False, True, 4),
    "wer": ("audio", "whisper", False, True, False, 2),
    "cer": ("audio", "whisper", False, True, False, 2),
    "wer-basic": ("audio", "whisper", False, True, False, 2),
    "cer-basic": ("audio", "whisper", False, True, False, 2),
    "wer@spoken": ("audio", "spoken", False, True, False, 2),
    "cer@spoken": ("audio", "spoken", False, True, False, 2),
    "speaker": ("audio", "wavlm", True, False, True, 2),
    "speaker@resemblyzer": ("audio", "resemblyzer", True, False, True, 2),
    "clap": ("audio", "clap", False, True, True, 2),
    "logmel": ("audio", "", True, False, False, 4),
    "mcd": ("audio", "", True, False, False, 2),
    "stft": ("audio", "", True, False, False, 2),
    "entropy": (None, "", False, False, None, 2),
    "nll": (None, "", False, False, False, 2),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_metric_states_what_it_needs(name: str) -> None:
    found = find_metric(name)
    needs = found.kind, found.extractor, found.needs_reference, found.needs_prompts
    assert (*needs, found.higher_is_better, found.min_samples) == EXPECTED[name]
    assert found.name == name and (found.statistic == name) == (name in ("entropy", "nll"))


def test_every_name_of_the_table_is_tried() -> None:
    families = {name.partition("@")[0] + EXTRACTOR if "@" in name else name for name in EXPECTED}
    assert families == set(METRICS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fd", "unknown metric 'fd'"),
        ("fd@", "unknown metric 'fd@'"),
        ("fdd@shapes", "unknown metric 'fdd@shapes'"),
        ("is@inception", "unknown metric 'is@inception'"),
        ("entropy@shapes", "unknown metric 'entropy@shapes'"),
        ("@shapes", "unknown metric '@shapes'"),
        ("", "unknown metric ''"),
        ("fd@EXTRACTOR", "unknown extractor 'EXTRACTOR'"),
        ("kd@clop", "unknown extractor 'clop' (did you mean 'clip'?)"),
        ("wer@clap", "unknown extractor 'clap'; known: spoken, whisper"),
        ("speaker@clap", "unknown extractor 'clap'; known: resemblyzer, wavlm"),
    ],
)
def test_unknown_names_raise(name: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=re.escape(message)):
        find_metrics([name], {}, 10)


class Brightness(MeanMetric):
    kind = "image"

    def scores(self, samples: SampleBatch, extractor: Any) -> Features:
        return samples.images.mean((1, 2, 3))


class MeanShift(DistanceMetric):
    """The distance between the mean features of two sets."""

    def __init__(self, extractor: str) -> None:
        super().__init__(f"shift@{extractor}", extractor)

    def distance(self, generated: Features, reference: Features) -> float:
        return float(np.linalg.norm(generated.mean(0) - reference.mean(0)))


class OwnNetwork(Brightness):
    def load_extractor(self, weights: Mapping[str, str], device: str) -> Any:
        return lambda images: -images.mean((1, 2, 3))

    def scores(self, samples: SampleBatch, extractor: Any) -> Features:
        return samples.features(extractor)


class Fingerprinted(OwnNetwork):
    def load_extractor(self, weights: Mapping[str, str], device: str) -> Any:
        class Network:
            name, fingerprint = "own", "1"

            def __call__(self, images: np.ndarray) -> Features:
                return np.asarray(-images.mean((1, 2, 3)))

        return Network()


class WrongCount(Brightness):
    def extract(self, samples: SampleBatch, extractor: Any) -> Rows:
        return list(samples.images.mean((1, 2, 3)))[1:]


class WrongShape(Brightness):
    def scores(self, samples: SampleBatch, extractor: Any) -> Features:
        return samples.images.mean((1, 2))


class NotFinite(Brightness):
    def scores(self, samples: SampleBatch, extractor: Any) -> Features:
        return super().scores(samples, extractor) * np.nan


class Unfinished(Metric):
    def measure(self, rows: Rows, reference: Any, groups: Groups = None) -> Estimate:
        raise AssertionError


class Returns(Brightness):
    """Returns what it is told to, from one of its methods."""

    def __init__(self, name: str, found: Any, method: str = "scores") -> None:
        super().__init__(name)
        setattr(self, method, lambda *arguments: found)


class Fewer(Brightness):
    min_samples = 9
    min_samples_reason = "it sorts them"


OBJECTS: dict[str, Any] = {
    "brightness": Brightness("brightness"),
    "renamed": Brightness("brightness"),
    "text": "brightness",
    "kind": Brightness,
    "shift@EXTRACTOR": MeanShift,
    "own": OwnNetwork("own"),
    "fingerprinted": Fingerprinted("fingerprinted"),
    "count": WrongCount("count"),
    "shape": WrongShape("shape"),
    "finite": NotFinite("finite"),
    "fewer": Fewer("fewer"),
    "unfinished": Unfinished("unfinished"),
    "nothing": Returns("nothing", None),
    "words": Returns("words", ["a"] * 5),
    "no-rows": Returns("no-rows", None, "extract"),
    "no-estimate": Returns("no-estimate", 0.5, "measure"),
}


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Entry points for `OBJECTS`."""

    class EntryPoint:
        def __init__(self, name: str) -> None:
            self.name, self.value = name, f"outside:{name}"

    def entry_points(group: str) -> Sequence[EntryPoint]:
        assert group == "mmspec.metrics"
        return [EntryPoint(name) for name in OBJECTS]

    monkeypatch.setattr("mmspec.registry.entry_points", entry_points)
    monkeypatch.setattr(
        registry, "resolve", lambda where: OBJECTS[where[8:]] if where.startswith("outside:") else resolve(where)
    )
    installed.cache_clear()
    yield
    installed.cache_clear()


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Two folders of five images, the second brighter by 50."""
    folders = [tmp_path / "dark", tmp_path / "bright"]
    for k, folder in enumerate(folders):
        folder.mkdir()
        for i in range(5):
            Image.new("RGB", (64, 64), (10 * i + 50 * k,) * 3).save(folder / f"{i}.png")
    return folders


def test_a_mean_metric_from_outside(plugins: None, images: list[Path]) -> None:
    found = measure_folders(images, ["brightness"])
    dark, bright = (quality["brightness"] for quality in found.quality)
    expected = mean_interval([0.0, 10.0, 20.0, 30.0, 40.0])
    assert (dark.value, dark.low, dark.high) == (expected.value, expected.low, expected.high)
    assert bright.difference is not None
    assert (bright.difference.low, bright.difference.value, bright.difference.high) == pytest.approx((50, 50, 50))


def test_a_distance_of_any_extractor_from_outside(
    plugins: None, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Means:
        name, fingerprint = "clip", "1"

        def __call__(self, images: np.ndarray) -> Features:
            return np.asarray(images.mean((1, 2)))

    monkeypatch.setattr(metric, "load_extractor", lambda name, weights, device: Means())
    found = measure_folders(images[:1], ["shift@clip", "fd@clip"], reference=images[1], weights={"clip": "x"})
    assert found.quality[0]["shift@clip"].value == pytest.approx(50 * 3**0.5)
    assert found.quality[0]["shift@clip"].extractor == "clip-1"
    assert found.quality[0]["fd@clip"].value == pytest.approx(3 * 50**2)  # equal covariances


def test_a_metric_may_load_a_network_of_its_own(plugins: None, images: list[Path]) -> None:
    (found,) = measure_folders(images[:1], ["own", "fingerprinted", "brightness"]).quality
    assert found["own"].value == found["fingerprinted"].value == -found["brightness"].value == -20
    assert [found[name].extractor for name in ("own", "fingerprinted", "brightness")] == ["", "own-1", ""]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("renamed", ArgumentError, "metric 'renamed': 'outside:renamed' is named 'brightness'; the two names must be"),
        (
            "text",
            ArgumentError,
            "metric 'text': 'outside:text' must be a mmspec.metrics.metric.Metric, not 'brightness'",
        ),
        ("kind", ArgumentError, "metric 'kind': 'outside:kind' must be a mmspec.metrics.metric.Metric, not <class"),
        ("shift@clop", UnknownNameError, "unknown extractor 'clop' (did you mean 'clip'?)"),
        ("brightnes", UnknownNameError, "unknown metric 'brightnes' (did you mean 'brightness'?)"),
        ("count", ArgumentError, "metric 'count' returned 4 rows for 5 samples"),
        ("shape", PluginError, "metric 'shape' must return a number for each sample, float64 [5], not float64 [5, 3]"),
        ("nothing", PluginError, "metric 'nothing' must return a number for each sample, float64 [5], not None"),
        ("words", PluginError, "metric 'words' must return a number for each sample, float64 [5], not ['a', 'a', "),
        ("no-rows", ArgumentError, "metric 'no-rows' returned 0 rows for 5 samples; there must be one for each"),
        ("no-estimate", PluginError, "`measure` of the metric 'no-estimate' must return a mmspec.metrics.estimate.Est"),
        ("finite", ArgumentError, "metric 'finite' returned nan for "),
        ("fewer", ArgumentError, "metric 'fewer' needs at least 9 samples (prompts times seeds): it sorts them; there"),
        ("unfinished", PluginError, "metric 'unfinished' has neither `statistic` nor `extract`"),
    ],
)
def test_faulty_metrics_are_named(
    plugins: None, images: list[Path], name: str, error: type[MMSpecError], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        measure_folders(images, [name])


@pytest.fixture
def speech(tmp_path: Path) -> list[Path]:
    """Two folders of four recordings at 16 kHz, the second with noise, and a folder with the first recording alone."""
    folders = [tmp_path / name for name in ("clean", "noisy", "one")]
    for k, folder in enumerate(folders):
        folder.mkdir()
        for i in range(1 if k == 2 else 4):
            rng = np.random.default_rng(i)
            wave = 0.3 * np.sin(np.arange(4000) * (0.1 + 0.02 * i)) + 0.05 * rng.normal(size=4000) * (k == 1)
            soundfile.write(folder / f"{i}.wav", wave, 16_000)
    return folders


def test_paired_distances_are_means_over_the_recordings(speech: list[Path]) -> None:
    clean, noisy, one = speech
    found = measure_folders([clean, noisy], ["mcd", "stft"], reference=clean)
    waves = [[read_waveform(path).wave for path in sorted(folder.iterdir())] for folder in (clean, noisy)]
    mcd = [mel_cepstral_distortion(b, a, 16_000) for a, b in zip(*waves, strict=True)]
    stft = [stft_distance(b, a) for a, b in zip(*waves, strict=True)]
    assert found.quality[0]["mcd"].value == found.quality[0]["stft"].value == 0
    assert found.quality[1]["mcd"].value == pytest.approx(np.mean(mcd), abs=1e-9) and np.mean(mcd) > 1
    assert found.quality[1]["stft"].value == pytest.approx(np.mean(stft), abs=1e-9)
    assert found.quality[1]["mcd"].low == pytest.approx(mean_interval(mcd).low)
    alone = measure_folders([clean], ["mcd"], reference=one)
    expected = [mel_cepstral_distortion(wave, waves[0][0], 16_000) for wave in waves[0]]
    assert alone.quality[0]["mcd"].value == pytest.approx(np.mean(expected), abs=1e-9)


def test_paired_distances_need_a_folder_of_recordings(
    speech: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean, noisy, _ = map(str, speech)
    np.savez(tmp_path / "reference.npz", mu=np.zeros(3), sigma=np.eye(3))
    soundfile.write(speech[1] / "4.wav", np.zeros(300), 16_000)
    for arguments, message in [
        ([clean, "--reference", str(tmp_path / "reference.npz")], "compares single samples; "),
        ([clean, "--save-reference", str(tmp_path / "x.npz")], "metric 'mcd' compares single samples, not statistics"),
        ([clean, "--reference", noisy], "4.wav' has 300 samples; 'mcd' needs 513"),
    ]:
        assert main(["measure", "--metrics", "mcd", *arguments]) == 2
        assert message in capsys.readouterr().err, message
    (speech[1] / "4.wav").unlink()
    soundfile.write(speech[1] / "3.wav", np.zeros(5000), 16_000)
    assert main(["measure", "--metrics", "stft", clean, "--reference", noisy]) == 2
    assert "at 16000 Hz one has 4000 samples, its reference has 5000" in capsys.readouterr().err
    (speech[1] / "3.wav").unlink()
    assert main(["measure", "--metrics", "mcd", clean, "--reference", noisy]) == 2
    assert "must hold one sample, or 4 in the order of the samples; it holds 3" in capsys.readouterr().err
