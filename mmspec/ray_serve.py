"""`mmspec serve` as a deployment of Ray Serve: the same endpoints on replicas that Ray starts and stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mmspec.arguments import check_integer, shown
from mmspec.environment.importing import install_extra
from mmspec.errors import ArgumentError
from mmspec.recipes import parse

MAX_WAITING = 1024  # requests of a model that may wait in a replica


def deployment(
    models: str | Sequence[str] = "shapes",
    *,
    recipe: str | None = None,
    max_rows: int = 16,
    device: str | None = None,
    api_keys: Sequence[str] = (),
    min_replicas: int = 1,
    max_replicas: int = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
) -> Any:
    """An application for `ray.serve.run`: each replica loads the models and serves OpenAI's endpoints.

        from ray import serve
        from mmspec.ray_serve import deployment
        serve.run(deployment("shapes", max_replicas=4), route_prefix="/")

    Ray sends a request to the replica with the fewest, and starts replicas when they have more than `max_rows` requests
    on average. Streamed responses are passed on as they are made. An image that a response names by its address lies in
    the replica that made it: ask for `b64_json` when there are several.

    Args:
        models: Names, folders or Hub ids.
        recipe: How to decode; None is the models' default.
        max_rows: Requests that a replica decodes at the same time, per model.
        device: None is "cuda" if a replica has GPUs, else "cpu".
        api_keys: Requests need one of them; empty allows all.
        min_replicas: Ray keeps at least these.
        max_replicas: Ray starts at most these.
        num_cpus: CPUs that a replica reserves.
        num_gpus: GPUs that a replica reserves.

    Raises:
        ArgumentError: If a value is not allowed, or Ray Serve is not installed.
        UnknownNameError: If the recipe does not exist.
    """
    names = [models] if isinstance(models, str) else list(models)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ArgumentError(f"models={shown(models)} is not allowed; give names, folders or Hub ids")
    check_integer("max_rows", max_rows, 1, 4096)
    check_integer("max_replicas", max_replicas, 1, 2**20)
    check_integer("min_replicas", min_replicas, 0, max_replicas)
    if recipe is not None:
        parse(recipe)
    try:
        from ray import serve
    except ImportError:
        raise ArgumentError(f"Ray Serve is not installed; {install_extra('ray,serve')}") from None
    build = _builder(names, recipe, max_rows, device or ("cuda" if num_gpus else "cpu"), tuple(api_keys))
    scaling = {"min_replicas": min_replicas, "max_replicas": max_replicas, "target_ongoing_requests": max_rows}
    made = serve.deployment(serve.ingress(build)())
    return made.options(
        name="mmspec",
        autoscaling_config=scaling,
        max_ongoing_requests=max_rows + MAX_WAITING,
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
    ).bind()


def _builder(
    names: Sequence[str], recipe: str | None, max_rows: int, device: str, api_keys: tuple[str, ...]
) -> Callable[[], Any]:
    """A function that a replica calls for its ASGI application."""

    def build() -> Any:
        from mmspec.loading import load
        from mmspec.serving.app import Application
        from mmspec.serving.load import served_model
        from mmspec.serving.settings import ServerSettings

        chosen = None if recipe is None else parse(recipe)
        served = []
        for name in names:
            pipe = load(name, device=device)
            if hasattr(pipe, "set_progress_bar_config"):
                pipe.set_progress_bar_config(disable=True)
            served.append(served_model(name, pipe, chosen, max_rows, MAX_WAITING))
        return Application(served, ServerSettings(api_keys=api_keys)).asgi

    return build
