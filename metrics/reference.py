"""Reference statistics in a file: what a Frechet distance needs of the real images, computed once.

The format is that of the ADM evaluator: an .npz with `mu` [D] and `sigma` [D, D]. Ours adds the extractor that made
them, how many samples there were and, when asked for, the features themselves, which the other metrics need; readers of
the plain format are not disturbed by that.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.files import replacing
from mmspec.metrics.features import Features, read_features
from mmspec.metrics.image.frechet import Gaussian, fit


@dataclass(frozen=True)
class Reference:
    """A Gaussian, the features it was fitted to (None when they were not kept), and what made them ("" if unknown)."""

    gaussian: Gaussian
    features: Features | None = None
    extractor: str = ""


def reference_of(features: Any, extractor: str = "") -> Reference:
    """The reference that features [N, D] of the named extractor make.

    Raises:
        ArgumentError: As `fit`.
    """
    return Reference(fit(features, "reference"), read_features(features, "reference"), extractor)


def save_reference(reference: Reference, path: Path, keep_features: bool = True) -> None:
    """Writes the file, whole or not at all.

    Raises:
        ArgumentError: When the system refuses.
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
    """Reads such a file, or one of the ADM evaluator.

    Args:
        extractor: The one that will be used on the other side; "" accepts any, and so does a file that names none.

    Raises:
        ArgumentError: When it cannot be read, lacks `mu` or `sigma`, or comes from another extractor.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in ("mu", "sigma", "count", "extractor", "features") if key in file}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ArgumentError(f"reference '{path}' cannot be read: {error}") from error
    missing = [key for key in ("mu", "sigma") if key not in arrays]
    if missing:
        raise ArgumentError(f"reference '{path}' has no {' and no '.join(missing)}; it needs mu [D] and sigma [D, D]")
    made_by = str(arrays["extractor"]) if "extractor" in arrays else ""
    if extractor and made_by and made_by != extractor:
        raise ArgumentError(f"reference '{path}' was made by extractor {made_by!r}, not by {extractor!r}")
    mean, covariance = arrays["mu"].astype(np.float64), arrays["sigma"].astype(np.float64)
    count = int(arrays["count"]) if "count" in arrays else None
    features = read_features(arrays["features"], f"'{path}'") if "features" in arrays else None
    return Reference(Gaussian(mean, covariance, count), features, made_by)
