"""From a pipeline to a model that a server serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmspec.pipeline import makes_audio
from mmspec.serving.engines import new_engine
from mmspec.serving.generation import Engine
from mmspec.serving.models import ServedModel, recipe_of
from mmspec.serving.raster import check_served


def served_model(
    name: str, pipe: Any, recipe: Any, max_rows: int, max_waiting: int, learn: Path | None = None
) -> ServedModel:
    """A model with its engine.

    Args:
        name: What requests call it.
        pipe: A pipeline of `mmspec.load`.
        recipe: A `mmspec.recipes.Recipe`; None is the pipeline's default.
        max_rows: Requests that are decoded at the same time.
        max_waiting: Requests that may wait.
        learn: Where the drafter is written as it learns, see `mmspec.serving.learning`; None for one that does not.

    Raises:
        ArgumentError: If the server cannot serve the model.
    """
    if not makes_audio(pipe):
        check_served(pipe, name)
    chosen = recipe_of(pipe, recipe)
    engine: Engine = new_engine(pipe, chosen, max_rows, max_waiting)
    if learn is not None:
        # Imported here: it brings the training with it.
        from mmspec.serving.learning import learning

        engine = learning(engine, pipe, chosen, learn)
    return ServedModel(name, pipe, chosen, engine)
