"""UTMOS (Saeki et al. 2022), its strong learner: how natural listeners find speech, by a wav2vec 2.0 and an LSTM."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_tensors, count_blocks, read_tensors, sizes_of
from mmspec.media.listing import list_files
from mmspec.metrics.extractors.audio import Waveform
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.features import Features

RATE = 16_000
LISTENER = 288  # the one whose scores the authors predict, of the 3,000 in the original file
HEAD_DIM = 64
_STRIDES = (5, 2, 2, 2, 2, 2, 2)
# Names in the original file, then in that of SpeechMOS -> names in transformers' wav2vec 2.0.
_RENAMING = (
    (r"^feature_extractors\.0\.ssl_model\.", "wav2vec2."),
    (r"^feature_extractors\.1\.embedding\.weight$", "domain_emb"),
    (r"^output_layers\.0\.judge_embedding\.weight$", "judge_emb"),
    (r"^output_layers\.0\.decoder_rnn\.", "blstm."),
    (r"^output_layers\.1\.net\.0\.", "projection.0."),
    (r"^output_layers\.1\.net\.3\.", "projection.2."),
    (r"(\.conv_layers\.\d+)\.0\.", r"\1.conv."),
    (r"(\.conv_layers\.0)\.2\.", r"\1.layer_norm."),
    (r"^wav2vec2\.layer_norm\.", "wav2vec2.feature_projection.layer_norm."),
    (r"^wav2vec2\.post_extract_proj\.", "wav2vec2.feature_projection.projection."),
    (r"\.pos_conv\.0\.weight_g$", ".pos_conv_embed.conv.parametrizations.weight.original0"),
    (r"\.pos_conv\.0\.weight_v$", ".pos_conv_embed.conv.parametrizations.weight.original1"),
    (r"\.pos_conv\.0\.bias$", ".pos_conv_embed.conv.bias"),
    (r"\.self_attn\.", ".attention."),
    (r"\.self_attn_layer_norm\.", ".layer_norm."),
    (r"\.fc1\.", ".feed_forward.intermediate_dense."),
    (r"\.fc2\.", ".feed_forward.output_dense."),
)
_OF_TRAINING = re.compile(r"^wav2vec2\.(mask_emb|quantizer|project_q|final_proj|target_glu)")
_CONV = "wav2vec2.feature_extractor.conv_layers"
_POSITIONS = "wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight.original1"


class UTMOSNetwork(nn.Module):
    """The network, with sizes that the tensors of a file determine.

    Args:
        tensors: Under the names of this class.

    Raises:
        ModelError: If the embeddings are those of several domains or listeners, or do not fit the LSTM.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        from transformers import Wav2Vec2Config, Wav2Vec2Model

        super().__init__()
        convs = [tensors[f"{_CONV}.{n}.conv.weight"].shape for n in range(count_blocks(tensors, _CONV))]
        dim, group, kernel = tensors[_POSITIONS].shape
        self.wav2vec2 = Wav2Vec2Model(
            Wav2Vec2Config(
                hidden_size=dim,
                intermediate_size=tensors["wav2vec2.encoder.layers.0.feed_forward.intermediate_dense.weight"].shape[0],
                num_hidden_layers=count_blocks(tensors, "wav2vec2.encoder.layers"),
                num_attention_heads=dim // HEAD_DIM,
                conv_dim=[shape[0] for shape in convs],
                conv_kernel=[shape[2] for shape in convs],
                conv_stride=_STRIDES[: len(convs)],
                num_conv_pos_embeddings=kernel,
                num_conv_pos_embedding_groups=dim // group,
                mask_time_prob=0.0,  # a masked position's embedding is for training
            )
        )
        self.domain_emb = nn.Parameter(torch.empty(tensors["domain_emb"].shape))
        self.judge_emb = nn.Parameter(torch.empty(tensors["judge_emb"].shape))
        given, hidden = tensors["blstm.weight_ih_l0"].shape[1], tensors["blstm.weight_hh_l0"].shape[1]
        self.blstm = nn.LSTM(given, hidden, batch_first=True, bidirectional=True)
        known = {name: tuple(tensors[name].shape) for name in ("domain_emb", "judge_emb")}
        if any(len(shape) != 2 or shape[0] != 1 for shape in known.values()):
            raise ModelError(f"one domain and one listener are expected, not embeddings of shapes {known}")
        if given != dim + sum(shape[1] for shape in known.values()):
            raise ModelError(f"the LSTM reads vectors of {given}, not the features of {dim} with embeddings {known}")
        inner = tensors["projection.0.weight"].shape[0]
        self.projection = nn.Sequential(nn.Linear(2 * hidden, inner), nn.ReLU(), nn.Linear(inner, 1))
        self.least = 1  # samples that make one frame
        for shape, stride in zip(reversed(convs), reversed(_STRIDES[: len(convs)]), strict=True):
            self.least = (self.least - 1) * stride + shape[2]

    def forward(self, wave: Tensor) -> Tensor:
        """The score, from 1 to 5, of a recording [1, T] at 16 kHz."""
        frames = self.wav2vec2(wave).last_hidden_state
        known = torch.cat([self.domain_emb, self.judge_emb], 1)[:, None].expand(-1, frames.shape[1], -1)
        found, _ = self.blstm(torch.cat([frames, known], 2))
        score: Tensor = 2 * self.projection(found).mean() + 3
        return score


class UTMOS:
    """The published network.

    Args:
        where: The file of SpeechMOS (`utmos22_strong_step7459_v1.pt`), the original one, or a folder with one of them
            and no other `.pt` or `.ckpt`.
        device: Where the network runs.

    Raises:
        ModelError: If it cannot be loaded.
    """

    name = "utmos"

    def __init__(self, where: str, device: str = "cpu") -> None:
        path = Path(where)
        files = [path] if path.is_file() else list_files(path, (".pt", ".ckpt")) if path.is_dir() else []
        if len(files) != 1:
            raise ModelError(
                f"extractor {self.name!r}: {where!r} must be utmos22_strong_step7459_v1.pt of SpeechMOS, the original "
                f"checkpoint, or a folder with one of them; it holds {len(files)} .pt and .ckpt files"
            )
        what, tensors = f"model {str(files[0])!r}", renamed(read_tensors(files[0], "model", ("state_dict",)))
        with sizes_of(what, "a UTMOS"), building(what, "a UTMOS"):
            empty = UTMOSNetwork(tensors)
        check_tensors(what, tensors, empty)
        self.model = UTMOSNetwork(tensors)
        self.model.load_state_dict(tensors)
        self.model.eval().to(device)
        self.device = torch.device(device)
        self.fingerprint = fingerprint_of(self.model)

    @torch.no_grad()
    def scores(self, audio: Sequence[Waveform]) -> Features:
        """Scores float64 [B]. Recordings go in one by one: padding would change the input of the first layers."""
        found = []
        for clip in audio:
            wave = clip.at(RATE).astype(np.float32)
            if len(wave) < self.model.least:  # too short: repeat it
                wave = np.tile(wave, -(-self.model.least // len(wave)))
            found.append(float(self.model(torch.from_numpy(wave)[None].to(self.device))))
        return np.array(found)


def renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a published file under the names of `UTMOSNetwork`, without those of training."""
    found = {}
    for name, value in tensors.items():
        for pattern, new in _RENAMING:
            name = re.sub(pattern, new, name)
        if not _OF_TRAINING.match(name):
            found[name] = value.float()
    # The original file has an embedding per domain and listener.
    for name, row in (("domain_emb", 0), ("judge_emb", LISTENER)):
        if name in found and 1 < len(found[name]) > row:
            found[name] = found[name][row : row + 1].clone()
    return found
