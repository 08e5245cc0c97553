"""Objects of COCO's classes in an image, with their masks, by a Mask2Former."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.metrics.extractors.image import Images
from mmspec.metrics.extractors.pretrained import PretrainedExtractor, pixel_values


@dataclass(frozen=True)
class Detection:
    """One object.

    Attributes:
        name: Its class, in lower case.
        score: The detector's confidence in 0..1.
        box: Left, top, right and bottom in pixels.
        mask: bool [H, W].
    """

    name: str
    score: float
    box: tuple[float, float, float, float]
    mask: NDArray[np.bool_]


class ObjectDetector(PretrainedExtractor):
    """A `Mask2FormerForUniversalSegmentation` of instances, such as facebook/mask2former-swin-small-coco-instance."""

    name = "detector"
    model_class = "Mask2FormerForUniversalSegmentation"

    @torch.no_grad()
    def detect(self, images: Images, least: float) -> list[list[Detection]]:
        """The objects of each image with at least this confidence, most confident first.

        Args:
            images: uint8 [B, H, W, 3].
            least: In 0..1.
        """
        found = []
        for image in images:
            pixels = pixel_values(self.processor, image[None], self.model.device)
            output = self.model(pixel_values=pixels)
            found.append(self._objects(output, image.shape[0], image.shape[1], least))
        return found

    def _objects(self, output: Any, height: int, width: int, least: float) -> list[Detection]:
        """Instances from class and mask logits, as Mask2Former scores them: class times mean of the mask inside."""
        classes = output.class_queries_logits[0].softmax(-1)[:, :-1]  # the last class is "nothing"
        scores, labels = classes.max(-1)
        logits = torch.nn.functional.interpolate(
            output.masks_queries_logits, size=(height, width), mode="bilinear", align_corners=False
        )[0]
        inside = logits > 0
        certainty = (logits.sigmoid() * inside).flatten(1).sum(1) / inside.flatten(1).sum(1).clamp(min=1)
        total = scores * certainty
        names = self.model.config.id2label
        objects = []
        for i in total.argsort(descending=True).tolist():
            mask = inside[i].cpu().numpy()
            if float(total[i]) < least or not mask.any():
                continue
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            box = (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1))
            objects.append(Detection(str(names[int(labels[i])]).lower(), float(total[i]), box, mask))
        return objects
