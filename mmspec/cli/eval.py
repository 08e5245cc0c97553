"""`mmspec eval`: the speed that recipes gain and the quality that they cost."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.cli.bench import split_recipes
from mmspec.cli.builtin_prompts import builtin_prompts
from mmspec.cli.exactness_gate import gate_on
from mmspec.cli.interrupts import sigterm_interrupts
from mmspec.cli.limited import say_limit
from mmspec.cli.metric_weights import (
    ClapWeights,
    ClipWeights,
    DetectorWeights,
    Dinov2Weights,
    DPGQuestions,
    HPSv2Weights,
    HPSv3Weights,
    ImageRewardWeights,
    InceptionWeights,
    PickScoreWeights,
    ShapesWeights,
    UTMOSWeights,
    VQAWeights,
    WavLMWeights,
    WhisperWeights,
)
from mmspec.cli.model_options import DType, read_dtype
from mmspec.cli.options import Drafter, GuidanceScale, Json, MinP, Temperature, TopK, TopP, TypicalP
from mmspec.cli.pipelines import load_pipeline
from mmspec.cli.run_progress import EVERY, LogEvery, RunProgress
from mmspec.errors import ArgumentError

if TYPE_CHECKING:
    from mmspec.metrics.evaluation.evaluate import Evaluation

_Text = str | None
OWN_METRICS = {
    "shapes": "attributes,fd@shapes",
    "shapes-latent": "attributes,fd@shapes",
    "scenes": "attributes@scenes,captions@scenes",
    "spoken": "wer@spoken,fd@spoken",
}  # default metrics by model; nll for others
DEFAULTS: Mapping[str, Any] = {
    "model": "shapes",
    "prompts": "builtin",
    "recipes": "plain,scd",
    "seeds": "0",
    "reference": "plain",
    "batch": 1,
    "device": "cpu",
    "strict": False,
}


def evaluate(
    output: Annotated[Path, typer.Option("-o", "--output", help="The results folder; an existing one is continued.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", show_default=False, help="A YAML file with these keys; flags take precedence."),
    ] = None,
    model: Annotated[_Text, typer.Option("-m", "--model", show_default="shapes", help="A name, or a folder.")] = None,
    prompts: Annotated[
        _Text, typer.Option(show_default="builtin", help="A text file with a prompt per line, or `builtin`.")
    ] = None,
    recipes: Annotated[
        _Text,
        typer.Option(show_default="plain,scd", help="Separated by commas, with ranges: lantern:delta=0.1..0.5/3."),
    ] = None,
    seeds: Annotated[_Text, typer.Option(show_default="0", help="For every prompt: 0..9 or 0,3,5.")] = None,
    metrics: Annotated[
        _Text,
        typer.Option(
            show_default="those of the embedded models, else nll",
            help="Of images: attributes, captions, clip, cmmd, fid, kid, is. Of audio: wer, cer, wer-basic, cer-basic, "
            "speaker, clap, logmel, mcd, stft. Of both: entropy, nll, and fd@X, kd@X, precision@X, recall@X, where X "
            "is shapes, inception, clip, dinov2, clap, wavlm, whisper or spoken; wer@spoken, cer@spoken; those of "
            "installed packages.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of prompts to use, from the first.", show_default="all")
    ] = None,
    reference: Annotated[
        _Text,
        typer.Option(
            show_default="plain", help="Of distances: plain (with other seeds), an .npz of statistics, or a folder."
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, show_default="1", help="Samples per call.")] = None,
    shapes: ShapesWeights = None,
    inception: InceptionWeights = None,
    clip: ClipWeights = None,
    dinov2: Dinov2Weights = None,
    clap: ClapWeights = None,
    wavlm: WavLMWeights = None,
    whisper: WhisperWeights = None,
    hpsv2: HPSv2Weights = None,
    pickscore: PickScoreWeights = None,
    imagereward: ImageRewardWeights = None,
    hpsv3: HPSv3Weights = None,
    utmos: UTMOSWeights = None,
    vqa: VQAWeights = None,
    dpg: DPGQuestions = None,
    detector: DetectorWeights = None,
    drafter: Drafter = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    guidance_scale: GuidanceScale = None,
    dtype: Annotated[
        DType | None, typer.Option(show_default="auto", help="The dtype of the weights; auto is that of the files.")
    ] = None,
    device: Annotated[_Text, typer.Option(show_default="cpu", help="Where the model runs: cpu, cuda, cuda:1.")] = None,
    strict: Annotated[
        bool | None, typer.Option("--strict", help="Refuse files that cannot be read, instead of leaving them out.")
    ] = None,
    suite: Annotated[
        _Text,
        typer.Option(
            show_default=False,
            help="Prompts, metrics and settings of a benchmark: partiprompts, coco, drawbench, geneval, dpg, "
            "imagenet50k, seed-tts, libritts. Its prompts come by --prompts, as a path or hub:OWNER/NAME/FILE.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be generated, and predict calls, memory and hours.")
    ] = False,
    log_every: LogEvery = EVERY,
    as_json: Json = False,
) -> None:
    """Generate with every recipe, measure speed and quality with intervals, and write the results to a folder.

    Plain decoding always runs too. A run that is stopped by Ctrl-C or SIGTERM writes the results of the prompts that
    every recipe has finished, and continues when it is given again; under torchrun or accelerate launch the processes
    share the work.
    """
    flags = {
        "model": model, "prompts": prompts, "recipes": recipes, "seeds": seeds, "metrics": metrics, "limit": limit,
        "reference": reference, "batch": batch, "shapes": shapes, "inception": inception, "clip": clip,
        "dinov2": dinov2, "clap": clap, "wavlm": wavlm, "whisper": whisper, "drafter": drafter,
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "guidance_scale": guidance_scale, "device": device,
        "min_p": min_p, "typical_p": typical_p,
        "dtype": None if dtype is None else dtype.value,
        "strict": strict, "suite": suite, "hpsv2": hpsv2, "pickscore": pickscore, "detector": detector,
        "imagereward": imagereward, "hpsv3": hpsv3, "utmos": utmos, "vqa": vqa, "dpg": dpg,
    }  # fmt: skip
    from mmspec.metrics.evaluation.config import check_folder, open_folder, read_file

    given = {} if config is None else read_file(config)
    given |= {key: value for key, value in flags.items() if value is not None}
    if given.get("suite"):
        from mmspec.metrics.evaluation.suites.plan import planned

        given = planned(given)
    values = {**DEFAULTS, **given}
    resolved = resolve(values)
    # What a folder's model generates from is known once it is loaded: texts to draw or to speak, or classes.
    by_pipe = values["prompts"] == "builtin" and values["model"] not in OWN_METRICS
    if dry_run:
        from mmspec.metrics.evaluation.suites.plan import dry_run as plan

        print(plan(resolved, int(os.environ.get("WORLD_SIZE", "1"))))
        return

    from mmspec.arguments import check_device
    from mmspec.environment.distributed import local_device, process_group
    from mmspec.files.fingerprint import fingerprint
    from mmspec.metrics.environment import environment
    from mmspec.metrics.evaluation.evaluate import check, measure_samples, prepare
    from mmspec.metrics.evaluation.results import record_of, table, write_results
    from mmspec.metrics.evaluation.scores import write_scores
    from mmspec.metrics.evaluation.suites.classes import SUITE as CLASSES
    from mmspec.metrics.evaluation.suites.classes import check_has_classes
    from mmspec.metrics.report.page import write_report

    check(resolved)
    if resolved.suite:
        from mmspec.metrics.evaluation.suites.plan import check_reference

        check_reference(resolved)
    if not by_pipe:
        check_folder(output, resolved)
    with ExitStack() as stack:
        processes = stack.enter_context(process_group())
        device = local_device(resolved.device)
        check_device(device)
        pipe = load_pipeline(resolved.model, device, resolved.drafter, read_dtype(resolved.dtype))
        resolved = replace(resolved, fingerprint=fingerprint(pipe))
        if by_pipe:
            own = builtin_prompts(resolved.model, pipe)[: values.get("limit")]
            resolved = replace(resolved, prompts=tuple(own))
        if resolved.suite == CLASSES:
            check_has_classes(pipe)
        evaluation = prepare(pipe, resolved, processes)
        if processes.rank == 0:
            stack.enter_context(open_folder(output, resolved))
        processes.gather(None)  # wait until the folder exists
        try:
            with sigterm_interrupts() if processes.count == 1 else nullcontext():
                stopped = _generate(evaluation, output, as_json or processes.rank > 0, log_every)
                if stopped:  # out of the handler, as an exception holds on to the memory of the call that it ended
                    evaluation = _finished_part(evaluation, output)
                result = measure_samples(evaluation, output, gate_on(pipe, resolved.prompts[0], resolved.batch))
                if result is None:
                    return
                for reason in result.skipped:
                    print(f"mmspec: left out: {reason}", file=sys.stderr)
                for remark in result.remarks:
                    print(f"mmspec: note: {remark}", file=sys.stderr)
                machine = {**environment(), "processes": processes.count}
                record = record_of(evaluation.config, result, machine, len(resolved.prompts) if stopped else None)
                write_results(record, output)
                if result.scores is not None:
                    write_scores(result.scores, output)
                write_report(record, output)
            print(json.dumps(record) if as_json else table(record["rows"], resolved.batch))
            if stopped:
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            print(f"mmspec: '{output}' keeps its finished samples; the same command continues", file=sys.stderr)
            raise


def _generate(evaluation: Evaluation, output: Path, quiet: bool, log_every: float) -> bool:
    """Generates the missing samples; whether an interrupt stopped it, which several processes raise."""
    from mmspec.metrics.evaluation.evaluate import generate_samples

    config = evaluation.config
    total = len(config.recipes) * len(config.prompts) * len(config.seeds)
    with RunProgress(total, "samples", quiet=quiet, every=log_every) as progress:
        try:
            generate_samples(evaluation, output, lambda key: progress.update(note=key[0]))
        except KeyboardInterrupt:
            if evaluation.processes.count > 1:
                raise
            return True
    return False


def _finished_part(evaluation: Evaluation, output: Path) -> Evaluation:
    """The evaluation of prompts that all recipes have finished; KeyboardInterrupt if they are too few or written."""
    from mmspec.metrics.evaluation.evaluate import finished_part
    from mmspec.metrics.evaluation.results import read_results

    try:
        part = finished_part(evaluation, output)
    except ArgumentError as error:
        print(f"mmspec: stopped too early for results: {error}", file=sys.stderr)
        raise KeyboardInterrupt from None
    finished = len(part.config.prompts)
    with suppress(ArgumentError):  # no results yet, or none that can be read
        if len(read_results(output)["config"]["prompts"]) > finished:
            print(f"mmspec: stopped after {finished:,} prompts; the results are still those of more", file=sys.stderr)
            raise KeyboardInterrupt
    planned = len(evaluation.config.prompts)
    print(f"mmspec: stopped after {finished:,} of {planned:,} prompts; measuring these", file=sys.stderr)
    return part


def resolve(given: Mapping[str, Any]) -> Any:
    """The configuration of keys and values, with ranges expanded and prompts loaded.

    Args:
        given: For each flag its value, or a list of values; a list of prompts holds the texts themselves.

    Raises:
        ArgumentError: If a value is not allowed, or prompts cannot be read.
        UnknownNameError: If there is no recipe, rule or drafter of that name.
    """
    from mmspec.metrics.evaluation.config import EvalConfig
    from mmspec.metrics.evaluation.sweep import expand_all, read_seeds
    from mmspec.metrics.prompts import BUILTIN, BY_MODEL, read_prompts

    values = dict(given)
    limit = values.pop("limit", None)
    texts = values.pop("prompts")
    texts = (
        list(map(str, texts))
        if isinstance(texts, list)
        else read_prompts(str(texts), builtin=BY_MODEL.get(str(values["model"]), BUILTIN))
    )
    say_limit(limit, len(texts))
    recipes, metrics, seeds = values.pop("recipes"), values.pop("metrics", None), values.pop("seeds")
    if metrics is None:
        metrics = OWN_METRICS.get(str(values["model"]), "nll")
    names = recipes if isinstance(recipes, list) else split_recipes(str(recipes))
    return EvalConfig(
        prompts=tuple(dict.fromkeys(texts[:limit])),
        recipes=tuple(str(recipe) for recipe in expand_all(names)),
        seeds=tuple(read_seeds(",".join(map(str, seeds)) if isinstance(seeds, list) else str(seeds))),
        metrics=tuple(dict.fromkeys(_names(metrics))),
        **values,
    )


def _names(metrics: Any) -> Sequence[str]:
    found = [str(name) for name in metrics] if isinstance(metrics, list) else str(metrics).split(",")
    names = [name.strip() for name in found if name.strip()]
    if not names:
        raise ArgumentError("--metrics: no metric named; see `mmspec eval --help`")
    return names
