"""No command follows a link that stands in a folder under a name that the command computes."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bulk_pipe import BulkPipe
from fake_pipe import evaluated_pipe
from trainable import PROMPTS, settings, tiny_pipe

import mmspec.cli.pipelines
from mmspec.cli.app import main
from mmspec.serving.engines import new_engine
from mmspec.serving.generation import DecodingRequest
from mmspec.serving.learning import learning
from mmspec.training.kinds import new_drafter

Patch = pytest.MonkeyPatch
SAMPLES = "--sequences 6 --held-out 1 --batch 2 --depth 2"
TRAINING = f"{SAMPLES} --steps 2 --save-every 1 --validate-every 1 --hidden 16"
"""Options of a training that takes a moment."""


def generate(format: str) -> Callable[[Path, Patch], int]:
    pipe = BulkPipe()

    def run(out: Path, patch: Patch) -> int:
        patch.setattr(mmspec.cli.pipelines, "load_generator", lambda *_: pipe)
        # One more prompt each time, so that there is something to write.
        count = 3 * (1 + out.exists())
        (out.parent / "prompts.txt").write_text("".join(f"prompt {i}\n" for i in range(count)))
        pack = [] if format == "files" else ["--pack", "2"]
        return main(
            ["generate", "--prompts", str(out.parent / "prompts.txt"), "-o", str(out), "--format", format, *pack]
        )

    return run


def evaluate(out: Path, patch: Patch) -> int:
    evaluated_pipe(patch)
    metrics = ["--recipes", "plain,scd,lantern:delta=0.2", "--metrics", "attributes"]
    return main(["eval", "-o", str(out), *metrics, "--limit", "2", "--seeds", "0..1"])


def report(*more: str) -> Callable[[Path, Patch], int]:
    def run(out: Path, patch: Patch) -> int:
        if not out.exists():
            assert evaluate(out, patch) == 0
        return main(["report", str(out), *more])

    return run


def train(*words: str) -> Callable[[Path, Patch], int]:
    def run(out: Path, patch: Patch) -> int:
        patch.setattr(mmspec.cli.train_drafter, "load_pipeline", lambda *_: tiny_pipe())
        (out.parent / "prompts.txt").write_text("".join(f"{text}\n" for text in PROMPTS))
        prompts = ["--prompts", str(out.parent / "prompts.txt")]
        return main(["train-drafter", "-o", str(out), *prompts, *words])

    return run


def judge(out: Path, patch: Patch) -> int:
    from mmspec.cli import train_judge
    from mmspec.methods.judge import training
    from mmspec.methods.judge.head import Judge

    patch.setattr(train_judge, "load_pipeline", lambda *_: tiny_pipe())
    patch.setattr(train_judge, "image_distance", lambda *_: None)
    patch.setattr(training, "train_judge", lambda *_: (Judge(4, 4, "shapes"), {"quality": 1.0}))
    (out.parent / "prompts.txt").write_text("".join(f"{text}\n" for text in PROMPTS))
    return main(
        [
            "train-judge",
            "-o",
            str(out),
            "--metric",
            "shapes",
            "--prompts",
            str(out.parent / "prompts.txt"),
            "--held-out",
            "1",
        ]
    )


def learn(out: Path, patch: Patch) -> int:
    """`serve --learn`, without HTTP."""
    pipe, recipe, first = tiny_pipe(), "medusa:window=3", out.parent / "first"
    new_drafter(pipe, settings("medusa")).save_pretrained(first)
    pipe.add_drafter(first)

    async def serve() -> None:
        engine = learning(new_engine(pipe, recipe, 4, 64), pipe, recipe, out)
        for i in range(8):
            async for _ in engine.generate(PROMPTS[i % 4], DecodingRequest(i, recipe)):
                pass
        await asyncio.gather(*engine._tasks)
        await engine.aclose()

    asyncio.run(serve())
    return 0


def outputs(*words: str) -> Callable[[Path, Patch], int]:
    """A command that writes several files into a folder; what stands there is looked at before a model is loaded."""

    def run(out: Path, patch: Patch) -> int:
        if not out.exists():
            out.mkdir()
            for i in range(2):
                (out / f"{i}{words[-1]}").write_text("")
            return 0
        return main([*words[:-1], "-o", str(out)])

    return run


COMMANDS: dict[str, Callable[[Path, Patch], int]] = {
    "generate": generate("files"),
    "generate webdataset": generate("webdataset"),
    "generate parquet": generate("parquet"),
    "eval": evaluate,
    "report": report(),
    "report svg": report("--format", "svg"),
    "train-drafter medusa": train("--kind", "medusa", *TRAINING.split()),
    "train-drafter retrieval": train("--kind", "retrieval", *SAMPLES.split()),
    "train-judge": judge,
    "serve --learn": learn,
    "image": outputs("image", "a red circle", "-n", "2", ".png"),
    "speak": outputs("speak", "one", "two", ".wav"),
}
# These write files that the user names, or a folder that must not exist, or nothing.
NAMED = {"music", "video", "check", "measure", "convert", "export-drafter", "demo", "ls", "env", "bench", "serve"}


def state(folder: Path) -> dict[Path, tuple[int, int]]:
    """Every file and folder, with what changes when one is written or replaced."""
    return {path: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


def test_every_command_is_looked_at() -> None:
    import typer

    from mmspec.cli.app import app

    names = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert names == {name.split()[0] for name in COMMANDS} | NAMED


@pytest.mark.parametrize("name", COMMANDS)
def test_links_in_the_place_of_computed_names_are_not_followed(
    name: str, tmp_path: Path, monkeypatch: Patch, capsys: Any
) -> None:
    run, made = COMMANDS[name], tmp_path / "made" / "out"
    made.parent.mkdir()
    assert run(made, monkeypatch) == 0
    capsys.readouterr()
    places = sorted(path.relative_to(made) for path in made.rglob("*"))
    assert places
    # All samples at once, for there are many; all else one by one, since the first link may end a command.
    samples = [place for place in places if place.suffix in (".png", ".wav") and (made / place).is_file()]
    for number, links in enumerate([samples, *([place] for place in places if place not in samples)]):
        case = tmp_path / str(number)
        shutil.copytree(made.parent, case)
        (case / "elsewhere").mkdir()
        for i, place in enumerate(links):
            os.rename(case / "out" / place, case / "elsewhere" / str(i))
            (case / "out" / place).symlink_to(case / "elsewhere" / str(i))
        for folder in [path for path in (case / "elsewhere").iterdir() if path.is_dir()]:
            (folder / "keep.png").write_text("of the user")
        before = state(case / "elsewhere")
        status = run(case / "out", monkeypatch)
        said = capsys.readouterr().err.strip()
        assert state(case / "elsewhere") == before, links
        assert status in (0, 1, 2) and "Traceback" not in said, said
        assert status == 0 or said.splitlines()[-1].startswith("mmspec: "), said
