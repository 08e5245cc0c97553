"""Models of human preference that are CLIPs in shape: HPSv2 and PickScore."""

from __future__ import annotations

from mmspec.metrics.extractors.clip import ClipExtractor


class PreferenceExtractor(ClipExtractor):
    """A CLIP that was fine-tuned on choices between images.

    Args:
        name: "hpsv2" or "pickscore".
        where: A folder or Hub id with model, image processor and tokenizer of transformers.
        device: Where the network runs.

    Raises:
        ModelError: If one of them cannot be loaded.
    """

    def __init__(self, name: str, where: str, device: str = "cpu") -> None:
        self.name = name
        super().__init__(where, device)

    @property
    def scale(self) -> float:
        """What the model multiplies cosines by."""
        return float(self.model.logit_scale.detach().exp())


def hpsv2(where: str, device: str) -> PreferenceExtractor:
    return PreferenceExtractor("hpsv2", where, device)


def pickscore(where: str, device: str) -> PreferenceExtractor:
    return PreferenceExtractor("pickscore", where, device)
