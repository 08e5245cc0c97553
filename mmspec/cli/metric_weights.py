"""Options for the weights of metrics' networks; weights are downloaded only if such an option names a Hub id."""

from __future__ import annotations

from typing import Annotated

import typer


def _option(help: str) -> typer.models.OptionInfo:
    return typer.Option(show_default=False, help=help)


ShapesWeights = Annotated[str | None, _option("Folder of a shapes classifier other than the embedded one.")]
InceptionWeights = Annotated[str | None, _option("Weights file of FID's Inception: torch-fidelity's, or ADM's .pb.")]
ClipWeights = Annotated[str | None, _option("Folder or Hub id of a CLIP.")]
Dinov2Weights = Annotated[str | None, _option("Folder or Hub id of a DINOv2.")]
ClapWeights = Annotated[str | None, _option("Folder or Hub id of a CLAP.")]
WavLMWeights = Annotated[str | None, _option("Folder or Hub id of a WavLM for speaker verification.")]
WhisperWeights = Annotated[str | None, _option("Folder or Hub id of a Whisper.")]
HPSv2Weights = Annotated[str | None, _option("Folder or Hub id of HPSv2 as a CLIP of transformers.")]
PickScoreWeights = Annotated[str | None, _option("Folder or Hub id of PickScore.")]
ImageRewardWeights = Annotated[str | None, _option("Folder with ImageReward.pt and BERT's vocab.txt.")]
HPSv3Weights = Annotated[
    str | None,
    _option(
        "Folder with HPSv3.safetensors, the other files of Qwen2-VL-7B-Instruct and HPSv3's data_collator_qwen.py."
    ),
]
UTMOSWeights = Annotated[str | None, _option("The file utmos22_strong_step7459_v1.pt of SpeechMOS.")]
VQAWeights = Annotated[str | None, _option("Folder or Hub id of a BLIP that answers questions, for dpg.")]
DPGQuestions = Annotated[str | None, _option("The file dpg_bench.csv, for dpg.")]
DetectorWeights = Annotated[str | None, _option("Folder or Hub id of a Mask2Former of COCO instances, for geneval.")]
