"""CLAP's common space of audio and texts, for CLAP score and distances of music and effects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mmspec.metrics.extractors.audio import Waveform
from mmspec.metrics.extractors.clip import projected_embedding
from mmspec.metrics.extractors.pretrained import PretrainedExtractor
from mmspec.metrics.features import Features


class ClapExtractor(PretrainedExtractor):
    """A `ClapModel` with its feature extractor and tokenizer; laion/larger_clap_music is the one for music.

    Recordings longer than CLAP's input (10 s) are cut off at its end, not at a random place, so that results repeat.
    """

    name = "clap"
    model_class = "ClapModel"
    processor_class = "AutoFeatureExtractor"
    reads_text = True

    @torch.no_grad()
    def __call__(self, audio: Sequence[Waveform]) -> Features:
        """Projected embeddings float64 [B, D], not normalized."""
        rate, longest = self.processor.sampling_rate, self.processor.nb_max_samples
        waves = [clip.at(rate)[:longest].astype(np.float32) for clip in audio]
        # "fusion" models read a longer and a shorter view of a recording; without a cut the two are the same.
        inputs = self.processor(waves, sampling_rate=rate, return_tensors="pt").to(self.model.device)
        return projected_embedding(self.model.get_audio_features(**inputs))

    @torch.no_grad()
    def texts(self, prompts: Sequence[str]) -> Features:
        """Projected embeddings of prompts, float64 [B, D]; text beyond CLAP's context is cut off."""
        # RoBERTa numbers positions from its padding id on.
        longest = self.model.config.text_config.max_position_embeddings - 2
        tokens = self.tokenizer(
            list(prompts), padding=True, truncation=True, max_length=longest, return_tensors="pt"
        ).to(self.model.device)
        return projected_embedding(self.model.get_text_features(tokens["input_ids"], tokens["attention_mask"]))
