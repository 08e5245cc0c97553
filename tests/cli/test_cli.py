"""The command line: output streams, exit codes and files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import mmspec
from mmspec.cli.app import main
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import Step
from mmspec.errors import PromptError, UnknownNameError
from mmspec.recipes import Recipe

PROMPT = "a red circle, \u00e9\u4e2d"
LENGTH = 8  # tokens per image of `Pipe`


class Output:
    def __init__(self, images: list[Image.Image], seeds: list[int], stats: Stats) -> None:
        self.images = images
        self.seeds = seeds
        self.stats = stats


class Pipe:
    """A pipeline whose images show their seed; it takes two target calls per batch, whatever the recipe is."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.config = {"recipe": "scd"}
        self.interrupt = False

    def set_progress_bar_config(self, *, disable: bool) -> None:
        assert disable

    def __call__(self, prompts: list[str], **options: Any) -> Output:
        self.calls.append({"prompts": prompts, **options})
        if any(not prompt.strip() for prompt in prompts):
            raise PromptError("the prompt is empty")
        rows = len(prompts) * options["num_images_per_prompt"]
        for target_calls in (1, 2):
            so_far = [torch.zeros(LENGTH * target_calls // 2, dtype=torch.int64)] * rows
            if options["on_step"] is not None:
                options["on_step"](Step(target_calls, rows * LENGTH * target_calls // 2, rows * LENGTH, so_far))
            if self.interrupt:
                raise KeyboardInterrupt
        seeds = [options["seed"] + i for i in range(rows)]
        parts = {"target": 0.2, "drafter": 0.1, "rule": 0.1, "other": 0.1}
        stats = Stats(2, rows * LENGTH, LENGTH / 2, [0.5, None], 0, 0.5, parts, 1 << 20)
        return Output([Image.new("RGB", (4, 4), (seed % 256, 0, 0)) for seed in seeds], seeds, stats)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pipe:
    """Replaces the model `shapes` by a `Pipe`, and changes to an empty folder."""
    pipe = Pipe()

    def load(model: str, **options: Any) -> Pipe:
        if model != "shapes":
            raise UnknownNameError(f"unknown model {model!r}")
        return pipe

    monkeypatch.setattr(mmspec, "load", load, raising=False)
    monkeypatch.chdir(tmp_path)
    return pipe


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_an_image_is_written_and_its_path_printed(
    pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "a red circle", "-o", "x.png", "--seed", "7"]) == 0
    assert capsys.readouterr() == ("x.png\n", "")
    with Image.open(tmp_path / "x.png") as image:
        assert image.getpixel((0, 0)) == (7, 0, 0)
    assert files(tmp_path) == ["x.png"]


def test_an_image_stores_its_settings(pipe: Pipe, tmp_path: Path) -> None:
    assert (
        main(
            ["image", "a red circle, \u00e9\u4e2d", "b", "-n", "2", "--recipe", "sjd", "--window", "8", "--top-k", "5"]
        )
        == 0
    )
    with Image.open(tmp_path / "out-3.png") as image:
        image.load()
        notes = dict(image.info)
    assert notes.pop("versions").startswith(f"mmspec {mmspec.__version__}, torch {torch.__version__.split('+')[0]}")
    assert notes == {"prompt": "b", "seed": "3", "recipe": "sjd:window=8", "model": "shapes", "top_k": "5"}
    with Image.open(tmp_path / "out-1.png") as image:
        assert image.info["prompt"] == PROMPT


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a"], ["out.png"]),
        (["a", "-o", "A.PNG"], ["A.PNG"]),
        (["a", "-n", "2", "-o", "x.png"], ["x-0.png", "x-1.png"]),
        (["a", "b", "-o", "new"], ["new", "new/0.png", "new/1.png"]),
        (["a", "-o", "new/"], ["new", "new/0.png"]),
    ],
    ids=" ".join,
)
def test_output_paths(pipe: Pipe, tmp_path: Path, arguments: list[str], expected: list[str]) -> None:
    assert main(["image", *arguments]) == 0
    assert files(tmp_path) == expected


def test_names_of_many_images_sort_in_order(pipe: Pipe, tmp_path: Path) -> None:
    assert main(["image", "a", "-n", "11", "-o", "x.png"]) == 0
    assert files(tmp_path)[:3] == ["x-00.png", "x-01.png", "x-02.png"]
    assert files(tmp_path)[-1] == "x-10.png"


def test_json_is_one_object(pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "a", "b", "-o", "new", "--json", "--seed", "5", "--recipe", "scd:coupling=gumbel"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert err == ""
    assert result["outputs"] == [str(Path("new/0.png")), str(Path("new/1.png"))]
    assert (result["recipe"], result["seed"], result["model"]) == ("scd:coupling=gumbel", 5, "shapes")
    assert result["stats"]["target_calls"] == 2
    assert result["stats"]["tokens"] == 2 * LENGTH
    assert result["stats"]["tokens_per_call"] == LENGTH / 2
    assert result["stats"]["seconds"] == 0.5


def test_options_reach_the_pipe(pipe: Pipe) -> None:
    options = {"temperature": 0.5, "top_k": 10, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8, "guidance_scale": 2.0}
    flags = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["image", "a", *flags]) == 0
    assert main(["image", "a"]) == 0
    first, second = pipe.calls
    assert {name: first[name] for name in options} == options
    assert not options.keys() & second.keys()  # models lack some of them
    assert first["recipe"] == Recipe("scd")


BAD = {
    "-n": (["a", "-n", "0"], r"-n"),
    "temperature": (["a", "--temperature", "-1"], "--temperature"),
    "top-p": (["a", "--top-p", "1.5"], "--top-p"),
    "seed": (["a", "--seed", "-2"], "--seed"),
    "unknown recipe": (["a", "--recipe", "scdd"], "did you mean 'scd'"),
    "unknown knob": (["a", "--recipe", "scd:windw=3"], "did you mean 'window'"),
    "window of a recipe without": (["a", "--recipe", "plain", "--window", "4"], "window"),
    "unknown model": (["a", "-m", "shaps"], "unknown model 'shaps'"),
    "empty prompt": ([" "], "prompt is empty"),
    "no prompt": ([], "PROMPT"),
    "unknown option": (["a", "--sed", "1"], "--seed"),
    "missing folder": (["a", "-o", "no/such/x.png"], "does not exist"),
    "missing parent": (["a", "b", "-o", "no/such"], "does not exist"),
    "other suffix": (["a", "-o", "x.jpg"], ".png"),
    "file for folder": (["a", "b", "-o", "taken"], "taken"),
    "folder under file": (["a", "-o", "taken/x.png"], "is not a folder"),
    "long name": (["a", "-o", "x" * 300 + ".png"], "name too long"),
    "no folder of files": (["a", "-o", "/proc/x.png"], "cannot write"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_invalid_input_prints_one_line_and_writes_nothing(
    pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["image", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mmspec: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert files(tmp_path) == ["taken"]


def test_the_output_is_checked_before_the_model_is_loaded(pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "a", "-m", "nosuch", "-o", "no/such/x.png"]) == 2
    assert "no/such" in capsys.readouterr().err


def test_an_interrupt_writes_nothing(pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe.interrupt = True
    assert main(["image", "a", "-o", "new"]) == 130
    assert capsys.readouterr() == ("", "mmspec: interrupted\n")
    assert files(tmp_path) == []


def test_a_failed_write_keeps_the_old_file(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / "x.png").write_bytes(b"old")
    monkeypatch.setattr(Path, "write_bytes", write)
    assert main(["image", "a", "-o", "x.png"]) == 1
    assert "No space left" in capsys.readouterr().err
    assert files(tmp_path) == ["x.png"]
    assert (tmp_path / "x.png").read_bytes() == b"old"


def test_progress_goes_to_a_terminal_only(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["image", "a"]) == 0
    out, err = capsys.readouterr()
    assert out == "out.png\n"
    assert "4.00 tokens per call" in err
    assert "tokens/s" in err
    assert main(["image", "a", "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_ls_marks_exact_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    parts = ["heads", "starts", "refreshes"]
    assert list(listing) == ["models", "adapters", "drafters", "recipes", "rules", "metrics", *parts]
    assert "shapes" in {entry["name"] for entry in listing["models"]}
    recipes = {entry["name"]: entry for entry in listing["recipes"]}
    assert recipes["scd"]["exact"] is True
    assert "window" in recipes["scd"]["knobs"]
    assert main(["ls", "recipes"]) == 0
    assert "shapes-latent" not in capsys.readouterr().out
    assert main(["ls", "adapters"]) == 0
    assert "JanusForConditionalGeneration" in capsys.readouterr().out
    assert main(["ls", "metrics"]) == 0
    assert "  fid " in capsys.readouterr().out
    assert main(["ls", "recipe"]) == 2
    assert "did you mean 'recipes'" in capsys.readouterr().err


def test_env_prints_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["mmspec"] == mmspec.__version__
    assert facts["torch"] == torch.__version__
    assert main(["env"]) == 0
    assert mmspec.__version__ in capsys.readouterr().out


def test_version_and_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"mmspec {mmspec.__version__}\n"
    for words in (["-h"], ["image", "-h"], ["bench", "image", "-h"]):
        assert main(words) == 0 and capsys.readouterr().out.startswith("Usage: mmspec")
    assert main(["image"]) == 2 and capsys.readouterr().err == "mmspec: error: Missing argument 'PROMPT'.\n"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from mmspec.cli.app import main; status = main(['--help']);"
        "heavy = {'torch', 'transformers', 'diffusers', 'numpy', 'PIL', 'rich'} & set(sys.modules);"
        "print(sorted(heavy)); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    for command in ("image", "bench", "ls", "env"):
        assert f"  {command}" in done.stdout


def test_the_module_is_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mmspec", "image", "a", "-n", "0"],
        cwd=Path(mmspec.__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mmspec: error: ")


def test_an_image_goes_to_stdout(pipe: Pipe, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["image", "a", "-o", "-"]) == 0
    out, _ = capfdbinary.readouterr()
    assert out.startswith(b"\x89PNG") and out.endswith(b"IEND\xaeB`\x82")
    for arguments in (["a", "b", "-o", "-"], ["a", "-o", "-", "--json"], ["a", "-n", "2", "-o", "-"]):
        assert main(["image", *arguments]) == 2
        out, err = capfdbinary.readouterr()
        assert out == b"" and err.startswith(b"mmspec: error: -o/--output: ")
    assert files(tmp_path) == []


@pytest.mark.parametrize("output", ["", " ", "x.png/"])
def test_outputs_that_are_neither_file_nor_folder_are_refused(
    output: str, pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "a", "-o", output]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "-o/--output" in err
    assert files(tmp_path) == []


def test_a_full_disk_is_a_failure_not_bad_input(pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "a", "-o", "/dev/full"]) == 1
    assert capsys.readouterr().err == "mmspec: error: cannot write '/dev/full': No space left on device\n"


def test_errors_quote_at_most_200_characters(pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 100_000
    for arguments in (
        ["image", "a", "--recipe", long], ["image", "a", "-o", long], ["image", "a", "-m", long],
        ["image", "a", "--seed", long], ["image", "a", f"--{long}"], [long],
        ["image", "a", "--recipe", f"scd:{long}=3"],
    ):  # fmt: skip
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert (err.count("\n"), len(err) < 2000) == (1, True), err[:100]


BROKEN_STREAMS = {"stderr closed": ("2>&-", 2), "stderr full": ("2>/dev/full", 2), "both closed": (">&- 2>&-", 2)}


@pytest.mark.parametrize(("redirection", "code"), BROKEN_STREAMS.values(), ids=BROKEN_STREAMS)
def test_errors_without_a_working_stderr_go_nowhere_and_keep_their_code(redirection: str, code: int) -> None:
    command = f"{sys.executable} -m mmspec ls nosuch {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_invalid_options_are_named_with_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in (("--batch", "0"), ("--batch", "a"), ("--limit", "-3"), ("--temperature", "warm")):
        assert main(["eval", "-o", "out", option, value]) == 2
        error = capsys.readouterr().err
        assert option in error and value in error.removeprefix("mmspec: error: Invalid value for").split(option)[1]
    assert main(["report"]) == 2 and capsys.readouterr().err == "mmspec: error: Missing argument 'DIR'.\n"


def test_an_interrupt_during_imports_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The entry point imports the command line inside of the block that catches interrupts."""
    import builtins

    from mmspec import __main__ as entry

    real = builtins.__import__

    def interrupted(name: str, *rest: Any) -> Any:
        if name == "mmspec.cli":
            raise KeyboardInterrupt
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert entry.main() == 130
    monkeypatch.undo()
    assert capsys.readouterr() == ("", "mmspec: interrupted\n")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_one_line(
    error: Exception, pipe: Pipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Pipe, "__call__", fail)
    assert main(["image", "a"]) == 1
    assert capsys.readouterr().err.startswith("mmspec: error: not enough memory")
