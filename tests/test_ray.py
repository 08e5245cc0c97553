"""Ray Data with `mmspec.Generator`, and Ray Serve with the server, on this machine."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmspec.bulk.generator import Generator

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

PROMPTS = [
    f"a {color} {shape}" for color in ("red", "green", "blue", "yellow") for shape in ("circle", "star", "cross")
]


@pytest.fixture(scope="module")
def ray(root: Path) -> Iterator[Any]:
    os.environ["RAY_TRAIN_V2_ENABLED"] = "0"
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    import ray

    paths = os.pathsep.join(map(str, (root, root / "tests" / "helpers")))
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}},
    )
    yield ray
    ray.shutdown()


def kill_one(calls: Path, killed: list[int]) -> None:
    """Kills the first process that makes a second call, in the middle of it."""
    while not killed:
        seen = calls.read_text().split() if calls.exists() else []
        for process in seen:
            if seen.count(process) == 2:
                os.kill(int(process), signal.SIGKILL)
                killed.append(int(process))
                return
        time.sleep(0.02)


def test_a_killed_worker_loses_and_doubles_nothing(ray: Any, tmp_path: Path) -> None:
    from watched_generator import WatchedGenerator

    rows = [{"prompt": prompt, "seed": i} for i, prompt in enumerate(PROMPTS * 2)]
    killed = list[int]()
    watcher = threading.Thread(target=kill_one, args=(tmp_path / "calls", killed), daemon=True)
    watcher.start()
    dataset = ray.data.from_items(rows, override_num_blocks=6).map_batches(
        WatchedGenerator, fn_constructor_args=[str(tmp_path)], concurrency=2, batch_size=4
    )
    found = dataset.take_all()
    watcher.join(10)
    assert killed
    assert len({row["process"] for row in found}) >= 2
    assert sorted(row["seed"] for row in found) == list(range(len(rows)))
    assert len({row["name"] for row in found}) == len(rows)
    here = Generator("shapes", recipe="scd")({"prompt": [r["prompt"] for r in rows], "seed": [r["seed"] for r in rows]})
    expected = dict(zip(here["name"], here["image"], strict=True))
    assert all(row["image"] == expected[row["name"]] for row in found)


def test_an_object_is_sent_to_tasks(ray: Any) -> None:
    generator = Generator("shapes", recipe="scd")
    found = ray.data.from_items([{"prompt": "a red circle", "seed": 0}]).map_batches(generator).take_all()
    here = generator({"prompt": ["a red circle"], "seed": [0]})
    assert [row["image"] for row in found] == here["image"].tolist() and list(found[0]["tokens"]) == here["tokens"][0]


def post(port: int, path: str, body: dict[str, Any]) -> Any:
    address = f"http://127.0.0.1:{port}{path}"
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=120)


def test_a_deployment_serves_and_streams(ray: Any) -> None:
    from ray import serve

    from mmspec.ray_serve import deployment

    port = 18731
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(deployment("shapes", recipe="scd", num_cpus=0.5), route_prefix="/")
        body: dict[str, Any] = {"model": "shapes", "prompt": "a red circle", "seed": 3, "response_format": "b64_json"}
        with post(port, "/v1/images/generations", body) as response:
            whole = json.load(response)["data"][0]["b64_json"]
        with post(port, "/v1/images/generations", body | {"stream": True, "partial_images": 2}) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            lines = [line[6:] for line in response.read().decode().splitlines() if line.startswith("data: {")]
        events = [json.loads(line) for line in lines]
        assert 1 <= len(events) <= 3 and events[-1]["b64_json"] == whole
    finally:
        serve.shutdown()
