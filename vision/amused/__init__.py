"""aMUSEd: masked image models (MaskGIT, MUSE), whose tokens are filled in a few steps."""

from mmspec.vision.amused.pipeline import AmusedPipeline

__all__ = ["AmusedPipeline"]
