"""Training of drafters: restarts are exact, and the result loads, drafts, and is refused for other models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from safetensors.torch import load_file, save_file
from trainable import PROMPTS, V, settings, tiny_pipe

import mmspec
from mmspec.cli import train_drafter
from mmspec.cli.app import main
from mmspec.errors import ArgumentError, ModelError
from mmspec.files.locks import locked
from mmspec.heads.checkpoint import load_head
from mmspec.heads.eagle import EagleHead
from mmspec.loading import add_drafter
from mmspec.methods.block.head import BlockHead
from mmspec.methods.grid.head import GridHead
from mmspec.methods.hydra.head import HydraHeads
from mmspec.methods.kangaroo.head import ExitAdapter
from mmspec.methods.medusa.head import MedusaHeads
from mmspec.methods.one_step.head import OneStepHead
from mmspec.methods.prompt.head import PromptTokens
from mmspec.methods.retrieval.head import Datastore
from mmspec.methods.retrieval.training import write_datastore
from mmspec.methods.swift.head import SkippedLayers
from mmspec.methods.swift.training import write_skipped_layers
from mmspec.training import sequences
from mmspec.training.acceptance_probe import DrafterAcceptance
from mmspec.training.kinds import KINDS
from mmspec.training.objectives import LOSSES, chain_loss, improvable, run_teacher
from mmspec.training.trainer import Trainer
from mmspec.vision.hf.pipeline import TransformersPipeline
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline

HEADS: dict[str, Any] = {
    "eagle": EagleHead, "medusa": MedusaHeads, "hydra": HydraHeads, "block": BlockHead, "grid": GridHead,
    "kangaroo": ExitAdapter, "prompt": PromptTokens, "one-step": OneStepHead,
}  # fmt: skip


class Killed(Exception):
    pass


def test_the_command_offers_the_kinds_and_losses_that_there_are() -> None:
    assert {*KINDS, "retrieval", "swift"} == {*train_drafter.KINDS}  # the last two are not trained
    assert set(LOSSES) == set(train_drafter.LOSSES)


def test_hydra_heads_beyond_the_sequences_learn_nothing(tmp_path: Path) -> None:
    pipe, chosen = tiny_pipe(), settings("hydra", depth=40, steps=1)
    trainer = Trainer(pipe, chosen, tmp_path)
    trainer.train(trainer.collect(), validate_every=1, save_every=1)
    assert trainer.record()["curve"][-1]["step"] == 1


def test_fewer_sequences_are_generated_together_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()

    def generate(prepare: Any, prompts: Sequence[str], seeds: Sequence[int]) -> torch.Tensor:
        sizes.append(len(prompts))
        if len(prompts) > 20:
            raise torch.OutOfMemoryError
        return torch.tensor(seeds)[:, None]

    monkeypatch.setattr(sequences, "chunks_per_call", lambda device: 4)
    monkeypatch.setattr(sequences, "generate", generate)
    sequences.write_sequences(tiny_pipe().prepare, ["0"], 40, 7, tmp_path, features=False)
    assert sizes == [40, 32, 16, 16, 8]
    found = sequences.read_sequences(tmp_path, 40, features=False).tokens
    assert found[:, 0].tolist() == list(range(7, 47))


@pytest.mark.parametrize("kind", ["eagle", "medusa", "block", "grid", "small"])
def test_a_restarted_training_ends_as_an_uninterrupted_one(kind: str, tmp_path: Path) -> None:
    pipe, chosen = tiny_pipe(), settings(kind)

    def train(folder: Path, until: int) -> dict[str, Any]:
        def on_step(step: int, loss: float) -> None:
            if step == until:
                raise Killed

        folder.mkdir(exist_ok=True)
        trainer = Trainer(pipe, chosen, folder)
        trainer.train(trainer.collect(), validate_every=4, save_every=2, on_step=on_step)
        return trainer.record()

    whole = train(tmp_path / "whole", 0)
    with pytest.raises(Killed):
        train(tmp_path / "killed", 5)  # one step after the checkpoint, which is lost
    (tmp_path / "killed" / "work" / "sequences" / "0000016.safetensors").write_bytes(b"half a file")
    resumed = train(tmp_path / "killed", 0)
    assert resumed["curve"] == whole["curve"] and [point["step"] for point in whole["curve"]] == [0, 4, 6]
    name = "model.safetensors" if kind != "small" else "diffusion_pytorch_model.safetensors"
    assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    if kind == "block":  # vLLM applies the word to layers without a window, as these are
        head = load_head(tmp_path / "whole")
        assert isinstance(head, BlockHead) and head.sliding_window_non_causal and not head.sliding_layers
    with pytest.raises(ArgumentError, match="holds a training with another lr and seed"):
        Trainer(pipe, settings(kind, lr=1e-3, seed=3), tmp_path / "whole")


@pytest.mark.parametrize("kind", ["eagle", "small"])
def test_the_drafter_of_the_best_step_is_kept(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As measured, the drafter gets worse after step 3; a training that is resumed keeps the same one."""
    tokens_per_call = {0: 1.0, 1: 1.5, 2: 2.0, 3: 2.0, 4: 1.75, 5: 1.5, 6: 1.25}
    pipe, chosen = tiny_pipe(), settings(kind)
    weights: dict[int, dict[str, torch.Tensor]] = {}

    def train(folder: Path, until: int) -> Trainer:
        folder.mkdir(exist_ok=True)
        trainer = Trainer(pipe, chosen, folder)
        measured = lambda *_: DrafterAcceptance([None], tokens_per_call[trainer.step])  # noqa: E731
        monkeypatch.setattr("mmspec.training.trainer.evaluate_drafter", measured)

        def on_step(step: int, loss: float) -> None:
            weights[step] = {name: value.half() for name, value in trainer.model.state_dict().items()}
            if step == until:
                raise Killed

        trainer.train(trainer.collect(), validate_every=1, save_every=2, on_step=on_step)
        return trainer

    for killed_at in (4, 6):  # before and after the checkpoint that has the best step
        folder = tmp_path / str(killed_at)
        with pytest.raises(Killed):
            train(folder, killed_at)
        assert train(folder, 0).best.step == 3
        assert json.loads((folder / "training.json").read_text())["best_step"] == 3
        stored = load_file(folder / f"{'diffusion_pytorch_model' if kind == 'small' else 'model'}.safetensors")
        assert stored.keys() <= weights[3].keys()
        assert all(torch.equal(value, weights[3][name]) for name, value in stored.items())
        assert not all(torch.equal(value, weights[6][name]) for name, value in stored.items())


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("eagle", "smooth-l1+ce"),
        ("medusa", "tvd"),
        ("hydra", "smooth-l1+ce"),
        ("block", "lk"),
        ("grid", "kl"),
        ("kangaroo", "kl"),
        ("prompt", "kl"),
        ("one-step", "kl"),
        ("small", "kl"),
    ],
)
def test_a_trained_drafter_loads_and_drafts(kind: str, loss: str, tmp_path: Path) -> None:
    pipe = tiny_pipe()
    trainer = Trainer(pipe, settings(kind, loss=loss, steps=30, lr=1e-2), tmp_path)
    losses: list[float] = []
    trainer.train(trainer.collect(), 100, 100, on_step=lambda step, value: losses.append(value))
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])
    last = trainer.curve[-1]
    assert len(last.acceptance) == 2 and all(0 < (share or 0) <= 1 for share in last.acceptance)
    assert last.tokens_per_call > 1
    recipe = {"small": "draft:window=3", "prompt": "prompt:branch=1/1"}.get(kind, f"{kind}:window=3")
    if kind != "small":
        loaded: Any = HEADS[kind].from_pretrained(tmp_path)
        assert all(
            torch.equal(a, b) for a, b in zip(loaded.parameters(), load_head(tmp_path).parameters(), strict=True)
        )
    add_drafter(pipe, tmp_path)
    pipe.save_pretrained(tmp_path / "pipe")
    for each in (pipe, LlamaGenPipeline.from_pretrained(tmp_path / "pipe", low_cpu_mem_usage=False)):
        each.set_progress_bar_config(disable=True)
        plain, out = (
            each(list(PROMPTS), recipe=r, seed=0, temperature=0, output_type="latent") for r in ("plain", recipe)
        )
        assert torch.equal(plain.tokens, out.tokens) and (out.stats.draft_calls > 0) == (kind != "prompt")


def test_values_of_losses() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.25, 0.5])
    assert LOSSES["kl"](p, q, None, None).item() == pytest.approx(0.6931, abs=1e-4)
    assert LOSSES["tvd"](p, q, None, None).item() == pytest.approx(0.5)
    assert LOSSES["kl"](p, p, None, None).item() == LOSSES["tvd"](p, p, None, None).item() == 0
    # The reward is 1 for the first two tokens, of which q has one half: the standard deviation is 0.5.
    assert LOSSES["tvd++"](p, q, None, None).item() == pytest.approx(1.0)
    f, g = torch.zeros(4), torch.full((4,), 0.5)
    assert LOSSES["smooth-l1+ce"](p, q, f, g).item() == pytest.approx(0.125 + 0.13863, abs=1e-4)


def test_tvd_plus_has_the_gradient_of_a_normalized_reward() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 7, generator=generator, requires_grad=True)
    p, q = torch.randn(5, 7, generator=generator).softmax(-1), logits.softmax(-1)
    LOSSES["tvd++"](p, q, None, None).sum().backward()
    # The policy gradient with the advantage (reward - mean) / deviation, summed over all tokens.
    reward, q = (p > q).float(), q.detach()
    mean = (q * reward).sum(-1, keepdim=True)
    advantage = (reward - mean) / (q * (reward - mean) ** 2).sum(-1, keepdim=True).sqrt()
    wanted = -(q * advantage - q * (q * advantage).sum(-1, keepdim=True))
    assert logits.grad is not None and torch.allclose(logits.grad, wanted, atol=1e-6)


def test_positions_that_a_reference_does_better_at_are_selected() -> None:
    own = torch.tensor([[0.9, 0.5, 0.4, 0.9]])
    reference = torch.tensor([[0.8, 0.1, 0.3, 0.0]])
    mask = torch.tensor([[True, True, True, False]])
    assert improvable(own, reference, mask, 0.34).tolist() == [[False, True, False, False]]
    assert improvable(own, reference, mask, 0.01).sum() == 1
    assert torch.equal(improvable(own, reference, mask, 1.0), mask)


def test_a_small_model_learns_where_it_lags_behind_a_reference(tmp_path: Path) -> None:
    def train(folder: str, **changes: Any) -> Trainer:
        trainer = Trainer(tiny_pipe(), settings("small", steps=10, **changes), tmp_path / folder)
        trainer.train(trainer.collect(), 100, 100)
        return trainer

    train("reference")
    selected, every = train("selected", reference=str(tmp_path / "reference"), select=0.4), train("every")
    assert selected.record()["settings"]["select"] == 0.4
    # The same first weights, sequences and order: only the positions differ.
    assert selected.curve[0] == every.curve[0] and selected.curve[-1] != every.curve[-1]


def test_the_loss_of_chains() -> None:
    rejected = torch.tensor([[0.2, 0.5, 0.1], [0.4, 0.0, 0.9]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    wanted = -(torch.tensor([0.8 + 0.8 * 0.5 + 0.8 * 0.5 * 0.9, 0.6 + 0.6]).log().mean())
    assert chain_loss("lk", rejected, mask).item() == pytest.approx(wanted.item(), abs=1e-5)
    assert chain_loss("tvd", rejected, mask).item() == pytest.approx(1.2 / 5)
    known = torch.tensor([[False, True, True]])  # the first draft is known, so that the chain begins with the second
    assert chain_loss("lk", rejected[:1], known).item() == pytest.approx(-np.log(0.5 + 0.45), abs=1e-5)


def test_stored_features_equal_recomputed_ones(tmp_path: Path) -> None:
    pipe = tiny_pipe()
    trainer = Trainer(pipe, settings("eagle"), tmp_path)
    sequences, indices = trainer.collect(), [0, 3, 4]
    prepared = pipe.prepare([PROMPTS[i % 3] for i in indices], 1)
    tokens, features = sequences.tokens[indices], sequences.features_of(indices)
    stored, recomputed = run_teacher(prepared, tokens, features), run_teacher(prepared, tokens)
    assert torch.allclose(stored.features, recomputed.features, atol=1e-2)
    assert torch.allclose(stored.p, recomputed.p, atol=1e-2)


def test_heads_are_trained_for_transformers_models(tmp_path: Path) -> None:
    model = tiny_models.imagegpt()
    pipe = TransformersPipeline(model)
    pipe.set_progress_bar_config(disable=True)
    chosen = settings("medusa", prompts=("",), held_out=("",), sequences=4, steps=2)
    trainer = Trainer(pipe, chosen, tmp_path)
    trainer.train(trainer.collect(), 10, 10)
    add_drafter(pipe, tmp_path)
    outputs = [pipe([""], recipe=r, seed=0, temperature=0, output_type="latent") for r in ("plain", "medusa:window=3")]
    assert torch.equal(outputs[0].tokens, outputs[1].tokens)
    with pytest.raises(ArgumentError, match="mmspec cannot train a small ImageGPT"):
        Trainer(pipe, settings("small"), tmp_path / "other")


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a file of prompts; the command line loads the tiny pipeline."""
    monkeypatch.setattr(mmspec, "load", lambda model, device, dtype=None: tiny_pipe(), raising=False)
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    return tmp_path


def command(folder: Path, *options: str) -> list[str]:
    fixed = ["--prompts", str(folder / "prompts.txt"), "--held-out", "1", "--sequences", "4", "--steps", "2"]
    return ["train-drafter", "-o", str(folder / "out"), *fixed, "--batch", "2", "--depth", "2", *options]


def test_the_command_prints_its_folder_or_its_record(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(workspace, "--validate-every", "1")) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{workspace / 'out'}\n" and printed.err.count("tokens per call") == 4
    assert printed.err.splitlines()[-1].startswith("kept step ")
    assert main(command(workspace, "--validate-every", "1", "--json")) == 0  # already finished
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert printed.err == "" and [point["step"] for point in record["curve"]] == [0, 1, 2]
    stored = json.loads((workspace / "out" / "training.json").read_text())
    assert stored["curve"] == record["curve"] and stored["schema_version"] == 1
    best = max(record["curve"], key=lambda point: (point["tokens_per_call"], point["step"]))
    assert record["best_step"] == stored["best_step"] == best["step"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kind", "eagel"], "unknown kind 'eagel' (did you mean 'eagle'?)"),
        (["--loss", "mse"], "unknown loss 'mse'"),
        (["--kind", "small", "--loss", "smooth-l1+ce"], "--loss: 'smooth-l1+ce' compares features"),
        (["--held-out", "4"], "--held-out: 4 of 4 prompts leaves none to train on"),
        (["--prompts", "nowhere.txt"], "--prompts: cannot read 'nowhere.txt'"),
        (["--reference", "x"], "--reference requires --kind small"),
        (["--select", "0.2"], "--select requires --reference"),
        (["--drafter", "x"], "--drafter requires --kind small"),
        (["--kind", "small", "--drafter", "nowhere"], "drafter='nowhere' is not a folder or Hub id"),
        (["--sequences-of", "nowhere"], "--sequences-of: 'nowhere' holds no sequences of train-drafter"),
        (["-o", "no/such/folder"], "-o/--output: cannot write 'no/such/folder'"),
    ],
)
def test_bad_arguments_are_refused(
    workspace: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(workspace, *options)) == 2
    assert message in capsys.readouterr().err


def test_drafters_share_sequences(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(workspace)) == 0
    options = ["--kind", "medusa", "--steps", "1", "--sequences-of", str(workspace / "out")]
    other = ["-o", str(workspace / "other"), *options]
    assert main(command(workspace, *other, "--seed", "1")) == 2
    assert "holds sequences of other prompts, another seed" in capsys.readouterr().err

    def generate(*_: Any) -> torch.Tensor:
        raise AssertionError("sequences are generated again")

    monkeypatch.setattr(sequences, "generate", generate)
    assert main(command(workspace, *other)) == 0
    shared, own = (
        sequences.read_sequences(workspace / name / "work" / "sequences", 4, features=False).tokens
        for name in ("out", "other")
    )
    assert torch.equal(shared, own)


@pytest.mark.parametrize("lr", [0.0, -1.0, 1.5, float("nan")])
def test_a_learning_rate_out_of_range_is_refused(lr: float) -> None:
    with pytest.raises(ArgumentError, match=f"--lr: {lr} is not allowed; it must be above 0, and 1 at most"):
        settings("eagle", lr=lr)


def test_a_folder_in_which_another_process_trains_is_refused(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = workspace / "out" / "work"
    work.mkdir(parents=True)
    with locked(work, "-o/--output"):
        assert main(command(workspace)) == 2
    assert f"-o/--output: '{work}' is in use by another mmspec process" in capsys.readouterr().err
    assert main(command(workspace)) == 0


def test_a_drafter_of_another_model_is_refused(tmp_path: Path) -> None:
    MedusaHeads(V + 1, 32, 2).save_pretrained(tmp_path / "a")
    MedusaHeads(V, 64, 2).save_pretrained(tmp_path / "b")
    for name, message in (("a", "vocab_size 13, the model 12"), ("b", "hidden_size 64, the model 32")):
        with pytest.raises(ModelError, match=message):
            add_drafter(tiny_pipe(), tmp_path / name)


@pytest.mark.slow
def test_two_processes_train_one_drafter(workspace: Path) -> None:
    """Under torchrun each process takes half of every batch; the drafter is the same up to rounding."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = workspace / "run.py"
    here = Path(__file__).parent
    script.write_text(
        f"import sys\nsys.path[:0] = {[str(here), str(here.parent / 'helpers')]}\nimport mmspec, test_training\n"
        "mmspec.load = lambda model, device, dtype: test_training.tiny_pipe()\n"
        "from mmspec.cli.app import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29631"]
    subprocess.run([*launch, str(script), *command(workspace)], check=True, env=env, capture_output=True)
    assert main(command(workspace, "-o", str(workspace / "alone"))) == 0
    together, alone = load_head(workspace / "out"), load_head(workspace / "alone")
    for a, b in zip(together.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(a, b, atol=2e-3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint of an unfinished training."""
    folder = tmp_path_factory.mktemp("trained")
    trainer = Trainer(tiny_pipe(), settings("medusa", steps=2), folder)
    trainer.train(trainer.collect(), validate_every=2, save_every=1)
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda state: 3,
        lambda state: [state],
        lambda state: {"x": torch.zeros(1)},
        lambda state: {**state, "settings": None},
        lambda state: {**state, "model": {}},
        lambda state: {**state, "model": {**state["model"], "more": torch.zeros(1)}},
        lambda state: {**state, "model": {name: value[:1] for name, value in state["model"].items()}},
        lambda state: {**state, "model": {name: 3 for name in state["model"]}},
        lambda state: {**state, "best": {}},
        lambda state: {**state, "best": {name: 3 for name in state["best"]}},
        lambda state: {**state, "optimiser": {}},
        lambda state: {**state, "optimiser": {"state": 3, "param_groups": "x"}},
        lambda state: {**state, "curve": [3]},
        lambda state: {**state, "curve": [{"x": 3}]},
        lambda state: {**state, "step": "3"},
        lambda state: {name: value for name, value in state.items() if name != "losses"},
    ],
)
def test_checkpoints_of_something_else_are_refused(change: Any, trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "work" / "checkpoint.pt"
    file.parent.mkdir()
    state = torch.load(trained / "work" / "checkpoint.pt", weights_only=True)
    torch.save(change(state), file)
    with pytest.raises((ArgumentError, ModelError), match=r"^-o/--output: ?.*checkpoint.pt'|holds a training") as error:
        Trainer(tiny_pipe(), settings("medusa", steps=2), tmp_path)
    assert "\n" not in str(error.value)


def test_damaged_checkpoints_are_named(trained: Path, tmp_path: Path) -> None:
    """Cut files, and files with one byte changed, load as they were or are refused with their name."""
    content = (trained / "work" / "checkpoint.pt").read_bytes()
    file = tmp_path / "work" / "checkpoint.pt"
    file.parent.mkdir()
    pipe, random = tiny_pipe(), torch.Generator().manual_seed(0)
    cuts = [content[:n] for n in torch.randint(0, len(content), (20,), generator=random).tolist()]
    flips = []
    for place in torch.randint(0, len(content), (40,), generator=random).tolist():
        flips.append(content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :])
    for damaged in (b"", *cuts, *flips):
        file.write_bytes(damaged)
        try:
            Trainer(pipe, settings("medusa", steps=2), tmp_path)
        except (ArgumentError, ModelError) as error:
            assert "-o/--output" in str(error) and "\n" not in str(error)


def test_seeds_and_chunks_of_any_size(tmp_path: Path) -> None:
    trainer = Trainer(tiny_pipe(), settings("medusa", seed=2**64 - 1, steps=1), tmp_path)
    chunk = tmp_path / "work" / "sequences" / "0000000.safetensors"
    chunk.parent.mkdir(parents=True)
    save_file({"tokens": torch.zeros(3, 2, dtype=torch.int32)}, chunk)  # of something else: generated again
    trainer.train(trainer.collect(), validate_every=1, save_every=1)
    assert load_head(tmp_path).kind == "medusa"


def test_a_datastore_is_built_from_the_models_own_sequences(tmp_path: Path) -> None:
    pipe, chosen = tiny_pipe(), settings("retrieval", sequences=5)
    record = write_datastore(pipe, chosen, tmp_path)
    assert record["curve"][0]["tokens_per_call"] >= 1 and (tmp_path / "training.json").is_file()
    store = load_head(tmp_path)
    assert isinstance(store, Datastore) and store.tokens.shape[0] == 5 and (store.tokens >= 0).all()
    pipe.add_drafter(tmp_path)
    assert pipe.heads["retrieval"] is not None
    assert write_datastore(pipe, chosen, tmp_path) == record  # the sequences are kept


@pytest.mark.parametrize(("kind", "write"), [("retrieval", write_datastore), ("swift", write_skipped_layers)])
def test_sequences_of_other_settings_are_not_taken(kind: str, write: Any, tmp_path: Path) -> None:
    pipe = tiny_pipe()
    other: list[dict[str, Any]] = [
        {"temperature": 0.5},
        {"guidance_scale": 3.0},
        {"seed": 9},
        {"prompts": PROMPTS[1:3]},
    ]
    write(pipe, settings(kind, sequences=5), tmp_path)
    for changes in other:
        with pytest.raises(ArgumentError, match="holds sequences of other prompts, another seed, temperature"):
            write(pipe, settings(kind, sequences=5, **changes), tmp_path)


def test_a_killed_training_does_not_go_on_with_sequences_of_other_settings(tmp_path: Path) -> None:
    Trainer(tiny_pipe(), settings("medusa"), tmp_path).collect()  # killed before its first checkpoint
    with pytest.raises(ArgumentError, match="holds sequences of other prompts, another seed, temperature"):
        Trainer(tiny_pipe(), settings("medusa", temperature=0.5), tmp_path).collect()


def test_sequences_of_another_drafter_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, chosen, other = tiny_pipe(), settings("hydra", sequences=18), tmp_path / "other"
    Trainer(pipe, settings("medusa", sequences=18), other).collect()
    folder = tmp_path / "new" / "work" / "sequences"
    sequences.take_sequences(other, folder, chosen, pipe)
    with monkeypatch.context() as patch:
        patch.setattr(sequences, "generate", lambda *_: pytest.fail("sequences are generated again"))
        found = Trainer(pipe, chosen, tmp_path / "new").collect()
    assert torch.equal(found.tokens, sequences.read_sequences(other / "work" / "sequences", 18).tokens)
    for changes, reason in (({"seed": 9}, "of other prompts, another seed"), ({"prompts": PROMPTS[1:3]}, "prompts")):
        with pytest.raises(ArgumentError, match=reason):
            sequences.take_sequences(other, tmp_path / "b", settings("hydra", sequences=18, **changes), pipe)
    retrained = tiny_pipe()
    with torch.no_grad():
        retrained.transformer.output.weight.mul_(2)
    for call in (
        lambda: sequences.take_sequences(other, tmp_path / "b", chosen, retrained),
        lambda: sequences.claim_folder(folder, chosen, retrained),
    ):
        with pytest.raises(ArgumentError, match="holds sequences of another model"):
            call()
    stored = json.loads((other / "work" / "sequences" / sequences.SETTINGS).read_text())
    del stored["model"]  # as earlier versions wrote it
    (other / "work" / "sequences" / sequences.SETTINGS).write_text(json.dumps(stored))
    known = load_file(other / "work" / "sequences" / "0000000.safetensors")
    for wrong in (known["tokens"] + V, known["tokens"] - 1 - V, known["tokens"].repeat(1, 2), known["tokens"][:, :0]):
        save_file({"tokens": wrong.contiguous()}, other / "work" / "sequences" / "0000000.safetensors")
        with pytest.raises(ArgumentError, match="--sequences-of: .* holds sequences of another model, of"):
            sequences.take_sequences(other, tmp_path / "c", chosen, pipe)
    (other / "work" / "sequences" / sequences.SETTINGS).write_bytes(b"\xff")
    for folder in (other, tmp_path / "missing"):
        with pytest.raises(ArgumentError, match="holds no sequences of train-drafter"):
            sequences.take_sequences(folder, tmp_path / "d", chosen, pipe)


def test_layers_to_skip_are_chosen_on_the_models_own_sequences(tmp_path: Path) -> None:
    pipe, chosen = tiny_pipe(), settings("swift", sequences=5)
    layer: Any = pipe.transformer.layers[0]
    layer.attention.wo.weight.data.zero_()
    layer.feed_forward.w2.weight.data.zero_()  # a layer that does nothing
    record = write_skipped_layers(pipe, chosen, tmp_path)
    assert record["order"] == [0] and record["curve"][0]["tokens_per_call"] > 2  # of 3; drafts have no guidance
    head = load_head(tmp_path)
    assert isinstance(head, SkippedLayers) and head.skip(0.4) == (0,)
    pipe.add_drafter(tmp_path)
    plain, out = (pipe(list(PROMPTS), recipe=r, temperature=0, output_type="latent") for r in ("plain", "swift"))
    assert torch.equal(plain.tokens, out.tokens) and out.stats.draft_calls > 0
    head.order.fill_(7)
    head.save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match="skips layers that a model of 2 layers does not have"):
        load_head(tmp_path / "other")
