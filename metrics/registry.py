"""Metrics by name: those of mmspec and those of installed packages, which declare entry points in `mmspec.metrics`.

| name | of | value |
|---|---|---|
| `attributes`, `captions` | images | on `shapes`: share of stated attributes shown, share of prompts shown completely |
| `attributes@scenes`, `captions@scenes` | images | the same on `scenes` |
| `clip` | images | CLIP score, needs weights of CLIP |
| `hpsv2`, `pickscore` | images | human preference by HPSv2 and PickScore, need their weights |
| `imagereward`, `hpsv3` | images | human preference by ImageReward and HPSv3, need their weights |
| `dpg` | images | DPG-Bench: share of a prompt's statements shown, by a network that answers questions |
| `geneval`, `geneval@TASK` | images | GenEval: share of prompts whose objects, counts, colors and places are right |
| `diversity@X` | both | mean distance between seeds of one prompt, over features of X |
| `dnsmos`, `distillmos` | speech | DNSMOS (overall) and DistillMOS, need their extras, which hold the weights |
| `utmos` | speech | UTMOS22 (strong), needs its weights |
| `cmmd` | images | CMMD to the reference, needs weights of CLIP |
| `fid`, `kid`, `is` | images | the standard definitions, need weights of Inception |
| `wer`, `cer` | speech | word and character error rate by Whisper; `wer@spoken` by the embedded recognizer |
| `wer-basic`, `cer-basic` | speech | the same of languages other than English |
| `speaker` | speech | cosine of WavLM's voice embeddings to the reference recording of the prompt, or the only one |
| `speaker@resemblyzer` | speech | the same by Resemblyzer, needs the extra of that name, which holds the weights |
| `mcd` | audio | mel-cepstral distortion to the reference recording of the same prompt; needs no weights |
| `stft` | audio | multi-resolution STFT distance to a reference recording of the same length; needs no weights |
| `clap` | audio | CLAP score, needs weights of CLAP |
| `logmel` | audio | Frechet distance of log-mel frames to the reference; needs no weights |
| `fd@X`, `kd@X` | both | Frechet and kernel distance over features of extractor X |
| `precision@X`, `recall@X` | both | shares of samples covered, over features of X |
| `entropy`, `nll` | both | bits per token, of the target distribution and of the emitted tokens; slows calls a little |

Intervals of distances are over the recipe's samples, with the reference fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mmspec.arguments import shown
from mmspec.environment.importing import resolve
from mmspec.errors import ArgumentError, PluginError, unknown_name
from mmspec.registry import Info, by_name

if TYPE_CHECKING:
    from mmspec.metrics.metric import Metric

GROUP = "mmspec.metrics"
EXTRACTOR = "@EXTRACTOR"

METRICS: Mapping[str, str] = {
    "attributes": "mmspec.metrics.image.attributes:ATTRIBUTES",
    "captions": "mmspec.metrics.image.attributes:CAPTIONS",
    "attributes@EXTRACTOR": "mmspec.metrics.image.attributes:attributes_by",
    "captions@EXTRACTOR": "mmspec.metrics.image.attributes:captions_by",
    "clip": "mmspec.metrics.image.clip_score:CLIP_SCORE",
    "hpsv2": "mmspec.metrics.image.preference:HPSV2",
    "pickscore": "mmspec.metrics.image.preference:PICKSCORE",
    "imagereward": "mmspec.metrics.image.reward:IMAGE_REWARD",
    "hpsv3": "mmspec.metrics.image.reward:HPSV3",
    "dpg": "mmspec.metrics.image.dpg:DPG",
    "geneval": "mmspec.metrics.image.geneval:GENEVAL",
    "geneval@EXTRACTOR": "mmspec.metrics.image.geneval:task_metric",
    "diversity@EXTRACTOR": "mmspec.metrics.image.diversity:Diversity",
    "cmmd": "mmspec.metrics.image.cmmd:CMMD",
    "fid": "mmspec.metrics.image.frechet:FID",
    "fd@EXTRACTOR": "mmspec.metrics.image.frechet:FrechetDistance",
    "kid": "mmspec.metrics.image.kid:KID",
    "kd@EXTRACTOR": "mmspec.metrics.image.kid:KernelDistance",
    "is": "mmspec.metrics.image.inception_score:INCEPTION_SCORE",
    "precision@EXTRACTOR": "mmspec.metrics.image.precision_recall:Precision",
    "recall@EXTRACTOR": "mmspec.metrics.image.precision_recall:Recall",
    "wer": "mmspec.metrics.audio.word_error_rate:WER",
    "wer@EXTRACTOR": "mmspec.metrics.audio.word_error_rate:WordErrorRate",
    "cer": "mmspec.metrics.audio.word_error_rate:CER",
    "wer-basic": "mmspec.metrics.audio.word_error_rate:WER_BASIC",
    "cer-basic": "mmspec.metrics.audio.word_error_rate:CER_BASIC",
    "cer@EXTRACTOR": "mmspec.metrics.audio.word_error_rate:CharacterErrorRate",
    "speaker": "mmspec.metrics.audio.speaker:SPEAKER",
    "speaker@EXTRACTOR": "mmspec.metrics.audio.speaker:speaker_by",
    "dnsmos": "mmspec.metrics.audio.packaged:DNSMOS",
    "distillmos": "mmspec.metrics.audio.packaged:DISTILLMOS",
    "utmos": "mmspec.metrics.audio.utmos:UTMOS",
    "mcd": "mmspec.metrics.audio.cepstrum:MCD",
    "stft": "mmspec.metrics.audio.stft_distance:STFT",
    "clap": "mmspec.metrics.audio.clap_score:CLAP_SCORE",
    "logmel": "mmspec.metrics.audio.log_mel_distance:LOG_MEL",
    "entropy": "mmspec.metrics.likelihood:ENTROPY",
    "nll": "mmspec.metrics.likelihood:NLL",
}
"""Name -> "module:object", a `Metric`; for names that end in @EXTRACTOR, a function of the extractor's name."""


def metrics() -> Mapping[str, str | Info]:
    """All names -> "module:object"; of those that are not of mmspec, an `Info`."""
    return by_name(METRICS, GROUP)


def find_metric(name: str) -> Metric:
    """The metric of that name.

    Raises:
        UnknownNameError: If there is no metric of that name, or no extractor of the name after the `@`.
        ArgumentError: If the entry point of another package does not name a metric.
        PluginError: If a metric cannot be computed from anything.
    """
    known = metrics()
    if name in known and not name.endswith(EXTRACTOR):
        where = _where(known[name])
        return checked(name, where, resolve(where))
    family, _, extractor = name.partition("@")
    if not extractor or family + EXTRACTOR not in known:
        raise unknown_name("metric", name, known)
    where = _where(known[family + EXTRACTOR])
    make = resolve(where)
    if not callable(make):
        raise ArgumentError(f"metric {family + EXTRACTOR!r}: '{where}' must be a function (extractor), not {make!r}")
    return checked(name, where, make(extractor))


def checked(name: str, where: Any, found: Any) -> Metric:
    """A metric that can be used by a name.

    Args:
        where: Where it is from, for errors.
        found: What was found there.

    Raises:
        ArgumentError: If it is no metric, or has another name.
        PluginError: If it cannot be computed from anything.
    """
    from mmspec.metrics.metric import Metric

    if not isinstance(found, Metric):
        raise ArgumentError(f"metric {name!r}: '{where}' must be a mmspec.metrics.metric.Metric, not {shown(found)}")
    if found.name != name:
        raise ArgumentError(f"metric {name!r}: '{where}' is named {found.name!r}; the two names must be equal")
    if not found.statistic and type(found).extract is Metric.extract:
        raise PluginError(f"metric {name!r} has neither `statistic` nor `extract`; its class must have one")
    return found


def _where(entry: str | Info) -> Any:
    return entry.where if isinstance(entry, Info) else entry
