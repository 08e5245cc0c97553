"""What fuzzers share: hostile values, the oracle, and models whose decoding is cut short."""

from __future__ import annotations

import io
import os
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from mmspec.cli.app import main
from mmspec.errors import MMSpecError

SECONDS = 30  # after which a case counts as a hang
LONGEST = 5_000  # characters of a message

# Faults that are known and not mended yet: "exception file". A fuzzer counts them and does not fail.
KNOWN: tuple[str, ...] = ()

WHOLE = (
    "-1", "0", "1", "2", "7", "1e3", "1.5", "99999999999999999999", "9" * 5000, "", "x", "\u0663", "nan", "0x10", " 3",
)  # fmt: skip
NUMBERS = (*WHOLE, "0.5", "1.0", "inf", "-inf", "1e400", "-0.0", "1e-300", "0,5")
TEXTS = (
    "", " ", "-", "--", "x", "\udcff", "\x01", "a\nb", "x" * 5000, "%s%n", "{}", "../..", "~", "/",
    "/dev/null", "/proc/self/mem", "scd:window=1..", "scd:window=4..8", "lantern:delta=0.1|0.2", "plain",
    "nosuch", "\u202e",
    "\N{PILE OF POO}" * 50, "gsd:", "scd:=", "scd:window", "draft+lantern", "-0", "None", "builtin", "shapes", "spoken",
    "out.png", "out.wav", "new", "new/x.png", "folder", "empty", "garbage.safetensors", "garbage.json", "deep.json",
    "deep.yaml", "garbage.npz", "garbage.wav", "garbage.png", "huge.png", "model", "results", "prompts.txt", "cpu",
    "cuda:99", "gpu", "meta", "all", "entropy", "fd@shapes", "wer@spoken", "fd@", "@", "clip", "a circle",
)  # fmt: skip
"""Words for options and arguments; those without a slash may be files of `hostile_files`."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**400, 0.5, -1.0, float("nan"), float("inf"), 1e308, "", "x",
    "\ud800", b"x", [], [1], [None], ["a red circle", 3], {}, {"a": 1}, (), object(), int, lambda: None, Path("x"), 1j,
)  # fmt: skip
"""Values for arguments of the Python API."""

EXTREME_SETTINGS: tuple[Any, ...] = (
    None, True, 0, 1, -5, 3, 2**31, 2**62, 10**30, 0.5, -1.0, 1e308, "", "x", "../..", "torch.nn:Module", [], [7],
    ["a", "b"], {}, {"a": [1]}, [[[]]],
)  # fmt: skip
"""Values for settings of a model."""


class Reached(BaseException):
    """The arguments were accepted: decoding would begin."""


@dataclass
class Tally:
    """Counts of outcomes by category, and the cases that are faults.

    Attributes:
        counts: By category and outcome.
        faults: One line each.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, category: str, outcome: str, case: object, detail: str = "") -> str:
        """Counts a case and returns its outcome; one that begins with "fault" is kept with its case, unless known."""
        if outcome.startswith("fault") and any(known and known in detail for known in KNOWN):
            outcome = "known fault"
        self.counts[category, outcome] += 1
        if outcome.startswith("fault"):
            self.faults.append(f"{category}: {outcome}: {str(case)[:300]}: {detail[:400]}")
        return outcome

    def lines(self) -> Iterator[str]:
        for category in sorted({category for category, _ in self.counts}):
            own = {outcome: n for (name, outcome), n in sorted(self.counts.items()) if name == category}
            yield f"{category}: {sum(own.values())} tried; " + ", ".join(f"{n} {outcome}" for outcome, n in own.items())


TALLY = Tally()


def check_no_faults(before: int) -> None:
    """Fails with the faults that were found since `before = len(TALLY.faults)`."""
    found = TALLY.faults[before:]
    assert not found, "\n".join([f"{len(found)} faults", *found[:40]])


class Hang(BaseException):
    """A case took longer than `SECONDS`."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Raises `Hang` in the block after `SECONDS`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def reached(*arguments: Any, **options: Any) -> Any:
    raise Reached


def cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches whatever takes long, so that accepted arguments raise `Reached`; embedded models are loaded once."""
    import mmspec.decoding.assembly as assembly
    import mmspec.loading
    import mmspec.metrics.bench.kernels as kernels
    import mmspec.metrics.bench.steps as steps
    import mmspec.testing.columns as columns
    import mmspec.testing.exactness as exactness
    import mmspec.testing.latents as latents
    import mmspec.training.trainer as trainer

    for name in ("running_batch",):
        monkeypatch.setattr(assembly, name, reached)
    for module, name in [
        (exactness, "check"), (columns, "check_columns"), (latents, "check_latents"), (kernels, "bench_kernels"),
        (steps, "bench_steps"), (trainer.Trainer, "train"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, reached)
    load = mmspec.loading.load
    loaded: dict[str, Any] = {}

    def once(model: Any = "shapes", **options: Any) -> Any:
        given = {
            key: value for key, value in options.items() if value is not None and (key, value) != ("device", "cpu")
        }
        if model not in ("shapes", "spoken") or given:
            return load(model, **options)
        if model not in loaded:
            loaded[model] = load(model)
        return loaded[model]

    monkeypatch.setitem(vars(mmspec), "load", once)


def hostile_files(folder: Path) -> None:
    """Writes the files that `TEXTS` names."""
    (folder / "folder").mkdir()
    (folder / "results").mkdir()
    (folder / "results" / "results.json").write_text('{"schema_version": 2, "rows": []}')
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"model_type": "llama", "architectures": [7]}')
    (folder / "model" / "model_index.json").write_text('{"_class_name": ["x"]}')
    (folder / "images").mkdir()
    from PIL import Image

    for i in range(4):
        Image.new("RGB", (64, 64), (60 * i, 9, 9)).save(folder / "images" / f"{i}.png")
    (folder / "empty").write_bytes(b"")
    noise = bytes(range(256)) * 8
    for name in ("garbage.safetensors", "garbage.json", "garbage.npz", "garbage.wav", "garbage.png"):
        (folder / name).write_bytes(noise)
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "deep.yaml").write_text("a: " + "[" * 100_000)
    header = bytes.fromhex("89504e470d0a1a0a0000000d494844520000ea600000ea600802000000")
    (folder / "huge.png").write_bytes(header + b"\0" * 40)
    (folder / "prompts.txt").write_text("a red circle above a blue square\n" * 4)


def run_command(category: str, arguments: list[str]) -> str:
    """Runs a command in the current folder and judges it; returns the outcome.

    Refusals must be one line on stderr with exit status 2, write nothing to stdout and leave no file; commands whose
    arguments are accepted must reach decoding or end with status 0 or 1. New files are deleted.
    """
    before = set(os.listdir())
    out, err = io.StringIO(), io.StringIO()
    detail = ""
    try:
        with time_limit(), redirect_stdout(out), redirect_stderr(err):
            code = main(arguments)
        outcome = _judge(code, out.getvalue(), err.getvalue(), set(os.listdir()) - before)
        detail = err.getvalue()
    except Reached:
        outcome = "accepted"
    except Hang:
        outcome = "fault: hang"
    except BaseException as error:
        outcome, detail = "fault: traceback", fault(error)
    for name in set(os.listdir()) - before:
        path = Path(name)
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return TALLY.add(category, outcome, arguments, detail)


def _judge(code: int, out: str, err: str, new: set[str]) -> str:
    if code in (0, 1):
        return "accepted"
    if code != 2:
        return f"fault: exit status {code}"
    if not err.startswith("mmspec: error: ") or err.count("\n") != 1:
        return "fault: not one line"
    if len(err) > LONGEST:
        return "fault: long line"
    if out:
        return "fault: refusal on stdout"
    return "fault: files left" if new else "refused"


def run_python(category: str, case: object, work: Callable[[], object]) -> str:
    """Calls a function and judges it: an `MMSpecError`, or a result; returns the outcome."""
    detail = ""
    try:
        with time_limit(), redirect_stderr(io.StringIO()):
            work()
        outcome = "accepted"
    except Reached:
        outcome = "accepted"
    except MMSpecError as error:
        detail = str(error)
        outcome = "refused" if "\n" not in detail and len(detail) < LONGEST else "fault: message"
    except Hang:
        outcome = "fault: hang"
    except BaseException as error:
        outcome, detail = "fault: exception", fault(error)
    return TALLY.add(category, outcome, case, detail)


def fault(error: BaseException) -> str:
    """`TypeError file.py: message`, the file being the last of mmspec in the traceback."""
    if isinstance(error, (KeyboardInterrupt, pytest.fail.Exception)):
        raise error
    root = str(Path(__file__).parents[2])
    own = [
        f"{Path(frame.filename).relative_to(root)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(root) and "/tests/" not in frame.filename
    ]
    return f"{type(error).__name__} {own[-1] if own else '?'}: {error}"
