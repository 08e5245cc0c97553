"""Inception-v3 as FID and the Inception score define it: the network, weights and resizing of torch-fidelity.

Another Inception, such as torchvision's, gives another number that must not be called FID. The package is optional; the
weights are named by path and never fetched: torch-fidelity's weights-inception-2015-12-05-6726825d.pth (from the
releases of toshas/torch-fidelity), or classify_image_graph_def.pb, the graph of ADM's evaluator, which holds the same.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from mmspec.errors import MMSpecError, ModelError
from mmspec.files.documents import one_line
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.extractors.image import Images
from mmspec.metrics.extractors.inception_graph import state_dict
from mmspec.metrics.features import Features

POOLED, LOGITS = "2048", "logits_unbiased"


class InceptionExtractor:
    """FID's Inception-v3, with the features [B, 2048] of the last pooling.

    Args:
        where: The weights file; a file that ends in .pb is read as a TensorFlow graph.
        device: Where the network runs.

    Raises:
        ModelError: If torch-fidelity is not installed, or the file does not exist or is damaged.
    """

    name = "inception"

    def __init__(self, where: str, device: str = "cpu") -> None:
        if not Path(where).is_file():
            raise ModelError(
                f"extractor 'inception': the weights file {where!r} does not exist; "
                "fetch weights-inception-2015-12-05-6726825d.pth from the releases of toshas/torch-fidelity, or "
                "classify_image_graph_def.pb from ADM's evaluation"
            )
        try:
            module = import_module("torch_fidelity.feature_extractor_inceptionv3")
        except ImportError:
            raise ModelError("extractor 'inception' needs torch-fidelity; pip install torch-fidelity") from None
        try:
            with TemporaryDirectory() as folder:
                path = where
                if where.endswith(".pb"):
                    path = str(Path(folder) / "weights.pth")
                    torch.save(state_dict(Path(where)), path)
                network = module.FeatureExtractorInceptionV3(
                    "inception-v3-compat", [POOLED, LOGITS], feature_extractor_weights_path=path
                )
        except MMSpecError:
            raise
        except Exception as error:  # a damaged file makes the loader raise nearly anything
            raise ModelError(f"extractor 'inception': cannot load {where!r}: {one_line(error)}") from None
        self.model: torch.nn.Module = network.eval().to(device)
        self.device = torch.device(device)
        self.fingerprint = fingerprint_of(self.model)

    def __call__(self, images: Images) -> Features:
        """Features float64 [B, 2048]."""
        return self._run(images)[0]

    def logits(self, images: Images) -> Features:
        """Logits float64 [B, 1008], without the bias of the last layer, as the Inception score is defined."""
        return self._run(images)[1]

    @torch.no_grad()
    def _run(self, images: Images) -> tuple[Features, Features]:
        pooled, logits = self.model(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(self.device))
        return np.asarray(pooled.double().cpu().numpy()), np.asarray(logits.double().cpu().numpy())
