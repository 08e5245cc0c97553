"""The table of the methods: their recipes, acceptance rules, heads, and values of `start` and `refresh`.

`mmspec.registry` reads it as it reads the entry points of installed packages; each row names where its method is
defined. This module does not import torch, so that a command can check a recipe before it loads a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mmspec.drafters.recipe_info import (
    DEPTH,
    GUIDANCE,
    MODEL,
    Choice,
    RecipeInfo,
    branch_knob,
    nodes_knob,
    recent_knob,
    window_knob,
)
from mmspec.heads.info import HeadInfo
from mmspec.knobs import Knob
from mmspec.rules import Rule

RECIPES: Mapping[str, RecipeInfo] = MappingProxyType(
    {
        "draft-stop": RecipeInfo(
            "a smaller draft model, as long as it is sure of its drafts; the rest of the window are guesses",
            {"tokens": "mmspec.methods.draft_stop.drafter:build"},
            {
                "window": window_knob(16),
                "stop": Knob(0.3, "least predicted chance that all drafts so far are accepted", low=0.0, high=1.0),
                **MODEL,
            },
        ),
        "pearl": RecipeInfo(
            "a smaller draft model, which drafts the next window while the target reads this one",
            {"tokens": "mmspec.methods.pearl:build"},
            {"window": window_knob(5), "guidance": GUIDANCE},
            draft_model=True,
        ),
        "short-cache": RecipeInfo(
            "the target itself with a short KV cache: the prompt and the last tokens",
            {"tokens": "mmspec.methods.short_cache:build"},
            {"window": window_knob(5), "recent": recent_knob(64, 1), "guidance": GUIDANCE},
        ),
        "swift": RecipeInfo(
            "the target itself without some of its layers, which were chosen on its own sequences",
            {"tokens": "mmspec.methods.swift.drafter:build"},
            {
                "window": window_knob(5),
                "skip": Knob(0.4, "share of the layers that drafts skip", low=0.0, high=1.0),
                "guidance": GUIDANCE,
            },
        ),
        "cascade": RecipeInfo(
            "a cascade: the target with a short KV cache, or its first layers; a smaller model drafts for those",
            {"tokens": "mmspec.methods.cascade:build"},
            {
                "window": window_knob(9),
                "inner": Knob(4, "tokens in one call of the drafter, which verifies the smaller model", low=2, high=64),
                "recent": recent_knob(64, 0),
                "layers": Knob(0, "number of the target's first layers that draft; 0: all", low=0, high=1000),
                "guidance": GUIDANCE,
            },
            draft_model=True,
        ),
        "recycle": RecipeInfo(
            "token recycling: an n-gram table built online from the target's own distributions",
            {
                "tokens": "mmspec.methods.recycle.token_init:build",
                "columns": "mmspec.methods.recycle.columns:build",
            },
            {"window": window_knob(9)},
        ),
        "stand": RecipeInfo(
            "stochastic n-grams: tokens sampled from the target's own distributions after the same neighbors",
            {"tokens": "mmspec.methods.stand.drafter:build"},
            {"window": window_knob(9)},
        ),
        "retrieval": RecipeInfo(
            "the tokens that followed the longest similar context, in a datastore or in the same row",
            {"tokens": "mmspec.methods.retrieval.drafter:build"},
            {
                "window": window_knob(9),
                "store": Knob(
                    "auto",
                    "where to search: the datastore and the row's own tokens, or these alone; auto: the datastore too, "
                    "if the model has one",
                    choices=("auto", "datastore", "row"),
                ),
            },
        ),
        "medusa": RecipeInfo(
            "Medusa heads on the target's last feature, each one position further ahead",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": window_knob(5)},
            runner="medusa",
        ),
        "block": RecipeInfo(
            "a block head: one pass over mask tokens drafts the whole window (DFlash, DSpark)",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": window_knob(8)},
            runner="block",
        ),
        "grid": RecipeInfo(
            "a grid head: the features of the row above and the left neighbor draft the next row of an image",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": window_knob(8)},
            runner="grid",
        ),
        "frame": RecipeInfo(
            "a frame head: multi-token prediction of whole frames, for models with a depth decoder",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": window_knob(33)},
            runner="frame",
        ),
        "few-steps": RecipeInfo(
            "the target with fewer steps of its diffusion head; for tokens that are vectors",
            {"latents": "mmspec.methods.few_steps:build"},
            {"window": window_knob(5), "steps": Knob(4, "steps of the diffusion head for drafts", low=1, high=1000)},
        ),
        "spectr": RecipeInfo(
            "several independent drafts from a smaller model, verified by SpecTr's K-SEQ test",
            {"tokens": "mmspec.methods.spectr:build"},
            {
                "drafts": Knob(4, "number of drafts", low=1, high=64),
                "length": Knob(4, "tokens of each draft", low=1, high=64),
                **MODEL,
            },
            tree=True,
        ),
        "tree-sampled": RecipeInfo(
            "a dynamic tree sampled node by node from a smaller model, by expected value (DySpec)",
            {"tokens": "mmspec.methods.dyspec.drafter:build"},
            {"window": nodes_knob(16), "depth": Knob(8, DEPTH, low=1, high=64), **MODEL},
            tree=True,
        ),
        "tree-medusa": RecipeInfo(
            "a tree from Medusa heads, siblings sampled without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": branch_knob("3/2/1")},
            tree=True,
            runner="medusa",
        ),
        "tree-block": RecipeInfo(
            "a tree from a block head, siblings sampled without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": branch_knob("3/2/1")},
            tree=True,
            runner="block",
        ),
        "masked": RecipeInfo(
            "a masked model fills the whole window in one pass (MAGNeT for MusicGen)",
            {"tokens": "mmspec.methods.masked:build", "columns": "mmspec.methods.masked:build"},
            {"window": window_knob(8)},
            draft_model=True,
            toy="mmspec.methods.masked:MaskedToy",
        ),
        "hydra": RecipeInfo(
            "Hydra heads: Medusa heads that also read the drafts before them",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": window_knob(5)},
            runner="hydra",
        ),
        "tree-hydra": RecipeInfo(
            "a tree from Hydra heads, siblings sampled without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": branch_knob("3/2/1")},
            tree=True,
            runner="hydra",
        ),
        "kangaroo": RecipeInfo(
            "an early exit and a trained adapter after it (Kangaroo)",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": window_knob(5)},
            runner="kangaroo",
        ),
        "prompt": RecipeInfo(
            "learned prompt tokens, at which the target predicts the next window in the same call (PPD)",
            {"tokens": "mmspec.methods.prompt.drafter:build"},
            {"branch": branch_knob("1/1/1", high=63)},
            tree=True,
            runner="prompt",
            prompts=True,
        ),
        "one-step": RecipeInfo(
            "a one-step generator maps noise to the whole window, or the whole image (Distilled Decoding)",
            {"tokens": "mmspec.methods.one_step.drafter:build"},
            {"window": window_knob(16)},
            runner="one-step",
        ),
    }
)


def _nearest(default: int) -> Knob:
    return Knob(default, "number of nearest tokens that count as neighbors", low=1, high=1_000_000)


_FACTORS = ("paper", "code", "none")
_SCHEDULES = ("published", "corrected")

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "lantern": Rule(
            "the draft's nearest tokens lend it their probability, up to delta in all",
            "mmspec.methods.lantern:additive",
            knobs={
                "delta": Knob(0.1, "largest probability that neighbors lend", low=0.0, high=1.0),
                "k": _nearest(1000),
            },
            takes_codebook=True,
        ),
        "lantern++": Rule(
            "the draft's nearest tokens lend it their probability, up to lambda times its own in all",
            "mmspec.methods.lantern:multiplicative",
            knobs={
                "factor": Knob(3.0, "lambda: p(x) counts at most this many times", low=0.0, high=1e6),
                "k": _nearest(10),
            },
            takes_codebook=True,
        ),
        "gsd": Rule(
            "the draft and the tokens next to it in rank are accepted as a group",
            "mmspec.methods.gsd:grouped",
            knobs={
                "group": Knob(14, "tokens next in rank in the group, half above and half below", low=0, high=100_000),
                "probability": Knob(0.15, "members differ by less than this in probability", low=0.0, high=1.0),
                "distance": Knob(0.0, "members' squared distance in the codebook is below this; 0 is off", 0.0, 1e9),
            },
            takes_codebook=True,
        ),
        "pcg": Rule(
            "overlapping groups of similar tokens are accepted as groups",
            "mmspec.methods.pcg:overlapping",
            knobs={
                "size": Knob(16, "largest number of tokens in a group", low=0, high=1024),
                "theta": Knob(0.45, "cosine above which tokens are similar", low=-1.0, high=1.0),
            },
            takes_codebook=True,
        ),
        "beta": Rule(
            "the acceptance probability is raised by beta",
            "mmspec.methods.beta:Beta",
            knobs={"beta": Knob(0.2, "added to p/q", low=0.0, high=1.0)},
        ),
        "ensemble": Rule(
            "the draft is tested against a mixture of target and draft distribution",
            "mmspec.methods.ensemble:Ensemble",
            knobs={"draft": Knob(0.2, "share of the draft distribution, 1 - w", low=0.0, high=1.0)},
        ),
        "omega": Rule(
            "p/q is multiplied by a factor that decays along the window",
            "mmspec.methods.omega:Omega",
            knobs={
                "delta": Knob(2.0, "factor of the first draft; 1 and below is exact", low=0.0, high=1e6),
                "decay": Knob(0.7, "decrease of its logarithm per slot", low=0.0, high=100.0),
            },
        ),
        "typical": Rule(
            "drafts that are typical under the target are accepted",
            "mmspec.methods.typical:Typical",
            knobs={
                "epsilon": Knob(0.09, "largest threshold on p(x), stricter if larger; 0 is off", low=0.0, high=1.0),
                "alpha": Knob(0.3, "threshold on p(x) over exp(-entropy)", low=0.0, high=1.0),
            },
        ),
        "top-m": Rule(
            "the target's m most likely tokens are accepted",
            "mmspec.methods.top_m:TopM",
            knobs={"m": Knob(3, "number of tokens", low=0, high=1_000_000)},
        ),
        "fallback": Rule(
            "drafts that the draft model is sure of are accepted",
            "mmspec.methods.fallback:Fallback",
            knobs={
                "trust": Knob(0.2, "a draft model whose largest q is above 1 - trust is sure; 0 is exact", 0.0, 1.0),
                "rollback": Knob(0.01, "drafts with p(x) below this are tested all the same", low=0.0, high=1.0),
            },
        ),
        "clusters": Rule(
            "the draft is accepted with its k-means cluster of the codebook",
            "mmspec.methods.clusters:clusters",
            knobs={"size": Knob(4, "mean number of tokens in a cluster; 1 and below is exact", low=0, high=100_000)},
            takes_codebook=True,
        ),
        "judge": Rule(
            "drafts that a trained classifier of the target's features calls good are accepted",
            "mmspec.methods.judge.rule:judged",
            knobs={"leniency": Knob(0.2, "drafts with a score above 1 - leniency are good; 0 is exact", 0.0, 1.0)},
            takes_features=True,
            head="judge",
        ),
        "cspd": Rule(
            "latents: the published rule of Continuous Speculative Decoding, which is biased",
            "mmspec.methods.cspd:CSpD",
            knobs={
                "flatten": Knob(42.0, "factor of the deviations in the test; 1 in the paper", 1.0, 1e6),
                "factor": Knob("paper", "the variances' ratio: the paper's, the code's, none", choices=_FACTORS),
                "schedule": Knob("published", "published keeps drafts after a rejected one", choices=_SCHEDULES),
                "sigma": Knob(0.0064, "deviation of the last step if the head has none", low=1e-6, high=1e6),
                "prefill": Knob(0.05, "share of the tokens that the target first generates alone", low=0.0, high=1.0),
            },
            continuous=True,
        ),
    }
)

STARTS: Mapping[str, Choice] = MappingProxyType(
    {
        "recycle": Choice(
            "an n-gram table built while decoding",
            {
                "tokens": "mmspec.methods.recycle.token_init:continuation",
                "columns": "mmspec.methods.recycle.columns:continuation",
            },
            learns=True,
        ),
        "stand": Choice(
            "samples of stored distributions", {"tokens": "mmspec.methods.stand.drafter:continuation"}, learns=True
        ),
        "one-step": Choice("a one-step generator", {"tokens": "mmspec.methods.one_step.drafter:continuation"}),
    }
)

REFRESHES: Mapping[str, Choice] = MappingProxyType(
    {
        "outer": Choice(
            "all of them to the target's first and last layers",
            {"tokens": "mmspec.methods.outer.drafter:build"},
            knobs={"passes": Knob(1, "how often the layers of refresh=outer read a window", low=1, high=16)},
            uses={"layers": "of its layers that run, the first one and the last ones; 0: 2"},
        ),
    }
)

HEADS: Mapping[str, HeadInfo] = MappingProxyType(
    {
        "medusa": HeadInfo(
            "mmspec.methods.medusa.head:MedusaHeads",
            "medusa_num_heads",
            "mmspec.methods.medusa.drafter:build_runner",
            continues=True,
        ),
        "block": HeadInfo(
            "mmspec.methods.block.head:BlockHead",
            "block_size",
            "mmspec.methods.block.drafter:build_runner",
            continues=True,
            speculators={
                "dflash": "mmspec.methods.block.speculators:block_arguments",
                "dspark": "mmspec.methods.block.speculators:block_arguments",
            },
        ),
        "grid": HeadInfo(
            "mmspec.methods.grid.head:GridHead",
            "grid_width",
            "mmspec.methods.grid.drafter:build_runner",
            continues=True,
        ),
        "frame": HeadInfo(
            "mmspec.methods.frame.head:FrameHead",
            "codebooks",
            "mmspec.methods.frame.drafter:build_runner",
            continues=True,
            frames=True,
        ),
        "hydra": HeadInfo(
            "mmspec.methods.hydra.head:HydraHeads", "hydra_num_heads", "mmspec.methods.hydra.drafter:build_runner"
        ),
        "kangaroo": HeadInfo(
            "mmspec.methods.kangaroo.head:ExitAdapter", "exit_layer", "mmspec.methods.kangaroo.drafter:build_runner"
        ),
        "prompt": HeadInfo("mmspec.methods.prompt.head:PromptTokens", "prompt_tokens"),
        "one-step": HeadInfo("mmspec.methods.one_step.head:OneStepHead", "one_step_layers"),
        "outer": HeadInfo("mmspec.methods.outer.head:OuterHead", "change_layers"),
        "retrieval": HeadInfo("mmspec.methods.retrieval.head:Datastore", "datastore_size"),
        "swift": HeadInfo("mmspec.methods.swift.head:SkippedLayers", "skipped_layers"),
        "judge": HeadInfo("mmspec.methods.judge.head:Judge", "judge_metric"),
    }
)
