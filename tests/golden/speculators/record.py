"""Writes the folders beside it: what the classes of the package `speculators` save and compute, with random weights.

Run it in an environment with `speculators` (0.9.0, with torch and transformers); mmspec's tests read the folders and do
not need the package. With a folder as argument it writes nothing, but loads a drafter that mmspec has written with the
class of the package, and compares its logits with those in `expected.safetensors` there:

    python tests/golden/speculators/record.py            # record
    python tests/golden/speculators/record.py FOLDER     # check

Each recorded folder has what `save_pretrained` writes, and `expected.safetensors`: inputs, and logits by step. Drafters
of `CASES` have configurations of our choice; those of `TRAINED` have the ones that the training of the package makes by
default, or with the options that are listed.
"""

# mypy: ignore-errors
# The package has no types, and is not installed where types are checked.

import argparse
import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "helpers"))
from golden import waves  # noqa: E402

V, DRAFTED, D, SLOTS, STEPS = 24, 10, 16, 12, 3
KINDS = ("eagle3", "dflash", "dspark")
KEPT = 8  # slots past the window whose logits are kept


def import_models() -> dict[str, ModuleType]:
    """The packages of the models; packages that only training needs may be missing."""
    while True:
        try:
            import_module("speculators.utils.loading")
            return {kind: import_module(f"speculators.models.{kind}") for kind in KINDS}
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("speculators"):
                raise
            sys.modules[error.name] = MagicMock(__path__=[], __spec__=None)
            for name in [name for name in sys.modules if name.startswith("speculators")]:
                del sys.modules[name]


def layer_config(family, layers):
    from transformers import LlamaConfig, Qwen3Config

    sizes = dict(
        vocab_size=V, hidden_size=D, intermediate_size=24, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )  # fmt: skip
    config = (LlamaConfig if family == "llama" else Qwen3Config)(**sizes)
    config._attn_implementation = "eager"
    return config


def config_of(models, kind, family, layers, reduced, **options):
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    names = {"eagle3": "Eagle3SpeculatorConfig", "dflash": "DFlashSpeculatorConfig", "dspark": "DSparkSpeculatorConfig"}
    return getattr(models[kind], names[kind])(
        transformer_layer_config=layer_config(family, layers),
        draft_vocab_size=DRAFTED if reduced else V,
        speculators_config=SpeculatorsConfig(
            algorithm=kind,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["Qwen2ForCausalLM"]),
        ),
        **options,
    )


def fill(model):
    """Random weights, and a draft vocabulary that is not contiguous."""
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        p.data = torch.randn(p.shape, generator=generator) * 0.4 + (name.endswith("norm.weight") or "fc_norm" in name)
    if model.t2d is not None:
        tokens = torch.randperm(V, generator=generator)[:DRAFTED].sort().values
        model.d2t.copy_(tokens - torch.arange(DRAFTED))
        model.t2d.zero_()[tokens] = True
    return model.eval()


def class_of(models, kind):
    names = {"eagle3": "Eagle3DraftModel", "dflash": "DFlashDraftModel", "dspark": "DSparkDraftModel"}
    return getattr(models[kind], names[kind])


def inputs_of(layers):
    generator = torch.Generator().manual_seed(1)
    return {
        "tokens": torch.randint(V, (1, SLOTS), generator=generator),
        "hidden": torch.randn(1, SLOTS, layers * D, generator=generator),
    }


def trained(models, kind, options):
    """The model that `speculators train` begins with, for a tiny verifier."""
    from speculators.train.cli import build_draft_model
    from speculators.train.config.schema import TrainConfig
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with tempfile.TemporaryDirectory() as verifier:
        sizes = layer_config("qwen3", 8).to_dict() | {"max_position_embeddings": 4096}
        Qwen3ForCausalLM(Qwen3Config(**sizes)).save_pretrained(verifier)
        flat = {"verifier_name_or_path": verifier, "speculator_type": kind, "mask_token_id": 23, **options}
        settings = argparse.Namespace(**TrainConfig.from_flat({**flat, "draft_attn_impl": "eager"}).flatten())
        model = build_draft_model(settings, class_of(models, kind), None, None, V)
    model.config.speculators_config.verifier.name_or_path = None  # a folder that is gone
    return fill(model)


@torch.no_grad()
def logits_of(model, kind, inputs, anchors_of=slice(None)):
    """The logits of every step (eagle3), or of every slot of the blocks (dflash, dspark).

    Anchors are chosen among the slots `anchors_of`.
    """
    seen = []
    hook = model.lm_head.register_forward_hook(lambda module, args, out: seen.append(out.clone()))
    ids, hidden = inputs["tokens"], inputs["hidden"]
    documents = torch.zeros_like(ids)
    if kind == "eagle3":
        model(hidden, ids, documents, ttt_steps=STEPS)
        hook.remove()
        return {f"logits_{step}": out for step, out in enumerate(seen)}
    allowed, last = torch.zeros_like(ids), torch.zeros(1, ids.shape[1], D)
    allowed[:, anchors_of] = 1
    torch.manual_seed(2)  # of the choice of anchors
    anchors = []
    module = import_module("speculators.models.dflash.core")
    choose = module.select_anchors

    def select(*args):
        anchors.append(choose(*args))
        return anchors[-1]

    module.select_anchors = select
    out = model._backbone_forward(hidden, ids, allowed, last, documents, max_anchors=4)
    module.select_anchors = choose
    hook.remove()
    blocks = out[1].view(4, model.block_size, -1)
    found = {
        "anchors": anchors[0][0],
        "hidden_out": out[0].view(4, model.block_size, -1).clone(),
        "base": blocks.clone(),
    }
    if kind == "dspark":
        before = ids[0, out[4]].view(4, model.block_size)
        if not model.config.sample_from_anchor:
            before = torch.cat([before[:, :1], before[:, :-1]], dim=1)
        found["before"] = before
        bias = model.markov_head.block_bias(prev_token_ids=before, hidden_states=out[0].view(4, model.block_size, -1))
        blocks = blocks + bias
    return {**found, "logits": blocks.contiguous()}


EAGLE3 = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
BLOCK = {"aux_hidden_state_layer_ids": [1, 3], "block_size": 4, "mask_token_id": 23}
CASES = {
    "eagle3_llama": ("eagle3", "llama", 1, True, EAGLE3),
    "eagle3_qwen3": ("eagle3", "qwen3", 1, True, {**EAGLE3, "norm_before_residual": True, "norm_before_fc": True}),
    "eagle3_full": ("eagle3", "llama", 1, False, {**EAGLE3, "fc_norm": True, "norm_output": True}),
    "dflash": ("dflash", "qwen3", 2, False, BLOCK),
    "dflash_reduced": ("dflash", "qwen3", 1, True, BLOCK),
    "dspark": ("dspark", "qwen3", 2, False, {**BLOCK, "markov_rank": 6, "markov_head_type": "rnn"}),
    "dspark_reduced": ("dspark", "qwen3", 1, True, {**BLOCK, "markov_rank": 6}),
}
TRAINED = {
    "eagle3_default": ("eagle3", {}),
    "eagle3_sliding": ("eagle3", {"sliding_window": 5}),
    "dflash_default": ("dflash", {}),
    "dflash_sliding": ("dflash", {"sliding_window": 5, "full_attention_indices": [1, 3]}),
    "dflash_non_causal": ("dflash", {"sliding_window": 5, "num_layers": 2, "sliding_window_non_causal": True}),
    "dspark_default": ("dspark", {}),
    "dspark_sliding": ("dspark", {"sliding_window": 5, "num_layers": 2, "block_size": 4}),
}


def save(model, folder):
    model.save_pretrained(folder)
    (folder / "config.py").unlink()  # the package copies its source there, which nothing needs
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def save_expected(model, kind, expected, folder):
    if kind != "eagle3":  # they are the verifier's, and are not saved
        expected["embed_tokens"] = model.embed_tokens.weight.data
        if model.t2d is None:
            expected["lm_head"] = model.lm_head.weight.data
    save_file({key: value.contiguous() for key, value in expected.items()}, folder / "expected.safetensors")
    print(folder)


def record():
    models = import_models()
    for name, (kind, family, layers, reduced, options) in CASES.items():
        model = fill(class_of(models, kind)(config_of(models, kind, family, layers, reduced, **options)))
        save(model, HERE / name)
        inputs = inputs_of(len(options.get("aux_hidden_state_layer_ids", EAGLE3["eagle_aux_hidden_state_layer_ids"])))
        save_expected(model, kind, {**inputs, **logits_of(model, kind, inputs)}, HERE / name)
    record_trained(models)


def record_trained(models):
    for name, (kind, options) in TRAINED.items():
        model = trained(models, kind, options)
        save(model, HERE / name)
        window = model.sliding_window
        slots = window + KEPT + getattr(model, "block_size", 0)
        tokens = torch.randint(V, (1, slots), generator=torch.Generator().manual_seed(1))
        logits = logits_of(model, kind, {"tokens": tokens, "hidden": waves(slots, 3 * D)}, slice(window + 1, None))
        if kind == "eagle3":  # those whose window does not reach the first slot
            logits = {key: value[:, -KEPT:] for key, value in logits.items()}
        save_expected(model, kind, {"tokens": tokens, **logits}, HERE / name)


def check(folder):
    models = import_models()
    from speculators import SpeculatorModel

    expected = load_file(folder / "expected.safetensors")
    for one in KINDS:
        class_of(models, one).load_verifier_weights = lambda self: None  # there is no verifier
    model = SpeculatorModel.from_pretrained(folder)
    kind = model.config.speculators_model_type
    assert isinstance(model, class_of(models, kind))
    for name in ("embed_tokens", "lm_head"):
        if name in expected:
            getattr(model, name).weight.data = expected[name]
    model.config.transformer_layer_config._attn_implementation = model._attn_impl = "eager"
    if kind != "eagle3":
        for layer in model.layers:
            layer.self_attn.config._attn_implementation = "eager"
    model._create_mask_fn = import_module("speculators.models.attention").create_float_mask
    inputs = {"hidden": waves(expected["tokens"].shape[1], 3 * D), **expected}
    found = logits_of(model.float().eval(), kind, inputs, expected.get("anchors"))
    names = [name for name in found if name.startswith("logits")]
    worst = max(float((found[name][:, -expected[name].shape[1] :] - expected[name]).abs().max()) for name in names)
    print(f"{folder}: {kind}, largest difference of logits {worst:.1e}")
    assert worst < 1e-4


if __name__ == "__main__":
    check(Path(sys.argv[1])) if len(sys.argv) > 1 else record()
