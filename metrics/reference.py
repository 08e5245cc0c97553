"""Reference statistics in a file: the Gaussian of the real images, computed once.

The format is that of the ADM evaluator: an .npz with `mu` [D] and `sigma` [D, D]. Files written here add the extractor
that made the features, the number of samples and, optionally, the features themselves, which the other metrics need;
readers of the plain format ignore the additions.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.files import replacing
from mmspec.files.documents import one_line
from mmspec.files.inputs import open_regular
from mmspec.metrics.features import Features, as_features
from mmspec.metrics.gaussian import Gaussian, fit

_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class Reference:
    """The set of samples that distances are measured to.

    Attributes:
        gaussian: Fitted to the features.
        features: float64 [N, D]; None if the file does not hold them.
        extractor: Name and fingerprint of the extractor of the features; "" if unknown.
    """

    gaussian: Gaussian
    features: Features | None = None
    extractor: str = ""


def reference_of(features: Any, extractor: str = "") -> Reference:
    """The reference made of features [N, D] of the named extractor.

    Raises:
        ArgumentError: If `mmspec.metrics.gaussian.fit` raises it.
    """
    return Reference(fit(features, "reference"), as_features(features, "reference"), extractor)


def save_reference(reference: Reference, path: Path, keep_features: bool = True) -> None:
    """Writes the file atomically.

    Raises:
        ArgumentError: If the file cannot be written.
    """
    gaussian = reference.gaussian
    arrays: dict[str, Any] = {"mu": gaussian.mean, "sigma": gaussian.covariance}
    if gaussian.count is not None:
        arrays["count"] = np.array(gaussian.count)
    if reference.extractor:
        arrays["extractor"] = np.array(reference.extractor)
    if keep_features and reference.features is not None:
        arrays["features"] = reference.features
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)


def load_reference(path: Path, extractor: str = "") -> Reference:
    """Loads a file of `save_reference` or of the ADM evaluator.

    Args:
        path: The .npz file.
        extractor: Name and fingerprint of the extractor of the generated samples; "" accepts any, and so does a file
            that names none.

    Raises:
        ArgumentError: If the file cannot be read, lacks `mu` or `sigma`, or comes from another extractor.
    """
    try:
        with open_regular(path) as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {key: file[key] for key in ("mu", "sigma", "count", "extractor", "features") if key in file}
    # Broken archives raise errors of several modules; a file without pickles that is no archive is an array.
    except (OSError, ValueError, EOFError, TypeError, AttributeError, MemoryError, *_BROKEN) as error:
        raise ArgumentError(f"reference '{path}' cannot be read: {one_line(error)}") from error
    missing = [key for key in ("mu", "sigma") if key not in arrays]
    if missing:
        raise ArgumentError(f"reference '{path}' has no {' and no '.join(missing)}; it needs mu [D] and sigma [D, D]")
    try:
        mean, covariance = arrays["mu"].astype(np.float64), arrays["sigma"].astype(np.float64)
        count = int(arrays["count"]) if "count" in arrays else None
    except (ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(f"reference '{path}' holds no numbers: {one_line(error)}") from error
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)) or not len(mean):
        raise ArgumentError(
            f"reference '{path}' has mu {list(mean.shape)} and sigma {list(covariance.shape)}; they must be [D] and "
            "[D, D]"
        )
    if not np.isfinite(mean).all() or not np.isfinite(covariance).all():
        raise ArgumentError(f"reference '{path}' has values that are not finite")
    made_by = str(arrays["extractor"]) if "extractor" in arrays else ""
    if extractor and made_by and made_by != extractor:
        raise ArgumentError(f"reference '{path}' was made by extractor {made_by!r}, not by {extractor!r}")
    features = as_features(arrays["features"], f"'{path}'") if "features" in arrays else None
    return Reference(Gaussian(mean, covariance, count), features, made_by)
